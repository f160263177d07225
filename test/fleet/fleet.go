// Package fleet runs the whole of metalfleet on this machine as real
// processes: a control plane, operator, gateway and one agent for each
// declared Mac, each with the rights and credentials it has in a cluster.
//
// It owns the processes it starts, their ports, and everything under its run
// directory, and removes all of it: on Stop, and when Start fails half-way.
// Engines run in their own session and outlive their agent by design, so Stop
// ends them by pid after the agents.
//
// It refuses to build anything: programs come from bin/ and, through package
// testenv, from bin/kube; a missing one is an error that names the make target.
//
// The quickstart, the stories of test/system, benchmarks and oracles use it.
// Start reading at Start; macs.go joins a Mac as an administrator would, load.go
// has clients that ask without end and accounts for every request.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/test/process"
	"metalfleet.dev/metalfleet/test/testenv"
)

// Namespace is where the operator keeps what belongs to no user.
const Namespace = "metalfleet-system"

// Ready bounds each wait for a program: much longer than a busy two-core machine
// was seen to take, because a wait costs nothing where things work.
const Ready = 2 * time.Minute

// Options configure a fleet.
type Options struct {
	// Root is the folder of the module; programs are taken from its bin.
	Root string
	// Dir is the run directory; it must not exist, and Stop removes it.
	Dir string
	// ModelRoot is the folder of file:// sources, on every Mac.
	ModelRoot string
	// Macs to declare, each with an agent.
	Macs []Mac
	// KeysNamespace is the namespace of API keys; empty: the gateway asks for none.
	KeysNamespace string
	// GatewayPort on 127.0.0.1; 0 takes a free one.
	GatewayPort int
	// GatewayFlags are further flags of a gateway, by its name; the first is called
	// "gateway".
	GatewayFlags map[string][]string
	// Address of the API server, where Macs are elsewhere; empty: 127.0.0.1.
	Address string
	// Say, if set, is called with each step in a few words.
	Say func(step string)
}

// Fleet is what Start started.
type Fleet struct {
	cluster
	// URL is the first gateway's, without a path.
	URL string
	// Operator is the one of the fleet.
	Operator Operator

	options Options
	dir     string

	mu       sync.Mutex // guards what follows
	agents   map[string]*agent
	order    []string // names of the agents, as joined
	gateways []*Gateway
	stopped  bool
}

// Start brings everything up and returns when operator and gateway are ready
// and every Mac is. The context bounds the start alone.
func Start(ctx context.Context, o Options) (*Fleet, error) {
	f := &Fleet{options: o, agents: map[string]*agent{}}
	if err := f.start(ctx); err != nil {
		hurry, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		return nil, errors.Join(err, f.Stop(hurry))
	}
	return f, nil
}

func (f *Fleet) start(ctx context.Context) error {
	if err := f.prepare(); err != nil {
		return err
	}
	f.say("control plane")
	var err error
	f.Env, err = testenv.Start(ctx, testenv.Options{Dir: filepath.Join(f.dir, "kube"), Address: f.options.Address, Controllers: testenv.HasControllers()})
	if err != nil {
		return err
	}
	if f.Client, err = newClient(f.Env); err != nil {
		return err
	}
	if err := f.installConfig(ctx, f.options.Root); err != nil {
		return err
	}
	f.say("operator")
	if err := f.startOperator(ctx); err != nil {
		return err
	}
	f.say(fmt.Sprintf("%d Macs and the gateway", len(f.options.Macs)))
	for _, m := range f.options.Macs {
		if err := f.add(ctx, m); err != nil {
			return err
		}
	}
	if err := f.kubeconfigOf(ctx, "metalfleet-gateway", f.gatewayKubeconfig(), f.Operator.Failed); err != nil {
		return err
	}
	first, err := f.addGateway(ctx, "gateway", f.options.GatewayPort)
	if err != nil {
		return err
	}
	f.URL = first.URL
	for _, m := range f.options.Macs {
		if err := f.WaitMacReady(ctx, m.Name); err != nil {
			return err
		}
	}
	return nil
}

