package main

import (
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// about says how it was measured.
const about = "`make bench-ready`: wall time from the create of a ModelDeployment to its condition Ready, the tiny model on the\n" +
	"Mac's disk; control plane, operator, gateway and agent on the same machine."

// newReport judges the median of the rounds.
func newReport(rounds []time.Duration) *report.Report {
	var runs []float64
	for _, d := range rounds {
		runs = append(runs, float64(d.Microseconds())/1000)
	}
	r := report.New("ready", "From apply to Ready", about)
	r.Add("apply to Ready, tiny model on disk", "ms", report.AtMost(float64(bound.Milliseconds())), runs...)
	return r
}
