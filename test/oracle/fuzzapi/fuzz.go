// Package fuzzapi sends requests that schemathesis derives from the OpenAPI documents
// in api/openapi, and hostile requests beyond any schema, to a gateway and directly
// to an agent: real processes with tiny models.
//
// hostile.go has the hostile requests, judge.go the verdict on their answers, rest.go
// the check of what is left afterwards, and hooks.py what must hold for schemathesis'
// requests. No answer is an undocumented 5xx; each arrives within a stated time and in
// its route's own shape. In the end no engine holds a request or a block of the KV
// cache, goroutines and open files are as before, and each Mac's ledger lists exactly
// the engines that run there.
//
// The test carries the build tag oracle. Without flags it makes the same requests each
// time; make fuzz explores with a new seed. Start reading at fuzz.
package fuzzapi

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
)

type options struct {
	root, keep, schemathesis string
	length                   time.Duration
	seed                     uint64
}

func run(ctx context.Context, o options) (err error) {
	fmt.Printf("   seed %d (SEED=%d repeats it)\n", o.seed, o.seed)
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, o.schemathesis, "--version").CombinedOutput(); err != nil {
		return fmt.Errorf("schemathesis does not run: %w: %s; make fuzz installs it", err, out)
	}
	models, err := os.MkdirTemp("", "mf-fuzz-models-")
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(models)) }()
	if err := writeModels(models); err != nil {
		return err
	}
	mac, metrics, err := newMac()
	if err != nil {
		return err
	}
	fo := fleet.Options{Root: o.root, ModelRoot: models, Macs: []fleet.Mac{mac}, Say: func(s string) { fmt.Println("  ", s) }}
	return fleet.With(ctx, fo, o.keep, func(ctx context.Context, f *fleet.Fleet) error {
		return (&fuzz{Fleet: f, options: o, metrics: metrics}).run(ctx)
	})
}

// fuzz is one run.
type fuzz struct {
	*fleet.Fleet
	options options
	metrics string // the agent's, a URL
}

// run brings the models up, asks, and wants everything to be as it was before.
func (f *fuzz) run(ctx context.Context) error {
	if err := f.deploy(ctx); err != nil {
		return err
	}
	agent, err := f.straight(ctx)
	if err != nil {
		return err
	}
	defer agent.close()
	doors := []door{{name: "gateway", url: f.URL, dial: dialer(f.URL)}, agent.door}
	if err := f.warm(ctx, doors); err != nil {
		return err
	}
	before, err := f.rest(ctx)
	if err != nil {
		return err
	}
	fmt.Println("   before:", before)
	asked := f.ask(ctx, doors)
	if ctx.Err() != nil {
		return asked
	}
	// Regardless of the findings, look for leaks.
	agent.transport.CloseIdleConnections()
	after, err := f.settled(ctx, before)
	fmt.Println("   after: ", after)
	return errors.Join(asked, err, f.Failed())
}

// ask sends everything, to both doors at once.
func (f *fuzz) ask(ctx context.Context, doors []door) error {
	asking, cancel := context.WithTimeout(ctx, f.options.length)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, 2*len(doors))
	for i, d := range doors {
		wg.Go(func() { errs[2*i] = f.schemathesis(ctx, d) })
		wg.Go(func() {
			h := &hostile{door: d, rng: rand.New(rand.NewPCG(f.options.seed, uint64(i)))}
			errs[2*i+1] = h.run(asking, ctx)
		})
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}
