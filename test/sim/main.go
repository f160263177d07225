// Command sim runs a fleet on virtual time: hours of thousands of Macs in some
// minutes, the same for a seed.
//
// The decisions are the operator's own: which replicas a deployment gets and
// which of them a new revision replaces (modeldeployment.Rehearsal), where they
// go and who makes room (placement/plan), which Mac is silent or gone and when
// nothing is moved (macnode), and how many replicas a fifth of the deployments
// have, by what two gateways report (autoscaler/demand, autoscaler/scale). What is
// played are the Macs: leases, downloads, loads, drains, deaths and returns, and
// clients by a seeded trace, with days of an hour and bursts (scaling.go); the
// operator restarts about once an hour, and a gateway is silent at times. After
// every event it checks what must hold whatever happens (check.go), and stops at the
// first breach with the seed that shows it.
//
// It refuses the wall clock and every effect but its output: no API server, no
// process.
//
//	go run ./test/sim -macs 2000 -hours 6 -seed 1 -svg memory.svg     (make sim)
//
// Start reading at run, then world.step.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

// options of a run.
type options struct {
	seed        uint64
	macs        int
	deployments int
	hours       float64
	svg         string
	quiet       bool
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "of everything that is by chance")
	flag.IntVar(&o.macs, "macs", 1000, "Macs of the fleet, at least 4")
	flag.IntVar(&o.deployments, "deployments", 0, "deployments that come in the first half of the time; 0: one for four Macs")
	flag.Float64Var(&o.hours, "hours", 4, "of virtual time")
	flag.StringVar(&o.svg, "svg", "", "file for the picture of memory per Mac over time; empty draws none")
	flag.BoolVar(&o.quiet, "quiet", false, "print the sums alone and no timeline")
	flag.Parse()
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

func run(o options, to io.Writer) error {
	if o.macs < 4 || o.hours <= 0 || o.deployments < 0 || flag.NArg() > 0 {
		return fmt.Errorf("%d Macs, %d deployments, %v hours, want at least 4 Macs, no fewer than 0 deployments, more than 0 hours, and no other argument", o.macs, o.deployments, o.hours)
	}
	if o.deployments == 0 {
		o.deployments = max(2, o.macs/4)
	}
	out := bufio.NewWriter(to)
	defer out.Flush()
	w := newWorld(o, out)
	for w.step() {
		if w.breach != nil {
			return fmt.Errorf("seed %d, %s: %w", o.seed, w.clock(), w.breach)
		}
	}
	if err := w.settled(); err != nil {
		return fmt.Errorf("seed %d, at the end: %w", o.seed, err)
	}
	w.sums()
	if o.svg == "" {
		return nil
	}
	f, err := os.Create(o.svg)
	if err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	if err := draw(f, w.samples, time.Duration(o.hours*float64(time.Hour))); err != nil {
		_ = f.Close()
		return fmt.Errorf("picture %s: %w", o.svg, err)
	}
	return f.Close()
}
