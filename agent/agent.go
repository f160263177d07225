// Package agent is the program that runs on each Mac: it runs engines as the
// Mac's MacNode specifies, and reports their memory and what was freed.
//
// It owns the wiring of its components and the order in which they start and
// stop. Stopping the agent does not stop an engine, only one agent can use a
// state directory, and the package does not depend on Kubernetes: desired state,
// reports, heartbeat and identity are interfaces that Connect implements for a
// cluster, and tests in memory.
//
// Start reading at Agent.Run.
package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/inspect"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/peer"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/power"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/agent/upgrade"
	"metalfleet.dev/metalfleet/metal/kv"
)

// Agent is one Mac's agent.
type Agent struct {
	Config
	lock         *os.File
	journal      *journal.Journal
	root         *store.Root
	store        *store.Store
	client       *download.Client
	peers        *peer.Client
	hub          *hub.Hub
	limit        *download.Limit
	weightServer *peer.Server // serves weights to peers
	inspector    *inspect.Inspector
	tokens       hubTokens
	pool         *pool.Pool
	metrics      *metrics
	cache        *diskCache // nil where there is none
	clearing     *cacheClearing
	settings     *liveSettings
	changes      chan struct{}
	unstored     chan struct{} // receives after a desired state could not be stored
	accepting    availability
	fetching     context.CancelFunc
	upgrader     *upgrade.Upgrader
	// fenced: another machine has this identity, and started earlier.
	fenced atomic.Bool
	// replaced is how long requests may run before an upgrade replaces this
	// agent; nil: no upgrade is waiting.
	replaced atomic.Pointer[time.Duration]
	drained  chan time.Duration // how long requests may run before an upgrade
}

// NewBootID returns an ID for one start of the agent.
func NewBootID() string { return rand.Text() }

// ErrRunning means that another agent uses the state directory.
var ErrRunning = errors.New("another agent is already running on this state folder")

