// Package sim runs a fleet on virtual time: hours of thousands of Macs in some
// minutes, the same for a seed.
//
// The decisions are the operator's own: which replicas a deployment gets and
// which of them a new revision replaces (modeldeployment.Rehearsal), where they
// are placed and which make room (placement/plan), which Mac is silent or gone
// and when nothing is moved (macnode), and how many replicas a fifth of the
// deployments have, from the reports of two gateways (autoscaler/demand,
// autoscaler/scale). Simulated are the Macs (leases, downloads, loads, drains,
// deaths and returns) and the clients, by a seeded trace with days of an hour
// and bursts (scaling.go). The operator restarts about once an hour, and a
// gateway is silent at times. After every event the simulation checks the
// invariants (check.go), and stops at the first breach with the seed that shows
// it.
//
// It refuses the wall clock and every effect but its output: no API server, no
// process. Its tests run small fleets; a large one:
//
//	go test -count=1 -timeout 0 -v ./controllers/sim -run OneFleet -macs 2000 -hours 6 -seed 1
//
// Start reading at run, then world.step.
package sim

import (
	"fmt"
	"io"
)

// options of a run.
type options struct {
	seed uint64
	macs int // at least 4
	// deployments that are created in the first half of the time; 0: one for four Macs.
	deployments int
	hours       float64 // of virtual time
	quiet       bool    // print the sums alone and no timeline
}

// run simulates one fleet to its end and returns it.
func run(o options, out io.Writer) (*world, error) {
	if o.macs < 4 || o.hours <= 0 || o.deployments < 0 {
		return nil, fmt.Errorf("%d Macs, %d deployments, %v hours: want at least 4 Macs, no fewer than 0 deployments and more than 0 hours", o.macs, o.deployments, o.hours)
	}
	if o.deployments == 0 {
		o.deployments = max(2, o.macs/4)
	}
	w := newWorld(o, out)
	for w.step() {
		if w.checks.breach != nil {
			return w, fmt.Errorf("seed %d, %s: %w", o.seed, w.clock(), w.checks.breach)
		}
	}
	if err := w.checks.settled(); err != nil {
		return w, fmt.Errorf("seed %d, at the end: %w", o.seed, err)
	}
	w.sums()
	return w, nil
}