// prepare checks the programs and makes the folders.
func (f *Fleet) prepare() error {
	for _, name := range []string{"operator", "gateway", "agent", "engine"} {
		if _, err := os.Stat(f.bin(name)); err != nil {
			return fmt.Errorf("program %s is not built, run `make build`: %w", name, err)
		}
	}
	dir, err := filepath.Abs(f.options.Dir)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	f.dir = dir // from here on it is ours to remove
	if err := os.Mkdir(f.LogDir(), 0o700); err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	return nil
}

func (f *Fleet) bin(name string) string { return filepath.Join(f.options.Root, "bin", name) }

// LogDir holds one log for each program.
func (f *Fleet) LogDir() string { return filepath.Join(f.dir, "logs") }

// Dir is the run directory.
func (f *Fleet) Dir() string { return f.dir }

// Kubeconfig is a file with the rights of a cluster administrator.
func (f *Fleet) Kubeconfig() string { return f.Env.Kubeconfig }

func (f *Fleet) say(step string) {
	if f.options.Say != nil {
		f.options.Say(step)
	}
}

// Stop ends everything in order: gateway and operator, agents, the control
// plane, the engines; then it removes the run directory. When hurry is done it
// kills what it would have waited for. It may be called twice.
func (f *Fleet) Stop(hurry context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped || f.dir == "" {
		return nil
	}
	fronts, agents := f.programs()
	errs := []error{
		process.StopTogether(hurry, fronts),
		process.StopTogether(hurry, agents),
	}
	for _, name := range f.order {
		a := f.agents[name]
		if a.undo == nil {
			continue
		}
		errs = append(errs, Sweep(hurry, a.state), a.undo())
		a.undo = nil
	}
	if f.Env != nil {
		errs = append(errs, f.Env.Stop())
	}
	errs = append(errs, Remove(hurry, f.dir))
	err := errors.Join(errs...)
	f.stopped = err == nil
	return err
}

// KeepLogs copies the logs out of the run directory before Stop removes it.
func (f *Fleet) KeepLogs(to string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("old logs: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("keep logs: %w", err)
	}
	err := os.CopyFS(to, os.DirFS(f.LogDir()))
	if f.Env != nil {
		err = errors.Join(err, os.CopyFS(filepath.Join(to, "kube"), os.DirFS(f.Env.LogDir)))
	}
	if err != nil {
		return fmt.Errorf("keep logs: %w", err)
	}
	return nil
}

// waitHTTP waits until url answers with a 2xx, or its program ends.
func waitHTTP(ctx context.Context, p *process.Program, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Ready, fmt.Errorf("not within %s", Ready))
	defer cancel()
	httpClient := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return p.Ready(ctx, func(ctx context.Context) error { return get(ctx, httpClient, url) })
}

func get(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// Failed is an error for each program that has ended. Programs that the caller
// stopped count as well, so call it only while none should be down.
func (f *Fleet) Failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	fronts, agents := f.programs()
	for _, p := range append(fronts, agents...) {
		errs = append(errs, p.Failed())
	}
	return errors.Join(errs...)
}

// Revive starts the programs again that have ended, and returns their names. An error is for
// one that ends again and again.
func (f *Fleet) Revive() (restarted []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fronts, agents := f.programs()
	for _, p := range append(fronts, agents...) {
		again, failed := p.Restart()
		if again {
			restarted = append(restarted, p.Name)
		}
		err = errors.Join(err, failed)
	}
	return restarted, err
}

// programs are the operator with the gateways, and the agents. The caller holds mu.
func (f *Fleet) programs() (fronts, agents []*process.Program) {
	fronts = []*process.Program{f.Operator.program}
	for _, g := range f.gateways {
		fronts = append(fronts, g.program)
	}
	for _, name := range f.order {
		agents = append(agents, f.agents[name].program)
	}
	return fronts, agents
}

// With runs use on a fleet in a short scratch folder, and removes everything.
// If it fails, the logs stay in keep, if that is not empty.
func With(ctx context.Context, o Options, keep string, use func(context.Context, *Fleet) error) (err error) {
	scratch, err := os.MkdirTemp("", "mf-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	o.Dir = filepath.Join(scratch, "run")
	f, err := Start(ctx, o)
	if err != nil {
		return err
	}
	err = use(ctx, f)
	if err != nil && ctx.Err() == nil && keep != "" {
		err = errors.Join(err, f.KeepLogs(keep), fmt.Errorf("the logs are in %s", keep))
	}
	return errors.Join(err, f.Stop(context.WithoutCancel(ctx)))
}