// New opens the state directory. Close releases it.
func New(c Config) (*Agent, error) {
	a := &Agent{Config: c, changes: make(chan struct{}, 1), unstored: make(chan struct{}, 1), tokens: hubTokens{c.Links.Tokens}, metrics: newMetrics(), drained: make(chan time.Duration, 1)}
	// An agent on trial accepts no request, because it may be killed.
	a.accepting.set(!c.Launched.OnTrial(), c.Launched.OnTrial())
	if err := a.open(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Agent) open() error {
	if err := os.MkdirAll(a.StateDir, 0o700); err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	var err error
	if a.lock, err = Lock(a.StateDir); err != nil {
		return err
	}
	if a.journal, err = journal.Open(a.StateDir, time.Now()); err != nil {
		return err
	}
	if aside := a.journal.SetAside(); aside != "" {
		a.Log.Info("The journal was damaged and has been set aside; finding engines by their sockets", "file", aside)
	}
	if err := a.openStore(); err != nil {
		return err
	}
	desired := func() *journal.Desired { return a.journal.View().Desired }
	var leases func(kv.Origin, func() int64) (pool.CacheLease, error)
	var prepare func(model string) error
	cacheDir := ""
	if a.Cache != nil {
		cacheDir = a.Cache.Dir
		prepare = a.prepareCache
		a.cache = &diskCache{options: a.cacheOptions(), log: a.Log.WithName("cache"), metrics: a.metrics.registry, desired: desired, tried: make(chan struct{})}
		leases = a.cache.lease
	}
	engines, err := process.NewSystem(a.Probe, a.Engine)
	if err != nil {
		return err
	}
	config := pool.Config{
		Log: a.Log.WithName("pool"), Journal: a.journal, Ledger: memory.NewLedger(), Probe: a.Probe, Cache: leases,
		Weights: weights{a.store}, Engines: engines, Engine: a.Engine, EngineEnv: a.EngineEnv, StateDir: a.StateDir,
		CacheDir: cacheDir, PrepareCache: prepare, Sandbox: a.Sandbox,
		Timing: a.Timing, Changed: a.changed, Reclaimed: a.metrics.reclaimed,
	}
	if a.WrapPool != nil {
		a.WrapPool(&config)
	}
	if a.pool, err = pool.New(config); err != nil {
		return err
	}
	if a.cache != nil {
		a.cache.overfull = a.pool.EndOverfull
	}
	a.upgrader, err = upgrade.New(upgrade.Config{
		Log: a.Log.WithName("upgrade"), Folder: upgrade.In(a.StateDir), Version: a.Version, Forbidden: a.NoUpgrades, Client: a.client, Keys: a.ReleaseKeys,
		Changed: a.changed, Drain: func(most time.Duration) { a.drained <- most },
	})
	if err != nil {
		return err
	}
	a.settings.targets = settingTargets{root: a.root, store: a.store, client: a.client, hub: a.hub, limit: a.limit, weightServer: a.weightServer, cache: a.cache}
	a.settings.apply()
	a.clearing = &cacheClearing{log: a.Log, journal: a.journal, pool: a.pool, cache: a.cache, changed: a.changed, signal: make(chan struct{}, 1)}
	a.metrics.watch(a.pool.Snapshot, desired)
	return nil
}

func (a *Agent) openStore() error {
	dir := a.weightsDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("open weight store: %w", err)
	}
	var err error
	a.settings = newLiveSettings(&a.Config, a.journal, a.changed)
	if a.root, err = a.settings.openRoot(filepath.Join(dir, "model-root.json")); err != nil {
		return err
	}
	a.Sources.AllowNow = a.settings.allowed
	a.client = download.NewClient(a.Sources)
	a.limit = download.NewLimit(a.DownloadRate)
	looking := a.client.Limited(a.limit)
	a.hub = &hub.Hub{Client: looking, Endpoint: a.HubEndpoint}
	a.peers = a.newPeerClient()
	use := weightUse{a.journal}
	ctx, cancel := context.WithCancel(context.Background())
	a.fetching = cancel
	var cache store.Cache
	if a.Cache != nil {
		cache = a.sharedDisk()
	}
	a.store, err = store.Open(ctx, store.Options{
		Dir: dir, Root: a.root, Hub: a.hub, Token: a.tokens.require, AtOnce: a.DownloadsAtOnce, Peers: a.peers,
		Marks: a.DiskMarks, Spared: use.spared, Ahead: use.ahead, Namespaces: use.namespaces, Collected: a.metrics.collect, Fetched: a.metrics.fetch,
		Fetch: &download.Fetcher{Client: a.client, Limit: a.limit}, Log: a.Log.WithName("store"), Cache: cache,
	})
	if err != nil {
		return err
	}
	a.weightServer = a.newPeerServer()
	looks, err := inspect.EmptyDir(a.StateDir)
	if err != nil {
		return err
	}
	a.inspector = inspect.New(&inspect.Resolver{Dir: looks, Free: a.store.Unreserved, Root: a.root, Client: looking, Hub: a.hub, Token: a.tokens.of}, a.Log.WithName("inspect"))
	return nil
}

func (a *Agent) weightsDir() string { return filepath.Join(a.StateDir, "weights") }

// sharedDisk returns the disk of the weights and of the cache, which may open later.
func (a *Agent) sharedDisk() sharedDisk {
	return sharedDisk{weights: a.weightsDir(), cache: a.Cache.Dir, owner: func() *cold.Owner {
		if a.cache == nil {
			return nil
		}
		return a.cache.owner.Load()
	}}
}

// cacheOptions are those of the disk cache, which leaves room for the weights.
// prepareCache makes the folder of a model in the disk cache.
func (a *Agent) prepareCache(model string) error {
	removed, err := cold.Prepare(a.Cache.FS, a.Cache.Dir, model)
	if removed {
		a.Log.Info("Removed what an engine put in place of the folder of its model in the cache", "model", model)
	}
	return err
}

func (a *Agent) cacheOptions() cold.Options {
	o := *a.Cache
	o.Others = func() (spare, awaited int64) {
		if !a.sharedDisk().same() {
			return 0, 0
		}
		return a.store.Reserved()
	}
	return o
}

// Lock makes sure that no other agent uses the directory until the file is
// closed. The kernel releases the lock when the process ends.
func Lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrRunning, dir), f.Close())
	}
	return f, nil
}

