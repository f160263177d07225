// Command quickstart runs a whole fleet on one machine: it starts a control plane, an
// operator, a gateway and three simulated Macs as real processes, applies a manifest with
// kubectl, sends a prompt through the gateway, and shows the memory that is freed when the
// model is deleted.
//
// It owns the order of the steps and, with -once, the assertions. Processes belong to
// package fleet; run.sh builds and downloads, and starts this program last. It refuses to
// run twice in one checkout.
//
// Start reading at story.play.
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
	root := flag.String("root", ".", "root folder of the module")
	modelRoot := flag.String("model-root", "", "model root folder of the Macs")
	flag.StringVar(&s.source, "source", "", "model source to use instead of the sample's")
	flag.BoolVar(&s.once, "once", false, "run once with assertions, then exit")
	flag.IntVar(&port, "port", 0, "port of the gateway on 127.0.0.1; 0 selects a free one")
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

// run runs all steps and cleans up on every exit.
func (s *story) run(work, hurry context.Context) error {
	err := s.play(work)
	if s.fleet == nil {
		return quiet(work, err)
	}
	if err != nil && work.Err() == nil {
		logs := filepath.Join(s.root, ".run", "quickstart-failed")
		err = errors.Join(err, s.fleet.KeepLogs(logs), fmt.Errorf("the logs are in %s", logs))
	}
	s.step("cleaning up")
	err = errors.Join(quiet(work, err), s.fleet.Stop(hurry))
	if err == nil {
		fmt.Println("   all processes have ended; caches stay in bin/ and .cache/")
	}
	return err
}

// quiet drops errors that the user's interrupt caused.
func quiet(work context.Context, err error) error {
	if work.Err() != nil {
		return nil
	}
	return err
}

// interruptible returns a context that the first Ctrl-C cancels (the work) and
// one that the second cancels (the cleanup).
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

// lock makes this the only quickstart of the checkout. It locks the folder
// itself, so that no lock file remains when the process is killed.
func lock(dir string) (free func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another quickstart is running in this checkout; end it with Ctrl-C first (lock on %s: %w)", dir, err), d.Close())
	}
	return func() {
		_ = os.Remove(dir) // removed only if it is empty
		_ = d.Close()
	}, nil
}

// takeAway removes the processes and files of an earlier run that was killed.
func takeAway(hurry context.Context, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	fmt.Println("   an earlier quickstart was killed; cleaning up", dir)
	return fleet.Remove(hurry, dir)
}
