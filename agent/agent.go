// Package agent is the program that runs on each Mac: it hosts engines as its
// MacNode orders, and reports what they hold and what was freed.
//
// It owns the wiring of its rooms and the order in which they start and stop.
// It refuses to stop an engine because the agent itself stops, to run twice
// over one state folder, and to speak Kubernetes itself: orders, reports,
// heartbeat and identity are interfaces, which Connect fills from a cluster
// and a test from memory.
//
// Start reading at Agent.Run.
package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/inspect"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/neighbour"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/power"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/agent/upgrade"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv"
)

// Agent is one Mac's agent.
type Agent struct {
	Config
	lock      *os.File
	journal   *journal.Journal
	root      *store.Root
	store     *store.Store
	client    *download.Client
	asker     *neighbour.Asker
	inspector *inspect.Inspector
	pool      *pool.Pool
	metrics   *metrics
	cache     *diskCache // nil where there is none
	changes   chan struct{}
	// ordered and settled receive after orders were taken: one for each reader.
	ordered, settled chan struct{}
	inForce          atomic.Pointer[v1alpha1.SettingsInForce] // as followed now
	accepting        atomic.Pointer[acceptance]
	fetching         context.CancelFunc
	upgrader         *upgrade.Upgrader
	// fenced: another machine has this identity, and began earlier.
	fenced atomic.Bool
	// replaced is how long requests may go on for an upgrade; nil: none waits.
	replaced atomic.Pointer[time.Duration]
	drained  chan time.Duration // how long requests may go on before an upgrade
}

// acceptance is whether orders are taken, and since when.
type acceptance struct {
	yes, replaced bool
	// leaves is why the Mac itself goes away, a reason of Accepting; empty: it
	// stays.
	leaves string
	since  time.Time
}

func (a *acceptance) condition() metav1.Condition {
	switch {
	case a.leaves != "":
		return register.Leaving(a.leaves, a.since)
	case a.replaced:
		return register.Replaced(a.since)
	}
	return register.Accepting(a.yes, a.since)
}

// NewBootID makes the id of one start.
func NewBootID() string { return rand.Text() }

// ErrRunning says that another agent uses the state folder.
var ErrRunning = errors.New("another agent is already running on this state folder")

// New takes up what lies in the state folder. Close gives it back.
func New(c Config) (*Agent, error) {
	a := &Agent{Config: c, changes: make(chan struct{}, 1), ordered: make(chan struct{}, 1), settled: make(chan struct{}, 1), metrics: newMetrics(), drained: make(chan time.Duration, 1)}
	// One on trial takes no request that it might be killed over.
	a.setAccepting(!c.Launched.OnTrial(), c.Launched.OnTrial())
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
	ordered := func() *journal.Orders { return a.journal.Snapshot().Orders }
	var leases func(kv.Origin, func() int64) (pool.CacheLease, error)
	var prepare func(model string) error
	cacheDir := ""
	if a.Cache != nil {
		cacheDir = a.Cache.Dir
		prepare = func(model string) error { return cold.Prepare(a.Cache.FS, a.Cache.Dir, model) }
		a.cache = &diskCache{options: *a.Cache, log: a.Log.WithName("cache"), metrics: a.metrics.registry, orders: ordered, tried: make(chan struct{})}
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
	a.upgrader, err = upgrade.New(upgrade.Config{
		Log: a.Log.WithName("upgrade"), Folder: upgrade.In(a.StateDir), Version: a.Version, Forbidden: a.NoUpgrades, Client: a.client, Keys: a.ReleaseKeys,
		Changed: a.changed, Drain: func(most time.Duration) { a.drained <- most },
	})
	if err != nil {
		return err
	}
	a.setNow()
	a.metrics.watch(a.pool.Snapshot, ordered)
	return nil
}

func (a *Agent) openStore() error {
	dir := filepath.Join(a.StateDir, "weights")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("open weight store: %w", err)
	}
	var err error
	if a.root, err = store.OpenRoot(a.ModelRoot, filepath.Join(dir, "model-root.json"), a.Log.WithName("store")); err != nil {
		return err
	}
	a.client = download.NewClient(a.Sources)
	models := &hub.Hub{Client: a.client, Endpoint: a.HubEndpoint}
	a.asker = a.newAsker()
	ctx, cancel := context.WithCancel(context.Background())
	a.fetching = cancel
	a.store, err = store.Open(ctx, store.Options{
		Dir: dir, Root: a.root, Hub: models, Token: a.tokenFor, AtOnce: a.DownloadsAtOnce, Neighbours: a.asker,
		Marks: a.DiskMarks, Spared: a.spared, Ahead: a.ahead, Namespace: a.namespaceOf, Collected: a.metrics.collect, Fetched: a.metrics.fetch,
		Fetch: &download.Fetcher{Client: a.client, Limit: download.NewLimit(a.DownloadRate)}, Log: a.Log.WithName("store"),
	})
	if err != nil {
		return err
	}
	a.inspector = inspect.New(&inspect.Resolver{Root: a.root, Client: a.client, Hub: models, Token: a.token}, a.Log.WithName("inspect"))
	return nil
}