// Close releases everything that New opened; Run has ended. Engines keep running.
func (a *Agent) Close() error {
	var errs []error
	if a.fetching != nil {
		a.fetching()
	}
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	if a.client != nil {
		a.client.Close()
		a.peers.Close()
	}
	if a.root != nil {
		errs = append(errs, a.root.Close())
	}
	if a.lock != nil {
		errs = append(errs, a.lock.Close())
	}
	return errors.Join(errs...)
}

// Run runs engines until ctx ends.
//
// On start, running engines are adopted and the last known desired state is
// applied before the first report, so that a restart has no visible effect. On
// stop, the status reports it, running requests may finish within the grace
// period, and the engines keep running without the agent.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.Links.Heartbeat.Await(ctx); err != nil {
		return err
	}
	ctx, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	work, finish := context.WithCancel(context.Background())
	defer finish()
	a.pool.Adopt(ctx)
	if o := a.journal.Snapshot().Desired; o != nil {
		a.follow(*o)
	}
	var components sync.WaitGroup
	fence := func(err error) { // stop the writes of this agent
		a.fenced.Store(true)
		finish()
		quit(err)
	}
	for name, run := range a.components(fence) {
		components.Go(func() {
			if err := run(work); work.Err() == nil {
				a.Log.Error(err, "An agent component stopped unexpectedly", "component", name)
			}
		})
	}
	a.Log.Info("Agent is serving", "address", a.Listener.Addr().String(), "MacNode", a.Name, "bootID", a.BootID)
	components.Go(func() {
		if a.Launched.Orphaned(work) {
			a.Log.Info("The launcher of this agent exited; the agent exits too, its engines keep running")
			quit(nil)
		}
	})
	err := a.servePort(ctx)
	a.fetching() // before the pool ends: partial downloads stay and are resumed
	finish()
	components.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, register.ErrFenced) {
		return errors.Join(cause, err)
	}
	return err
}

// components are the loops that run alongside the port; fence ends the agent.
func (a *Agent) components(fence func(error)) map[string]func(context.Context) error {
	all := map[string]func(context.Context) error{
		"pool":     a.pool.Run,
		"inspect":  func(ctx context.Context) error { a.inspector.Run(ctx); return ctx.Err() },
		"status":   a.statusLoop,
		"metrics":  a.serveMetrics,
		"orders":   func(ctx context.Context) error { return a.Links.Desired.Run(ctx, a.accept) },
		"unstored": a.storeUnstored,
		"reports":  a.Links.Reports.Run,
		"identity": a.Links.Identity.Run,
		"heartbeat": func(ctx context.Context) error {
			err := a.Links.Heartbeat.Run(ctx)
			if errors.Is(err, register.ErrFenced) {
				fence(err)
			}
			return err
		},
		"tokens":   func(ctx context.Context) error { return a.tokens.run(ctx, a.inspector.Retry) },
		"upgrade":  a.upgrader.Run,
		"trial":    a.prove,
		"collect":  a.collect,
		"clear":    a.clearing.run,
		"settings": a.settings.run,
	}
	if a.Power != nil {
		all["power"] = func(ctx context.Context) error { return a.Power(ctx, a.onPower) }
	}
	if a.Links.Access != nil {
		all["access"] = a.Links.Access.Run
	}
	if a.cache != nil {
		all["cache"] = a.cache.run
	}
	if a.Tunnels != nil {
		all["tunnels"] = func(ctx context.Context) error { a.Tunnels.Run(ctx); return ctx.Err() }
	}
	return all
}

// Upgrading reports whether Run ended for an upgrade, so that Restart must be
// called after Close.
func (a *Agent) Upgrading() bool { return a.replaced.Load() != nil }

// Restart replaces this agent; see upgrade.Upgrader.
func (a *Agent) Restart(p upgrade.Program) (exit int, err error) {
	return a.upgrader.Restart(a.Launched, p)
}

// prove accepts requests once the trial has succeeded.
func (a *Agent) prove(ctx context.Context) error {
	if a.Launched.OnTrial() && a.Launched.Prove(ctx) {
		a.Log.Info("The new agent passed its trial and accepts requests", "version", a.Version)
		a.accepting.set(true, false)
		a.upgrader.Proved()
	}
	<-ctx.Done()
	return ctx.Err()
}

