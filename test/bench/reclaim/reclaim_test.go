//go:build !race

package reclaim

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
)

func at(ms int) time.Time {
	return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
}

func TestAWindowHoldsTheGapsOfTokensThatArrivedInIt(t *testing.T) {
	s := &stream{times: []time.Time{at(0), at(10), at(20), at(50), at(60), {}, at(95), at(100)}}
	for name, c := range map[string]struct {
		from, to int
		want     []time.Duration // in ms
	}{
		"all":                        {to: 60, want: []time.Duration{10, 10, 30, 10}},
		"a gap that began before":    {from: 30, to: 55, want: []time.Duration{30}},
		"on the border counts once":  {from: 20, to: 50, want: []time.Duration{30}},
		"no token arrived":           {from: 61, to: 90, want: nil},
		"not between answers":        {from: 61, to: 110, want: []time.Duration{5}},
		"a window of a later answer": {from: 96, to: 100, want: []time.Duration{5}},
	} {
		for i := range c.want {
			c.want[i] *= time.Millisecond
		}
		if got := s.gaps(at(c.from), at(c.to)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestTheCeilingSeparatesTheEnginesThatLeaveAndStay(t *testing.T) {
	const stay, leaves = int64(100e6), int64(650e6)
	c, err := ceilingFor(stay+leaves, leaves)
	if err != nil || (stay+leaves)*100 <= c*95 || stay+leaves > c || stay >= c/1000*875 {
		t.Errorf("ceiling %d, %v", c, err)
	}
	if _, err := ceilingFor(660e6, 10e6); err == nil {
		t.Error("an engine that is too small can be evicted alone")
	}
}

func TestFreedBytesAreComparedWithTheReadingBeforeTheEviction(t *testing.T) {
	freed := int64(100)
	r := v1alpha1.Reclaim{FreedBytes: &freed, DurationMilliseconds: 200, Time: metav1.NewMicroTime(at(1200))}
	readings := []reading{{at: at(900), bytes: 90}, {at: at(990), bytes: 101}, {at: at(1050), bytes: 60}, {at: at(1190), bytes: 20}}
	got := compare(r, at(1300), at(950), observation{readings: readings, ended: at(1190)})
	if got.read != 101 || got.freed != 100 || got.status != 110*time.Millisecond || got.took != 240*time.Millisecond {
		t.Errorf("%+v", got)
	}
	if first, none := lastBefore(readings, at(0)), lastBefore(nil, at(0)); first != 90 || none != 0 {
		t.Errorf("before all readings: %d; without readings: %d", first, none)
	}
}

// gaps of one length, of which some are longer.
func gaps(n int, gap time.Duration, long int, longer time.Duration) []time.Duration {
	out := slices.Repeat([]time.Duration{gap}, n)
	for i := range long {
		out[i] = longer
	}
	return out
}

func TestBoundsOfAnEviction(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		change func(*trial)
		missed string // figure; empty for none
	}{
		"all is well":                  {change: func(*trial) {}},
		"too little was freed":         {change: func(t *trial) { t.freed = 989 }, missed: "x, freed / /proc"},
		"too much was freed":           {change: func(t *trial) { t.freed = 1011 }, missed: "x, freed / /proc"},
		"freed bytes are unknown":      {change: func(t *trial) { t.freed = -1 }, missed: "x, freed / /proc"},
		"the status is late":           {change: func(t *trial) { t.status = 500 * ms }, missed: "x, end of process to status"},
		"every token takes longer":     {change: func(t *trial) { t.after = gaps(200, 22*ms, 0, 0) }, missed: "x, stream, median after / before"},
		"some tokens take much longer": {change: func(t *trial) { t.after = gaps(200, 20*ms, 3, 31*ms) }, missed: "x, stream, p99 after / before"},
		"the stream stood still":       {change: func(t *trial) { t.after = nil }, missed: "x, stream, median after / before"},
		"few tokens":                   {change: func(t *trial) { t.before = gaps(minGaps-1, 20*ms, 0, 0) }, missed: "x, stream, p99 after / before"},
	} {
		tr := trial{read: 1000, freed: 995, status: 300 * ms, took: 400 * ms, before: gaps(200, 20*ms, 0, 0), after: gaps(200, 20*ms, 1, 300*ms)}
		c.change(&tr)
		samples := scenario.Samples{}
		for key, v := range tr.values() {
			samples.Set("x/"+key, v)
		}
		r := report.New("x", "", "")
		samples.Fill(r, figures("x")...)
		missed := ""
		for _, l := range r.Lines {
			if !l.Passed && (missed == "" || l.Name == c.missed) {
				missed = l.Name
			}
		}
		if missed != c.missed {
			t.Errorf("%s: missed %q, want %q", name, missed, c.missed)
		}
	}
}