// Lock makes sure that no other agent works over the folder until the file is
// closed. The kernel gives the lock back when the process ends, however it ends.
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

// Close gives back what New took; Run has ended. Engines live on.
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
		a.asker.Close()
	}
	if a.root != nil {
		errs = append(errs, a.root.Close())
	}
	if a.lock != nil {
		errs = append(errs, a.lock.Close())
	}
	return errors.Join(errs...)
}

// Run hosts engines until ctx ends.
//
// Start: living engines are adopted and the last known orders taken up before
// anything is reported, so that a restart is no event to anybody else. Stop:
// it is announced, running requests go on for the grace period, and the
// supervisor ends; engines live on.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.Links.Heartbeat.Await(ctx); err != nil {
		return err
	}
	ctx, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	work, finish := context.WithCancel(context.Background())
	defer finish()
	a.pool.Adopt(ctx)
	if o := a.journal.Snapshot().Orders; o != nil {
		a.follow(*o)
	}
	var rooms sync.WaitGroup
	fence := func(err error) { // writes of this agent end at once
		a.fenced.Store(true)
		finish()
		quit(err)
	}
	for name, run := range a.parts(fence) {
		rooms.Go(func() {
			if err := run(work); work.Err() == nil {
				a.Log.Error(err, "An agent component stopped unexpectedly", "part", name)
			}
		})
	}
	a.Log.Info("Agent is serving", "address", a.Listener.Addr().String(), "MacNode", a.Name, "bootID", a.BootID)
	rooms.Go(func() {
		if a.Launched.Orphaned(work) {
			a.Log.Info("The launcher of this agent exited; the agent exits too, its engines keep running")
			quit(nil)
		}
	})
	err := a.servePort(ctx)
	a.fetching() // before the pool ends: parts of downloads stay for a resume
	finish()
	rooms.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, register.ErrFenced) {
		return errors.Join(cause, err)
	}
	return err
}

// parts are what runs alongside the port; fence ends the agent.
func (a *Agent) parts(fence func(error)) map[string]func(context.Context) error {
	parts := map[string]func(context.Context) error{
		"pool":     a.pool.Run,
		"inspect":  func(ctx context.Context) error { a.inspector.Run(ctx); return ctx.Err() },
		"status":   a.statusLoop,
		"metrics":  a.serveMetrics,
		"orders":   func(ctx context.Context) error { return a.Links.Orders.Run(ctx, a.take) },
		"reports":  a.Links.Reports.Run,
		"identity": a.Links.Identity.Run,
		"heartbeat": func(ctx context.Context) error {
			err := a.Links.Heartbeat.Run(ctx)
			if errors.Is(err, register.ErrFenced) {
				fence(err)
			}
			return err
		},
		"tokens":   a.followTokens,
		"upgrade":  a.upgrader.Run,
		"trial":    a.prove,
		"collect":  a.collect,
		"clear":    a.clear,
		"settings": a.set,
	}
	if a.Power != nil {
		parts["power"] = func(ctx context.Context) error { return a.Power(ctx, a.hear) }
	}
	if a.Links.Access != nil {
		parts["access"] = a.Links.Access.Run
	}
	if a.cache != nil {
		parts["cache"] = a.cache.run
	}
	if a.Tunnels != nil {
		parts["tunnels"] = func(ctx context.Context) error { a.Tunnels.Run(ctx); return ctx.Err() }
	}
	return parts
}

// Upgrading says that Run ended to make way for another agent, and Restart is
// to be called after Close.
func (a *Agent) Upgrading() bool { return a.replaced.Load() != nil }

// Restart makes way for it; see upgrade.Upgrader.
func (a *Agent) Restart(p upgrade.Program) (exit int, err error) {
	return a.upgrader.Restart(a.Launched, p)
}

// prove opens the port's gate once a trial went well.
func (a *Agent) prove(ctx context.Context) error {
	if a.Launched.OnTrial() && a.Launched.Prove(ctx) {
		a.Log.Info("The new agent passed its trial and accepts requests", "version", a.Version)
		a.setAccepting(true, false)
		a.upgrader.Proved()
	}
	<-ctx.Done()
	return ctx.Err()
}

