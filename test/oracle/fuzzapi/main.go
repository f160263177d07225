// Command fuzzapi is the test behind make fuzz-api: requests that schemathesis makes
// of the OpenAPI documents in api/openapi, and hostile ones beyond any schema, are
// sent to a gateway and straight at an agent, real processes with tiny models.
//
// It owns the hostile requests (hostile.go), the verdict on their answers (judge.go)
// and on what is left afterwards (rest.go); what must hold of schemathesis' answers
// is in hooks.py. No 5xx that is not promised, every answer in a stated time and in
// its route's own shape; in the end no engine holds a request or a block of keys and
// values, goroutines and open files are what they were, and each Mac's ledger is what
// runs there. Processes and credentials are package fleet's.
//
// Start reading at fuzz.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
)

type options struct {
	root, keep, schemathesis string
	length                   time.Duration
	seed                     uint64
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder of the module, whose bin holds the programs")
	flag.StringVar(&o.keep, "logs", filepath.Join(".run", "fuzz-api-failed"), "folder for the logs of a run that failed")
	flag.StringVar(&o.schemathesis, "schemathesis", "", "the program; test/oracle/fuzzapi/install.sh installs it and prints where")
	flag.DurationVar(&o.length, "for", 3*time.Minute, "how long requests are made")
	flag.Uint64Var(&o.seed, "seed", 0, "repeat a run; 0 chooses one")
	flag.Parse()
	if flag.NArg() > 0 || o.schemathesis == "" || o.length < time.Minute {
		fmt.Fprintln(os.Stderr, "usage: fuzzapi -schemathesis PROGRAM [-for 3m, at least 1m] [-seed N] [-root DIR] [-logs DIR]; make fuzz-api")
		os.Exit(2)
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano()) % 1e9
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz-api:", err)
		os.Exit(1)
	}
	fmt.Println("fuzz-api: every answer was promised, in time and in shape; nothing was left behind")
}

func run(ctx context.Context, o options) (err error) {
	fmt.Printf("   seed %d (SEED=%d repeats it)\n", o.seed, o.seed)
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, o.schemathesis, "--version").CombinedOutput(); err != nil {
		return fmt.Errorf("schemathesis does not run: %w: %s; test/oracle/fuzzapi/install.sh installs it", err, out)
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
	// Whatever was found: what was left behind is looked for.
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
