// Command quickstart tells the whole story on one machine: a control plane, an
// operator, a gateway and three declared Macs come up as real processes, a
// manifest is applied with kubectl, a question is asked through the gateway,
// and what the model freed is shown when it goes.
//
// It owns the order of the story and, with -once, its assertions. Processes
// belong to package fleet; building and fetching to run.sh, which starts this
// program last. It refuses to run twice in one checkout.
//
// Start reading at story.tell.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"metalfleet.dev/metalfleet/test/fleet"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run() error {
	var s story
	var port int
	root := flag.String("root", ".", "folder of the module")
	modelRoot := flag.String("model-root", "", "folder that the Macs take models from")
	flag.StringVar(&s.source, "source", "", "source of the model, in place of the sample's")
	flag.BoolVar(&s.once, "once", false, "run the story with assertions and exit")
	flag.IntVar(&port, "port", 0, "port of the gateway on 127.0.0.1; 0 takes a free one")
	flag.Parse()
	if flag.NArg() > 0 || *modelRoot == "" {
		return fmt.Errorf("usage: quickstart -model-root DIR [-root DIR] [-source file://...] [-once] [-port N]")
	}
	var err error
	if s.root, err = filepath.Abs(*root); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	if s.modelRoot, err = filepath.Abs(*modelRoot); err != nil {
		return fmt.Errorf("model root: %w", err)
	}
	s.port = port

	work, hurry, stopSignals := interruptible()
	defer stopSignals()

	free, err := lock(filepath.Join(s.root, ".run"))
	if err != nil {
		return err
	}
	defer free()
	s.dir = filepath.Join(s.root, ".run", "quickstart")
	if err := takeAway(hurry, s.dir); err != nil {
		return err
	}
	return s.run(work, hurry)
}

// run tells the story and takes everything back, whatever happened.
func (s *story) run(work, hurry context.Context) error {
	err := s.tell(work)
	if s.fleet == nil {
		return quiet(work, err)
	}
	if err != nil && work.Err() == nil {
		logs := filepath.Join(s.root, ".run", "quickstart-failed")
		err = errors.Join(err, s.fleet.KeepLogs(logs), fmt.Errorf("the logs are in %s", logs))
	}
	s.step("taking everything back")
	err = errors.Join(quiet(work, err), s.fleet.Stop(hurry))
	if err == nil {
		fmt.Println("   every process has ended; caches stay in bin/ and .cache/")
	}
	return err
}

// quiet drops what went wrong because the user asked for the end.
func quiet(work context.Context, err error) error {
	if work.Err() != nil {
		return nil
	}
	return err
}

// interruptible returns a context that the first Ctrl-C ends (the work) and one
// that the second ends (patience while taking everything back).
func interruptible() (work, hurry context.Context, stop func()) {
	work, endWork := context.WithCancel(context.Background())
	hurry, endHurry := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, end := range []context.CancelFunc{endWork, endHurry} {
			select {
			case <-signals:
				end()
			case <-quit:
				return
			}
		}
	})
	return work, hurry, func() {
		signal.Stop(signals)
		close(quit)
		wg.Wait()
		endWork()
		endHurry()
	}
}

// lock makes this the only quickstart of the checkout. The lock is on the
// folder itself, so that no file is left behind, whatever ends this process.
func lock(dir string) (free func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another quickstart runs in this checkout, end it first with Ctrl-C (lock on %s: %w)", dir, err), d.Close())
	}
	return func() {
		_ = os.Remove(dir) // goes only if it is empty
		_ = d.Close()
	}, nil
}

// takeAway ends and removes what an earlier run left that was killed before it
// could do so itself.
func takeAway(hurry context.Context, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	fmt.Println("   an earlier quickstart was killed; taking back what it left in", dir)
	return fleet.Remove(hurry, dir)
}