// servePort answers gateways until ctx ends, or an upgrade waits, and the
// running answers are done.
func (a *Agent) servePort(ctx context.Context) error {
	serving, stopServing := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	defer func() {
		stopServing()
		waiting.Wait()
		if ctx.Err() != nil { // told to end meanwhile: then that is what happens
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
	waiting.Go(func() { // also when the port fails by itself
		<-serving.Done()
		a.announceEnd()
	})
	return serve.Serve(serving, a.Listener, a.Links.Identity.ServerTLS(), serve.Config{
		Engines: engines{a.pool}, Mac: a.Name, Accepting: func() bool { return a.accepting.Load().yes },
		Trusts: a.Links.Identity.Trusts, Weights: a.newGiver(), Log: a.Log.WithName("serve"), TextCalls: a.metrics.textCall,
	}, func() (context.Context, context.CancelFunc) { return a.drainUntil(ctx) })
}

// drainUntil is how long running requests may go on: the grace period after the
// agent was told to end, and before an upgrade what its order says.
func (a *Agent) drainUntil(told context.Context) (context.Context, context.CancelFunc) {
	most := a.replaced.Load()
	if most == nil {
		return context.WithTimeout(context.Background(), a.Grace)
	}
	draining, cancel := context.WithTimeout(context.Background(), *most)
	hurried := context.AfterFunc(told, func() {
		timer := time.AfterFunc(a.Grace, cancel)
		context.AfterFunc(draining, func() { timer.Stop() })
	})
	return draining, func() { hurried(); cancel() }
}

// lastWords bounds the last report: a stop must not wait for an API server.
const lastWords = 2 * time.Second

// roomsEnd is what the rooms get to end once they are cancelled: none of them
// waits for an engine or for the network then, the journal is written.
const roomsEnd = 10 * time.Second

// DefaultGrace is Config.Grace of a program that is told none.
const DefaultGrace = 20 * time.Second

// StopLimit is the most that a stop takes with that grace. Whoever ends the
// agent by force must wait for longer.
func StopLimit(grace time.Duration) time.Duration {
	return max(lastWords, grace+serve.TellTime) + roomsEnd
}

func (a *Agent) announceEnd() {
	if a.accepting.Load().leaves == "" { // else more was said already
		a.setAccepting(false, a.Upgrading())
	}
	a.announce()
}

// announce writes at once what this agent takes.
func (a *Agent) announce() {
	if a.fenced.Load() {
		return // the status is another agent's
	}
	a.changed()
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	if err := a.Links.Reports.Last(ctx, a.status()); err != nil {
		a.Log.Info("Failed to announce the shutdown", "reason", err.Error())
	}
}

// hear says that the Mac goes away, before it does, or that it is back.
func (a *Agent) hear(n power.Notice) {
	before := a.accepting.Load()
	switch {
	case n == power.Sleeps:
		a.accepting.Store(&acceptance{leaves: v1alpha1.ReasonMacSleeps, since: time.Now()})
	case n == power.ShutsDown:
		a.accepting.Store(&acceptance{leaves: v1alpha1.ReasonMacShutsDown, since: time.Now()})
	case before.leaves == "":
		return // it never went
	default:
		a.setAccepting(true, false)
	}
	a.Log.Info("Mac power state changed", "leaves", a.accepting.Load().leaves)
	a.announce()
}

func (a *Agent) setAccepting(yes, replaced bool) {
	a.accepting.Store(&acceptance{yes: yes, replaced: replaced, since: time.Now()})
}

// take remembers orders that were positively read, and follows them.
func (a *Agent) take(o journal.Orders) {
	before := a.journal.Snapshot().Orders
	if err := a.journal.Update(func(s *journal.State) { s.Orders = &o }); err != nil {
		a.Log.Error(err, "Desired state is applied but could not be stored")
	}
	if before != nil && before.UID != o.UID {
		a.Links.Reports.Again()
	}
	for _, bad := range o.Invalid {
		a.Log.Info("Cannot apply the desired state of a replica", "replicaUID", bad.ReplicaUID, "epoch", bad.Epoch, "reason", bad.Message)
	}
	a.follow(o)
	for _, reader := range []chan struct{}{a.ordered, a.settled} {
		select {
		case reader <- struct{}{}:
		default:
		}
	}
	a.upgrader.Set(o.Agent)
	a.prune(o)
}

// prune gives back what downloads left that no order wants. What an order
// wants that cannot be read is not known, so then nothing goes.
func (a *Agent) prune(o journal.Orders) {
	if len(o.Invalid) > 0 {
		return
	}
	wanted := map[string]bool{}
	for i := range o.Assignments {
		wanted[o.Assignments[i].Model.Digest] = o.Assignments[i].Desired != v1alpha1.DesiredDrained || wanted[o.Assignments[i].Model.Digest]
	}
	if err := a.store.Prune(func(digest string) bool { return wanted[digest] }); err != nil {
		a.Log.Error(err, "Failed to remove unused partial downloads")
	}
}

func (a *Agent) follow(o journal.Orders) {
	a.inspector.Set(o.Inspections)
	a.pool.Apply(o)
}

// changed says that there is something new to report.
func (a *Agent) changed() {
	select {
	case a.changes <- struct{}{}:
	default:
	}
}

// clip bounds a word for a status field.
func clip(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "")
	}
	return s
}
