// Command cycles is the test behind make test-cycles: one Mac goes through ten
// cycles of memory pressure. In each, requests load three OnDemand models, the
// ceiling is lowered until all have gone, and it is raised again.
//
// It owns the loop and the verdict: every reclaim agrees with an own reading of
// /proc and is counted once, the models return with the next request, and at
// the end the agent's process holds what it held when it was empty, within 5 %.
// Empty is an agent whose models were loaded and unloaded a few times: what a
// program holds before it did anything is printed, and compared with nothing.
//
// Start reading at test.
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

	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

const (
	mac = "studio"
	// modelBytes make an engine's figures large beside its own bookkeeping.
	modelBytes = 64 << 20
	// smallCeiling is less than any engine holds.
	smallCeiling = 8 << 20
	// patience bounds each wait; three times what a busy two-core machine took.
	patience = 90 * time.Second
	// rest is how long the runtime of an idle agent may take to give free pages
	// back: it collects garbage every two minutes at the latest.
	rest = 5 * time.Minute
	// warm cycles before the agent counts as empty: connections were made, and
	// lists that keep the last reclaims have some.
	warm = 3
	// tolerance of the agent's footprint, and offBy of a reclaim from /proc.
	tolerance, offBy = 0.05, 0.05
)

func main() {
	root := flag.String("root", ".", "folder whose bin holds the programs")
	cycles := flag.Int("cycles", 10, "how many")
	keep := flag.String("logs", filepath.Join(".run", "cycles-failed"), "folder for the logs of a run that failed")
	flag.Parse()
	if flag.NArg() > 0 || *cycles < 1 {
		fmt.Fprintln(os.Stderr, "usage: cycles [-root DIR] [-cycles N]; make test-cycles")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root, *keep, *cycles); err != nil {
		fmt.Fprintln(os.Stderr, "test-cycles:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root, keep string, cycles int) error {
	models, err := os.MkdirTemp("", "mf-models-")
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	defer os.RemoveAll(models)
	if err := tinymodel.Write(filepath.Join(models, "model.gguf"), tinymodel.Large(modelBytes)); err != nil {
		return err
	}
	options := fleet.Options{Root: root, ModelRoot: models, Macs: []fleet.Mac{{Name: mac, Chip: "M2Ultra", Memory: "64Gi"}}}
	return fleet.With(ctx, options, keep, func(ctx context.Context, f *fleet.Fleet) error {
		return (&test{Fleet: f, cycles: cycles, book: book{counted: map[string]bool{}}}).run(ctx)
	})
}

// test is one run.
type test struct {
	*fleet.Fleet
	cycles int
	book   book
}

func (t *test) run(ctx context.Context) error {
	for _, name := range names() {
		if err := t.Deploy(ctx, fleet.Model{Name: name, File: "model.gguf", OnDemand: true, DrainSeconds: 60}); err != nil {
			return err
		}
	}
	fresh, err := t.agentHolds()
	if err != nil {
		return err
	}
	fmt.Printf("   %-14s agent holds %7.2f MB, models known, none ever loaded\n", "before", mb(fresh))
	for n := range warm {
		if err := t.cycle(ctx); err != nil {
			return fmt.Errorf("warm cycle %d: %w", n+1, err)
		}
	}
	empty, err := t.agentRests(ctx, func(n int64) error { return nil })
	if err != nil {
		return err
	}
	fmt.Printf("   %-14s agent holds %7.2f MB: this is empty\n", fmt.Sprintf("%d cycles", warm), mb(empty))
	for n := range t.cycles {
		if err := t.cycle(ctx); err != nil {
			return fmt.Errorf("cycle %d: %w", n+1, err)
		}
		now, err := t.agentHolds()
		if err != nil {
			return err
		}
		fmt.Printf("   cycle %-8d agent holds %7.2f MB; freed so far %.2f MB in %d reclaims\n", n+1, mb(now), mb(t.book.freed), len(t.book.counted))
	}
	last, err := t.agentRests(ctx, func(n int64) error { return within(n, empty) })
	if err != nil {
		return err
	}
	fmt.Printf("   %-14s agent holds %7.2f MB, %+.1f %% of empty (at most %+.0f %%)\n", "after", mb(last), 100*(float64(last)/float64(empty)-1), 100*tolerance)
	return t.end(ctx)
}

// names of the models.
func names() []string { return []string{"one", "two", "three"} }

// cycle loads every model, lowers the ceiling until all have gone, and raises
// it.
func (t *test) cycle(ctx context.Context) error {
	own := map[string]int64{} // by replica UID, as read here
	for _, name := range names() {
		r, err := t.Rouse(ctx, name, patience)
		if err != nil {
			return err
		}
		if own[string(r.Replica.UID)], err = fleet.Footprint(r.Engine.PID); err != nil {
			return err
		}
	}
	if err := t.CheckLedger(ctx, mac); err != nil {
		return fmt.Errorf("all loaded: %w", err)
	}
	if err := t.SetCeiling(ctx, mac, smallCeiling); err != nil {
		return err
	}
	if err := t.waitEmpty(ctx); err != nil {
		return err
	}
	node, err := t.Mac(ctx, mac)
	if err != nil {
		return err
	}
	if err := t.book.count(node, own); err != nil {
		return err
	}
	return t.SetCeiling(ctx, mac, 0)
}

func (t *test) waitEmpty(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return fleet.Poll(ctx, 50*time.Millisecond, "all engines have gone", func(ctx context.Context) error { return t.CheckEmpty(ctx, mac) })
}

// end deletes the models: an engine that a hold were left on would be drained
// for a minute.
func (t *test) end(ctx context.Context) error {
	for _, name := range names() {
		if _, err := t.Rouse(ctx, name, patience); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("a hold is left: the drain waits for it"))
	defer cancel()
	for _, name := range names() {
		if err := t.Undeploy(ctx, name); err != nil {
			return err
		}
	}
	if err := t.CheckEmpty(ctx, mac); err != nil {
		return err
	}
	fmt.Println("   no engine, no hold and no reservation is left")
	return nil
}

func (t *test) agentHolds() (int64, error) {
	pid, err := t.AgentPID(mac)
	if err != nil {
		return 0, err
	}
	return fleet.Footprint(pid)
}

// agentRests waits until the agent's footprint has not moved by a percent for
// ten seconds and is content with it, or the time is up.
func (t *test) agentRests(ctx context.Context, content func(int64) error) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rest, fmt.Errorf("not within %s", rest))
	defer cancel()
	var mark int64
	var since time.Time
	err := fleet.Poll(ctx, time.Second, "the agent gives back what it does not need", func(context.Context) error {
		now, err := t.agentHolds()
		if err != nil {
			return err
		}
		if off := now - mark; mark == 0 || max(off, -off) > mark/100 {
			mark, since = now, time.Now()
		}
		if time.Since(since) < 10*time.Second {
			return fmt.Errorf("it holds %d bytes and that still moves", now)
		}
		return content(now)
	})
	return mark, err
}

func mb(n int64) float64 { return float64(n) / 1e6 }
