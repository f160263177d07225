package main

import (
	"fmt"
	"math"
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// about says how it was measured.
const about = "`make bench-reclaim`: real processes on one machine; an idle OnDemand engine with random weights is evicted because\n" +
	"its Mac's ceiling is lowered below what is in use, while another engine streams through the gateway. Freed bytes are compared\n" +
	"with this program's own last reading of /proc (Pss_Anon + Pss_Shmem + SwapPss) before the agent's order. The status counts from\n" +
	"the end of the process, told by the kernel, to the watch event of the MacNode that holds the reclaim. Gaps between tokens are\n" +
	"seen by the client; windows of one length before and after the ceiling was lowered, in the same stream of answers."

// Bounds of issue 5.
const (
	freedOff    = 0.01
	statusLimit = 500.0 // ms
	medianLimit = 1.05
	p99Limit    = 1.5
)

// fill adds the figures of one back end. Deletes and several at once have no
// bound.
func fill(r *report.Report, name string, engines int, evictions, deletes, many []trial) {
	line := func(figure, unit string, bound report.Bound, all []trial, of func(trial) float64) {
		var runs []float64
		for _, t := range all {
			runs = append(runs, of(t))
		}
		r.Add(name+", "+figure, unit, bound, runs...)
	}
	free := report.Bound{}
	for _, part := range []struct {
		what   string
		all    []trial
		bounds bool
	}{
		{"evicted", evictions, true}, {"deleted", deletes, false}, {fmt.Sprintf("%d at once", engines), many, false},
	} {
		exact, soon, median, p99 := free, free, free, free
		if part.bounds {
			exact, soon = report.Between(1-freedOff, 1+freedOff).Every(), report.Under(statusLimit).Every()
			median, p99 = report.AtMost(medianLimit), report.AtMost(p99Limit)
		}
		line(part.what+": /proc before", "MB", free, part.all, trial.megabytes)
		line(part.what+": freed / /proc", "x", exact, part.all, trial.freedRatio)
		line(part.what+": from the cause to the last end", "ms", free, part.all, trial.took)
		line(part.what+": status after the end, the latest", "ms", soon, part.all, trial.status)
		line(part.what+": stream, median before", "ms", free, part.all, func(t trial) float64 { return quantile(t.before, 0.5) })
		line(part.what+": stream, median after / before", "x", median, part.all, func(t trial) float64 { return ratio(t.after, t.before, 0.5) })
		line(part.what+": stream, p99 after / before", "x", p99, part.all, func(t trial) float64 { return ratio(t.after, t.before, 0.99) })
		line(part.what+": stream, longest gap after", "ms", free, part.all, func(t trial) float64 { return quantile(t.after, 1) })
		line(part.what+": stream, longest gap before", "ms", free, part.all, func(t trial) float64 { return quantile(t.before, 1) })
	}
}

// minGaps in each window: of fewer, the 99th of a hundred is none.
const minGaps = 100

// ratio compares two windows; NaN where either is too short to tell.
func ratio(a, b []time.Duration, q float64) float64 {
	if len(a) < minGaps || len(b) < minGaps {
		return math.NaN()
	}
	return quantile(a, q) / quantile(b, q)
}

// freedRatio is what all engines freed by what was read of them; NaN where
// either is unknown of one.
func (t trial) freedRatio() float64 {
	var freed, read int64
	for _, g := range t.engines {
		if g.freed < 0 || g.read <= 0 {
			return math.NaN()
		}
		freed += g.freed
		read += g.read
	}
	return float64(freed) / float64(read)
}

func (t trial) megabytes() float64 {
	var read int64
	for _, g := range t.engines {
		read += g.read
	}
	return float64(read) / 1e6
}

func (t trial) took() float64 {
	return t.latest(func(g gone) time.Duration { return g.took })
}

func (t trial) status() float64 {
	return t.latest(func(g gone) time.Duration { return g.status })
}

func (t trial) latest(of func(gone) time.Duration) float64 {
	var most time.Duration
	for _, g := range t.engines {
		most = max(most, of(g))
	}
	return float64(most.Microseconds()) / 1000
}