// servePort serves gateways until ctx ends or an upgrade starts, and running
// requests have finished.
func (a *Agent) servePort(ctx context.Context) error {
	serving, stopServing := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	defer func() {
		stopServing()
		waiting.Wait()
		if ctx.Err() != nil { // the agent was asked to stop meanwhile: stop instead of upgrading
			a.replaced.Store(nil)
		}
	}()
	waiting.Go(func() {
		select {
		case <-serving.Done():
		case most := <-a.drained:
			a.replaced.Store(&most)
			stopServing()
		}
	})
	waiting.Go(func() { // also when the port fails
		<-serving.Done()
		a.reportStopping()
	})
	fetch, done := a.imageFetcher()
	defer done()
	return serve.Serve(serving, a.Listener, a.Links.Identity.ServerTLS(), serve.Config{
		Engines: engines{a.pool}, Mac: a.Name, Accepting: func() bool { return a.accepting.get().yes },
		Trusts: a.Links.Identity.Trusts, Weights: a.weightServer, Log: a.Log.WithName("serve"), TextCalls: a.metrics.textCall, Metrics: a.metrics.handler(),
		Logs: a.lastOfLog, Tracer: a.Tracer, HeapBytes: a.HeapBytes,
		FetchImage: fetch,
	}, func() (context.Context, context.CancelFunc) { return a.drainUntil(ctx) })
}

// imageFetcher returns the function that fetches images of requests, nil if there is no
// host to fetch from, and one that closes its connections.
func (a *Agent) imageFetcher() (fetch func(context.Context, string) (io.ReadCloser, int64, error), done func()) {
	if len(a.ImageHosts) == 0 {
		return nil, func() {}
	}
	p := a.Sources
	p.Hosts = a.ImageHosts
	c := download.NewClient(p)
	return c.Open, c.Close
}

// drainUntil bounds running requests: by the grace period after stop is done, and
// before an upgrade by the time that the upgrade allows.
func (a *Agent) drainUntil(stopped context.Context) (context.Context, context.CancelFunc) {
	most := a.replaced.Load()
	if most == nil {
		return context.WithTimeout(context.Background(), a.Grace)
	}
	draining, cancel := context.WithTimeout(context.Background(), *most)
	hurried := context.AfterFunc(stopped, func() {
		timer := time.AfterFunc(a.Grace, cancel)
		context.AfterFunc(draining, func() { timer.Stop() })
	})
	return draining, func() { hurried(); cancel() }
}

// lastReportTimeout bounds the last report: a stop must not wait for an API
// server.
const lastReportTimeout = 2 * time.Second

// componentsTimeout is how long the components may take to end after they are
// canceled: they wait for neither engines nor the network, and the journal is
// written.
const componentsTimeout = 10 * time.Second

// DefaultGrace is the default of Config.Grace.
const DefaultGrace = 20 * time.Second

// StopLimit is the longest time that a stop takes with that grace. A supervisor
// must wait for longer before it kills the agent.
func StopLimit(grace time.Duration) time.Duration {
	return max(lastReportTimeout, grace+serve.TellTime) + componentsTimeout
}

func (a *Agent) reportStopping() {
	a.accepting.set(false, a.Upgrading())
	a.reportNow()
}

// reportNow writes the status at once.
func (a *Agent) reportNow() {
	if a.fenced.Load() {
		return // the status belongs to another agent
	}
	a.changed()
	ctx, cancel := context.WithTimeout(context.Background(), lastReportTimeout)
	defer cancel()
	if err := a.Links.Reports.Last(ctx, a.status()); err != nil {
		a.Log.Info("Failed to announce the shutdown", "reason", err.Error())
	}
}

// onPower reports that the Mac becomes unavailable before it does, and that it is
// back.
func (a *Agent) onPower(n power.Notice) {
	if !a.accepting.follow(n) {
		return
	}
	a.Log.Info("Mac power state changed", "leaves", a.accepting.get().leaves)
	a.reportNow()
}

// changed signals that the status must be reported again.
func (a *Agent) changed() { notify(a.changes) }

// clip bounds a string for a status field.
func clip(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "")
	}
	return s
}
