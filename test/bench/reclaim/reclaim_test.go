package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/bench/report"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }

func TestAWindowHoldsTheGapsOfTokensThatCameInIt(t *testing.T) {
	times := []time.Time{at(0), at(10), at(20), at(50), at(60), {}, at(95), at(100)}
	ms := func(n ...int) (out []time.Duration) {
		for _, n := range n {
			out = append(out, time.Duration(n)*time.Millisecond)
		}
		return out
	}
	for name, test := range map[string]struct {
		from, to int
		want     []time.Duration
	}{
		"all":                       {0, 60, ms(10, 10, 30, 10)},
		"a gap that began before":   {30, 55, ms(30)},
		"on the border counts once": {20, 50, ms(30)},
		"nothing came":              {61, 90, nil},
		"the next answer":           {61, 110, ms(5)},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(test.want, gaps(times, at(test.from), at(test.to))); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestQuantilesAreGapsThatWereSeen(t *testing.T) {
	var all []time.Duration
	for n := range 200 {
		all = append(all, time.Duration(200-n)*time.Millisecond)
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 100, 0.99: 198, 1: 200} {
		if got := quantile(all, q); got != want {
			t.Errorf("quantile %v is %v ms, want %v", q, got, want)
		}
	}
	if !math.IsNaN(quantile(nil, 0.5)) || !math.IsNaN(ratio(all[:minGaps-1], all, 0.5)) || !math.IsNaN(ratio(all, nil, 0.5)) {
		t.Error("too few gaps are a figure")
	}
}

// TestTheCeilingPartsThoseThatGoFromThoseThatStay: over the hard mark with all,
// under the soft mark less the hysteresis without those that go.
func TestTheCeilingPartsThoseThatGoFromThoseThatStay(t *testing.T) {
	for name, test := range map[string]struct {
		stay, each int64
		engines    int
		ok         bool
	}{
		"one large engine":      {100e6, 650e6, 1, true},
		"ten at once":           {100e6, 60e6, 10, true},
		"one that is too small": {650e6, 10e6, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			leaves := test.each * int64(test.engines)
			use := test.stay + leaves
			c, err := ceilingFor(use, leaves, test.engines)
			if (err == nil) != test.ok {
				t.Fatalf("ceiling %d, %v", c, err)
			}
			if err != nil {
				return
			}
			down := c / 1000 * 875 // what engines are evicted down to
			if use*100 <= c*95 || test.stay > down {
				t.Errorf("under a ceiling of %d: %d in use, %d stay", c, use, test.stay)
			}
			if oneLess := use - leaves + test.each; test.engines > 1 && oneLess <= down {
				t.Errorf("under a ceiling of %d one of them may stay", c)
			}
		})
	}
}

func TestFreedBytesAreComparedWithTheReadingBeforeTheOrder(t *testing.T) {
	freed := int64(100)
	told := telling{at: at(1300), reclaim: v1alpha1.Reclaim{FreedBytes: &freed, DurationMilliseconds: 200, Time: metav1.NewMicroTime(at(1200))}}
	readings := []reading{{at(900), 90}, {at(990), 101}, {at(1050), 60}, {at(1190), 20}}
	g := told.compare(at(1190), at(950), readings)
	if g.read != 101 || g.last != 20 || g.freed != 100 || g.status != 110*time.Millisecond || g.took != 240*time.Millisecond {
		t.Errorf("%+v", g)
	}
	if got := lastBefore(readings, at(0)); got != 90 {
		t.Errorf("before the first reading: %d", got)
	}
	if got := lastBefore(nil, at(0)); got != 0 {
		t.Errorf("without a reading: %d", got)
	}
	told.reclaim.FreedBytes = nil
	if r := (trial{engines: []gone{told.compare(at(1190), at(950), readings)}}).freedRatio(); !math.IsNaN(r) {
		t.Errorf("unknown bytes are a figure: %v", r)
	}
}

// even is a window of so many gaps of a length, and some that are longer.
func even(n int, gap time.Duration, long int, longer time.Duration) []time.Duration {
	out := make([]time.Duration, n)
	for i := range out {
		if out[i] = gap; i < long {
			out[i] = longer
		}
	}
	return out
}

func TestEveryBoundIsJudged(t *testing.T) {
	const ms = time.Millisecond
	good := func() trial {
		return trial{
			engines: []gone{{read: 1000, freed: 995, status: 300 * ms, took: 400 * ms}},
			before:  even(200, 20*ms, 0, 0), after: even(200, 20*ms, 1, 300*ms), // one in 200 is no 99th
		}
	}
	for name, test := range map[string]struct {
		spoil func(*trial)
		rule  string // that breaks; empty for none
	}{
		"all is well":                  {func(*trial) {}, ""},
		"too little was freed":         {func(t *trial) { t.engines[0].freed = 989 }, "freed / /proc"},
		"too much was freed":           {func(t *trial) { t.engines[0].freed = 1011 }, "freed / /proc"},
		"the bytes are not known":      {func(t *trial) { t.engines[0].freed = -1 }, "freed / /proc"},
		"the status is late":           {func(t *trial) { t.engines[0].status = 500 * ms }, "status after the end"},
		"every token takes longer":     {func(t *trial) { t.after = even(200, 22*ms, 0, 0) }, "median after / before"},
		"some tokens take much longer": {func(t *trial) { t.after = even(200, 20*ms, 3, 31*ms) }, "p99 after / before"},
		"the stream stood still":       {func(t *trial) { t.after = nil }, "median after / before"},
	} {
		t.Run(name, func(t *testing.T) {
			spoilt := good()
			test.spoil(&spoilt)
			r := report.New("reclaim", "", "")
			fill(r, "ref", 10, []trial{spoilt}, []trial{good()}, []trial{good()})
			err := r.Judge()
			if (err == nil) != (test.rule == "") || err != nil && !strings.Contains(err.Error(), test.rule) {
				t.Errorf("verdict %v, want %q", err, test.rule)
			}
			r = report.New("reclaim", "", "")
			if test.spoil(&spoilt); len(spoilt.after) > 0 && spoilt.engines[0].freed >= 0 {
				fill(r, "ref", 10, []trial{good()}, []trial{spoilt}, []trial{spoilt})
				if err := r.Judge(); err != nil {
					t.Errorf("deletes and many at once have no bound, and yet: %v", err)
				}
			}
		})
	}
}
