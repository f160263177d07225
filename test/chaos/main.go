// Command chaos is the test behind make chaos: a whole fleet under constant load,
// of which one part after the other is taken away, in an order that a seed
// decides.
//
// It owns the schedule of faults, the load, and the verdict: no request fails
// that another try could have saved, no stream ends without a word, a dead Mac
// leaves the picks of every gateway in under two seconds, what it served is
// served elsewhere in the time that docs/concepts/architecture.md states, and in the end
// every deployment is whole, what was promised is what the ledgers say, and
// nothing was loaded more often than it had to be. Programs, credentials and
// engines are package fleet's, a Mac's link is package cluster's.
//
// It runs inside a network and a tree of mounts of its own, so that it can cut
// links and fill disks: Linux alone, as root.
//
// Start reading at chaos.run, then schedule.next and judge.
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
	"metalfleet.dev/metalfleet/test/netns"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

type options struct {
	root, keep, out string
	length          time.Duration
	seed            uint64
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder of the module, whose bin holds the programs")
	flag.StringVar(&o.keep, "logs", filepath.Join(".run", "chaos-failed"), "folder for the logs of a run that failed")
	flag.StringVar(&o.out, "out", "", "folder for chaos.json and chaos.md; empty writes none")
	flag.DurationVar(&o.length, "for", 5*time.Minute, "how long new faults are begun; the first round is always completed")
	flag.Uint64Var(&o.seed, "seed", 0, "repeat the order of a run; 0 chooses one")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: chaos [-for 5m] [-seed N] [-root DIR] [-logs DIR] [-out DIR]; make chaos")
		os.Exit(2)
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := netns.Sandboxed(ctx, func(ctx context.Context) error { return run(ctx, o) }); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// Names of the two models: one with a replica on each of several Macs, one with
// a single replica.
const (
	several, single = "story", "tale"
	replicas        = 3
	modelContext    = 1024
	sequences       = 4
)

// mebibytes of a Mac's own disk, which is memory of this machine.
const diskBytes = 96 << 20

func run(ctx context.Context, o options) (err error) {
	fmt.Printf("   seed %d (SEED=%d repeats the order)\n", o.seed, o.seed)
	root, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "mf-chaos-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	fmt.Println("   two more agents, whose clocks are ten minutes off")
	skewed, err := buildSkewed(ctx, root, scratch)
	if err != nil {
		return err
	}
	models := filepath.Join(scratch, "models")
	if err := os.Mkdir(models, 0o755); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	if err := writeModel(filepath.Join(models, "story.gguf")); err != nil {
		return err
	}
	macs, links, err := newMacs(ctx)
	if err != nil {
		return err
	}
	fo := fleet.Options{Root: root, ModelRoot: models, Macs: macs, Address: netns.Address, Say: func(s string) { fmt.Println("  ", s) }}
	return fleet.With(ctx, fo, o.keep, func(ctx context.Context, f *fleet.Fleet) error {
		c := newChaos(f, links, skewed)
		return c.run(ctx, o)
	})
}

// writeModel makes one that speaks for seconds and never ends by itself.
func writeModel(path string) error {
	c := tinymodel.Default()
	c.Name, c.Seed, c.Context, c.Endless = several, 2, modelContext, true
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize = 4, 256, 768, 8, 4, 32
	return tinymodel.Write(path, c)
}

// tell prints the figures, and keeps them where asked.
func (c *chaos) tell(t tally, loaded int, o options) error {
	r := report.New("chaos", "A fleet of which parts are taken away", about)
	r.Add("requests that another try could have saved, or that ended without a word", "", report.AtMost(0).Of("issue 9"), float64(t.count[failed]))
	r.Add("requests answered whole", "", report.Bound{}, float64(t.count[whole]))
	r.Add("streams that a lost Mac or engine cut, told so", "", report.Bound{}, float64(t.count[cutTyped]))
	r.Add("streams that broke with their gateway", "", report.Bound{}, float64(t.count[cutGateway]))
	r.Add("requests that clients took to the other gateway", "", report.Bound{}, float64(t.moved))
	r.Add("the longest that a request took", "s", report.Bound{}, t.longest.Seconds())
	r.Add("a dead Mac leaves a gateway's picks after", "ms", report.Under(picksMost).Every().Of("issue 9"), c.picks...)
	r.Add("a lost Mac's models serve elsewhere after", "s", report.AtMost(elsewhereMost).Every().Of("docs/concepts/architecture.md"), c.elsewhere...)
	r.Add("loads of engines", "", report.Bound{}, float64(loaded))
	for _, k := range allKinds() {
		if took := c.took[k]; len(took) > 0 {
			r.Add(string(k)+": whole again after", "s", report.Bound{}, took...)
		}
	}
	return r.Finish(o.out)
}

const about = "`make chaos`: four Macs with networks and disks of their own, two gateways, an operator, a real API server, two models under constant load of streams and\n" +
	"whole answers; parts are taken away in an order that a seed decides."
