package main

import (
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

const about = "`make bench-routing`: a deployment of 8 replicas, asked by chats that share system prompts; the same requests at the same times under each policy, which\n" +
	"is the gateway's own code. Hit rate: tokens of prompts that the replica remembered, of all; time to the first token from the time a request was due.\n" +
	"Simulated on virtual time: two gateways that know nothing of one another, engines with figures of an 8B model on an M4 Max (700 tokens/s of prefill,\n" +
	"8 sequences, 32,768 tokens remembered), 4,000 requests of mostly 2,240 to 3,200 tokens, 5 seeds. Real: one gateway's front with TLS to 8 engine processes on the back\n" +
	"end ref, each with one thread and a random model of 4 layers, 3 runs of 240 requests of 610 to 930 tokens at 0.9 times what all cores could compute if nothing were remembered."

// bounds that ours must meet beside each of the others; 0 is none.
type bounds struct {
	// hits is at least so many times theirs, the time to the first token at most.
	hits float64
	// first is beside least load, inTurn beside round robin.
	first, inTurn float64
}

func newReport(all []comparison) *report.Report {
	r := report.New("routing", "Where requests go, and what that is worth", about)
	for _, c := range all {
		c.fill(r)
	}
	return r
}

// fill adds every figure with its bound.
func (c comparison) fill(r *report.Report) {
	names := policies()
	of := func(i int, f func(outcome) float64) (runs []float64) {
		for _, o := range c.outcomes[i] {
			runs = append(runs, f(o))
		}
		return runs
	}
	for i, p := range names {
		at := fmt.Sprintf("%s: %s, ", c.name, p.name)
		r.Add(at+"hit rate", "%", report.Bound{}, of(i, func(o outcome) float64 { return 100 * o.hits() })...)
		r.Add(at+"first token, p50", "ms", report.Bound{}, of(i, first(50))...)
		r.Add(at+"first token, p99", "ms", report.Bound{}, of(i, first(99))...)
		r.Add(at+"busiest replica / average", "x", report.Bound{}, of(i, outcome.imbalance)...)
	}
	for i, p := range names[1:] {
		if c.bounds.hits > 0 {
			r.Ratio(fmt.Sprintf("%s: hit rate, ours / %s", c.name, p.name), report.AtLeast(c.bounds.hits), of(0, outcome.hits), of(i+1, outcome.hits))
		}
		r.Ratio(fmt.Sprintf("%s: first token, p99, ours / %s", c.name, p.name), report.AtMost([]float64{c.bounds.first, c.bounds.inTurn}[i]), of(0, first(99)), of(i+1, first(99)))
	}
}

// first is a percentile of the time to the first token, in milliseconds.
func first(p float64) func(outcome) float64 {
	return func(o outcome) float64 {
		return float64(traffic.Percentile(o.first, p)) / float64(time.Millisecond)
	}
}
