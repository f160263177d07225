package macmetrics

import (
	"hash/maphash"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

const (
	// maxFresh is how many series of one Mac may be new at once: all of an agent, twice. An
	// agent has about 14 for each replica that comes. freshPerHour is how many more may be new
	// in each hour: Prometheus keeps every series that it has seen for hours.
	maxFresh, freshPerHour = 2 * maxSeries, maxSeries
)

// fresh bounds how many series of one Mac are new. The zero value is not ready.
type fresh struct {
	seed  maphash.Seed
	known map[uint64]bool // hashes of the series of its last answer
	left  float64         // may be new
	at    time.Time       // when left was counted
}

func newFresh(now time.Time) *fresh {
	return &fresh{seed: maphash.MakeSeed(), left: maxFresh, at: now}
}

// admit removes the series from an answer that are new and too many.
func (f *fresh) admit(metrics map[string][]*dto.Metric, now time.Time) {
	f.left = min(maxFresh, f.left+now.Sub(f.at).Hours()*freshPerHour)
	f.at = now
	known := map[uint64]bool{}
	for name, list := range metrics {
		metrics[name] = slices.DeleteFunc(list, func(m *dto.Metric) bool {
			id := f.hash(name, m)
			if !f.known[id] && !known[id] {
				if f.left < 1 {
					return true
				}
				f.left--
			}
			known[id] = true
			return false
		})
	}
	f.known = known
}

// hash returns the identity of a series.
func (f *fresh) hash(name string, m *dto.Metric) uint64 {
	labels := make([]string, 0, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		if l.GetName() != label {
			labels = append(labels, l.GetName()+"\xff"+l.GetValue())
		}
	}
	slices.Sort(labels)
	return maphash.String(f.seed, name+"\xff"+strings.Join(labels, "\xff"))
}
