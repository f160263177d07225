// Command keda is the test behind make test-keda: KEDA's own operator and its
// server of external metrics, Kubernetes' own HPA and our operator, as real
// processes on a real API server, scale a ModelDeployment to none and back, by the
// push, by the HPA that KEDA makes, and not by figures that are a part.
//
// It owns the cluster, KEDA's place in it, a gateway that tells what it is told to,
// and the verdict. It refuses to play KEDA: all that is KEDA's is KEDA's own code,
// as test/keda/build.sh has it. No Mac is there, and replicas wait for one: what is
// tested is how many are wanted.
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
)

// patience bounds each wait: a deployment stays active for a minute after the last
// request, and a busy machine takes its time.
const patience = 3 * time.Minute

func main() {
	root := flag.String("root", ".", "folder of the module")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: keda [-root DIR]; make test-keda")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root); err != nil {
		fmt.Fprintln(os.Stderr, "test-keda:", err)
		os.Exit(1)
	}
	fmt.Println("test-keda: KEDA scales a ModelDeployment to none and back, and by no part of the figures")
}

// run brings everything up, tests it, and takes it back.
func run(ctx context.Context, root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	scratch, err := os.MkdirTemp("", "mf-keda-")
	if err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	defer os.RemoveAll(scratch)
	w, err := newWorld(ctx, root, scratch)
	if err == nil {
		err = test(ctx, w)
	}
	if err != nil && w != nil {
		logs := filepath.Join(root, ".run", "keda-failed")
		if kept := w.keep(logs); kept == nil {
			err = fmt.Errorf("%w\n(logs are in %s)", err, logs)
		}
	}
	if w != nil {
		err = errors.Join(err, w.stop())
	}
	return err
}

// test is the story of one deployment.
func test(ctx context.Context, w *world) error {
	steps := []struct {
		what string
		do   func(context.Context) error
	}{
		{"nobody asks: to none", func(ctx context.Context) error {
			// KEDA's push breaks at figures that are not whole, and is slow to come back.
			return errors.Join(w.create(ctx, "chat", false), w.until(ctx, w.whole("chat")), w.scale(ctx, "chat"), w.until(ctx, w.wants("chat", 0)))
		}},
		{"ten requests wait: from none by the push, to three by the HPA", func(ctx context.Context) error {
			if w.kedaSays(`"activity":true`)(ctx) == nil {
				return errors.New("KEDA had found it active before anybody asked")
			}
			began := time.Now()
			w.ask("chat", 10)
			err := w.until(ctx, w.kedaSays("Successfully updated ScaleTarget"))
			fmt.Printf("     woken in %.1f s\n", time.Since(began).Seconds())
			return errors.Join(err, w.byThePush(), w.until(ctx, w.wants("chat", 3)))
		}},
		{"another gateway is silent: nothing is taken away", func(ctx context.Context) error {
			if err := errors.Join(w.other(ctx, false), w.until(ctx, w.partIsSaid("chat"))); err != nil {
				return err
			}
			w.ask("chat", 0)
			return w.holds(ctx, "chat", 3, 10*time.Second)
		}},
		{"it is gone for good, two requests run: one", func(ctx context.Context) error {
			w.ask("chat", 2)
			return errors.Join(w.other(ctx, true), w.until(ctx, w.wants("chat", 1)))
		}},
		{"nobody asks for a minute and KEDA's cooldown: to none", func(ctx context.Context) error {
			w.ask("chat", 0)
			return w.until(ctx, w.wants("chat", 0))
		}},
		{"one that scales itself is refused, and stays as it is", func(ctx context.Context) error {
			w.ask("own", 10)
			return errors.Join(w.create(ctx, "own", true), w.scale(ctx, "own"), w.until(ctx, w.kedaSays("remove spec.autoscaling")), w.holds(ctx, "own", 1, 5*time.Second))
		}},
	}
	for _, s := range steps {
		began := time.Now()
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.what, errors.Join(err, w.failed()))
		}
		fmt.Printf("   %-70s %5.1f s\n", s.what, time.Since(began).Seconds())
	}
	return nil
}
