// Command routing measures what it is worth to send a request where others with
// its beginning went: how much of the prompts the replicas remembered, and the
// time to the first token, beside round robin and least load.
//
// It owns the traces, a model of an engine on virtual time, the wiring of real
// engines behind the gateway's own front, the bounds and the record in
// docs/bench. The choice is the gateway's (package pick) in both; the policies
// differ in nothing else. It refuses a run in which a request failed or was cut.
//
//	go run ./test/bench/routing        (make bench-routing)
//
// Start reading at trace; sim.go runs one on virtual time, real.go asks engines.
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

	"metalfleet.dev/metalfleet/gateway/pick"
)

// options are the flags.
type options struct {
	root, dir, out string
	seeds, runs    int
	requests       int
	simulated      bool
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder whose bin holds the programs")
	flag.StringVar(&o.dir, "dir", filepath.Join(".cache", "bench", "routing"), "folder for the random model, which is kept")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for routing.json and routing.md; empty writes none")
	flag.IntVar(&o.seeds, "seeds", 5, "runs of each simulated trace, each with a seed of its own")
	flag.IntVar(&o.runs, "runs", 3, "runs of each policy with real engines")
	flag.IntVar(&o.requests, "requests", 240, "requests of a run with real engines")
	flag.BoolVar(&o.simulated, "simulated", false, "leave real engines out")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-routing:", err)
		os.Exit(1)
	}
}

// policy is one way to choose.
type policy struct {
	name string
	pick pick.Policy
}

// policies are those that are compared, ours first.
func policies() []policy {
	return []policy{{"prefix affinity", pick.Choose}, {"least load", pick.LeastLoad}, {"round robin", pick.RoundRobin}}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.seeds < 1 || o.runs < 1 || o.requests < 1 {
		return errors.New("want at least one seed, one run and one request")
	}
	var all []comparison
	for _, s := range scenarios() {
		c, err := s.compare(o.seeds)
		if err != nil {
			return fmt.Errorf("simulated, %s: %w", s.name, err)
		}
		all = append(all, c)
	}
	if !o.simulated {
		c, err := measure(ctx, o)
		if err != nil {
			return fmt.Errorf("real engines: %w", err)
		}
		all = append(all, c)
	}
	return newReport(all).Finish(o.out)
}
