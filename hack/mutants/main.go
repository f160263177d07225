// Command mutants breaks each guard named in hack/mutants.txt, one at a time,
// and wants the test that stands beside it to fail: a guard whose test stays
// green without it is not guarded.
//
// It owns that list's format and the verdicts. It never writes into the tree:
// the compiler is given the changed file as an overlay. It refuses a list with
// an entry whose old text is gone or not unique, or whose change does not
// compile, whichever part is tried, and a test that fails, or does not run,
// without the change.
//
// Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// options is what the command line says.
type options struct {
	list string // the file with the entries
	root string // the module
	part string // all, shard or i/n
	jobs int
}

func main() {
	var o options
	flag.StringVar(&o.list, "list", "hack/mutants.txt", "file with the entries")
	flag.StringVar(&o.root, "root", ".", "folder of the module")
	flag.StringVar(&o.part, "part", "all", "which entries: all, i/n, or shard (one chosen by the commit)")
	flag.IntVar(&o.jobs, "jobs", 2, "how many at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return fmt.Errorf("folder %s: %w", o.root, err)
	}
	list := o.list
	if !filepath.IsAbs(list) {
		list = filepath.Join(root, list)
	}
	text, err := os.ReadFile(list)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	all, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", o.list, err)
	}
	if err := look(ctx, root, all, out); err != nil {
		return fmt.Errorf("%s: %w", o.list, err)
	}
	p, err := choosePart(ctx, o.part, root, len(all))
	if err != nil {
		return err
	}
	chosen := p.of(all)
	scratch, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch)

	began := time.Now()
	fmt.Fprintf(out, "mutants: %d of %d entries (part %d of %d), %d at a time\n", len(chosen), len(all), p.index, p.count, o.jobs)
	bad := apply(ctx, newBench(root, scratch), chosen, o.jobs, out)
	fmt.Fprintf(out, "mutants: %d red, %d not, %.0f s\n", len(chosen)-bad, bad, time.Since(began).Seconds())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case bad > 0:
		return fmt.Errorf("%d of %d guards are not guarded", bad, len(chosen))
	case len(chosen) == 0:
		return errors.New("no entry to try")
	}
	return nil
}

// look reads every entry, also those of other parts: a list that no longer fits
// the sources, or does not compile, should be found by whoever changed them.
func look(ctx context.Context, root string, all []entry, out io.Writer) error {
	if err := errors.Join(check(root, all), named(root, all)); err != nil {
		return err
	}
	c, err := newChecker(ctx, root)
	if err != nil {
		return err
	}
	unknown, err := c.all(ctx, all)
	if err != nil {
		return err
	}
	if len(all) > 0 {
		fmt.Fprintf(out, "mutants: %d of %d entries compile; of the others no compiler here sees the file\n", len(all)-unknown, len(all))
	}
	return nil
}

// apply tries the entries, prints a line for each, and counts those that are
// not red.
func apply(ctx context.Context, b *bench, entries []entry, jobs int, out io.Writer) int {
	queue := make(chan entry)
	var mu sync.Mutex // guards bad and out
	bad := 0
	var workers sync.WaitGroup
	for range max(jobs, 1) {
		workers.Go(func() {
			for e := range queue {
				began := time.Now()
				err := b.try(ctx, e)
				mu.Lock()
				if err == nil {
					fmt.Fprintf(out, "red  %5.1f s  %s\n", time.Since(began).Seconds(), e.name)
				} else {
					bad++
					fmt.Fprintf(out, "NOT  %5.1f s  %s\n     %s: %v\n", time.Since(began).Seconds(), e.name, e.file, err)
				}
				mu.Unlock()
			}
		})
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			break
		}
		queue <- e
	}
	close(queue)
	workers.Wait()
	return bad
}
