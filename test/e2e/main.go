// Command e2e is the system as its users get it, end to end (make e2e): a
// real one-node Kubernetes without a way out, the chart installed by Helm, two
// Macs that join, a model applied from a hub, and a Pod with the official Python
// client that streams an answer through the Service. Then a Mac's link is cut
// and mended, and the chart is uninstalled and installed again. Commands for Helm are
// those of docs/how-to/install.md. With -rolling it is the story of story.roll.
//
// It owns the story, the images, the hub and the Macs. It asserts on what users
// see: answers, conditions, events. It refuses to leave anything: a
// process, mount, link, control group or network namespace that is there
// afterwards and was not before fails it.
//
//	bash hack/cluster.sh && go run ./test/e2e        (make e2e; Linux, root)
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
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/cluster"
)

// limit of the whole story. In the other one a certificate of the authority's
// old root lives for ten minutes.
const limit, rollingLimit = 15 * time.Minute, 35 * time.Minute

func main() {
	o := options{}
	flag.StringVar(&o.root, "root", ".", "folder of the module, with programs in bin")
	flag.StringVar(&o.dir, "dir", filepath.Join(".cache", "e2e"), "folder of images and of what runs; logs stay there")
	flag.StringVar(&o.python, "python", filepath.Join(".cache", "client", "bin", "python"), "interpreter with the official client (test/client.sh)")
	flag.BoolVar(&o.rolling, "rolling", false, "run the other story: everything is replaced under streams (make e2e-rolling)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	most := limit
	if o.rolling {
		most = rollingLimit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("the story takes longer than %s", most))
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

type options struct {
	root, dir, python string
	rolling           bool
}

// run is called outside and again inside of the sandbox.
func run(ctx context.Context, o options) error {
	for _, path := range []*string{&o.root, &o.dir, &o.python} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	state := filepath.Join(o.dir, "run")
	if !cluster.Inside() {
		if err := os.RemoveAll(state); err != nil {
			return err
		}
		if err := writeImages(ctx, o); err != nil {
			return err
		}
	}
	return cluster.Sandbox(ctx, state, func(ctx context.Context) error {
		began := time.Now()
		s := &story{o: o, dir: state, began: began}
		tell := s.tell
		if o.rolling {
			tell = s.roll
		}
		err := tell(ctx)
		if err != nil {
			err = errors.Join(err, s.evidence())
		}
		if err = errors.Join(err, s.end()); err != nil {
			return err
		}
		s.say("e2e: passed in %s", time.Since(began).Round(time.Second))
		return nil
	})
}
