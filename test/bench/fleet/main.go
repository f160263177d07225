// Command fleet measures what a fleet of a thousand Macs costs that idles, and how
// long a hundred replicas take to be placed on it.
//
// It owns a thousand Macs that are none: each is an agent's way into the API
// (heartbeat, orders, reports) with its own rights, its own connection and figures
// that wander as those of an idle Mac do, against a real API server and the real
// operator. It refuses to count what it wrote itself: the API server counts. It
// starts no engine.
//
//	go run ./test/bench/fleet        (make bench-fleet)
//
// Start reading at measure; macs.go has the agents.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	// Bounds of the issue.
	writesMost = 1.2   // per Mac and 10 s, Lease included
	rssMost    = 500.0 // megabytes
	placedMost = 5.0   // seconds
	// deployments and replicas of each that are placed at once.
	deployments, each = 20, 5
)

const about = "`make bench-fleet`: a real API server and etcd, the real operator as a process of its own, and agents without engines: each renews its Lease, follows its MacNode\n" +
	"and reports through the agent's own packages, with its own token and its own connection. Writes are the API server's count of all that changed anything, whoever\n" +
	"asked, while nothing happens. Then 20 deployments of 5 replicas are created at once; the time ends when each replica has a Mac. All share this machine."

type options struct {
	root, keep, out string
	macs, runs      int
	window          time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder of the module, whose bin holds the programs")
	flag.StringVar(&o.keep, "logs", filepath.Join(".run", "bench-fleet-failed"), "folder for the logs of a run that failed")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for fleet.json and fleet.md; empty writes none")
	flag.IntVar(&o.macs, "macs", 1000, "how many Macs")
	flag.IntVar(&o.runs, "runs", 3, "how many times writes are counted and replicas placed")
	flag.DurationVar(&o.window, "window", 40*time.Second, "how long writes are counted each time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	models, err := os.MkdirTemp("", "mf-models-")
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	defer os.RemoveAll(models)
	fo := fleet.Options{Root: o.root, ModelRoot: models, Say: func(s string) { fmt.Println("  ", s) }}
	return fleet.With(ctx, fo, o.keep, func(ctx context.Context, f *fleet.Fleet) error {
		macs, err := startMacs(ctx, f, o.macs)
		if macs != nil {
			defer macs.stop()
		}
		if err != nil {
			return err
		}
		r, err := measure(ctx, f, macs, o)
		if err != nil {
			return err
		}
		return r.Finish(o.out)
	})
}

// measure counts the writes of idle Macs and times placements, in turns.
func measure(ctx context.Context, f *fleet.Fleet, macs *macs, o options) (*report.Report, error) {
	var writes, leases, rss, placed []float64
	for n := range o.runs {
		w, l, err := idle(ctx, f, o)
		if err != nil {
			return nil, err
		}
		writes, leases = append(writes, w), append(leases, l)
		took, err := place(ctx, f, n)
		if err != nil {
			return nil, err
		}
		placed = append(placed, took.Seconds())
		peak, err := peakMB(f.OperatorPID())
		if err != nil {
			return nil, err
		}
		rss = append(rss, peak)
		fmt.Printf("   run %d: %.2f writes per Mac and 10 s, %.2f s to place %d replicas, operator at %.0f MB\n", n+1, w, took.Seconds(), deployments*each, peak)
		if err := remove(ctx, f, n); err != nil {
			return nil, err
		}
	}
	if err := macs.failure(); err != nil {
		return nil, err
	}
	r := report.New("fleet", fmt.Sprintf("What a fleet of %d Macs costs the API server and the operator", o.macs), about)
	r.Add("writes of all kinds per idle Mac and 10 s", "", report.AtMost(writesMost).Every().Of("issue 9"), writes...)
	r.Add("of these, renewals of Leases", "", report.Bound{}, leases...)
	r.Add(fmt.Sprintf("%d replicas of %d deployments, from the first create until each has a Mac", deployments*each, deployments), "s", report.Under(placedMost).Of("issue 9"), placed...)
	r.Add("most memory that the operator ever held", "MB", report.Under(rssMost).Every().Of("issue 9"), rss...)
	return r, nil
}

// idle counts writes for a while in which nothing is asked for.
func idle(ctx context.Context, f *fleet.Fleet, o options) (writes, leases float64, err error) {
	before, err := countWrites(ctx, f)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	timer := time.NewTimer(o.window)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return 0, 0, context.Cause(ctx)
	}
	after, err := countWrites(ctx, f)
	if err != nil {
		return 0, 0, err
	}
	per := float64(o.macs) * time.Since(began).Seconds() / 10
	if after.leases <= before.leases {
		return 0, 0, errors.New("no Lease was renewed: the Macs do not run")
	}
	return (after.all - before.all) / per, (after.leases - before.leases) / per, nil
}
