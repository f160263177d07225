package pool

import (
	"context"
	"slices"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Weights brings the files of a model to this Mac's disk.
type Weights interface {
	// Ensure returns the path of a file or folder that holds the record's
	// files, complete and verified. progress may be called at any rate. A
	// failure is a *DownloadError where its reason is known.
	Ensure(ctx context.Context, record model.Record, tokenRef string, progress func(done, total int64)) (path string, err error)
}

// Config configures a pool.
type Config struct {
	Log     logr.Logger
	Journal Journal
	Ledger  *memory.Ledger
	Probe   probe.Probe
	Weights Weights
	// Engine is the path of the engine program, and EngineEnv its environment.
	Engine    string
	EngineEnv []string
	// Engines starts and dials engines: process.System on a Mac.
	Engines process.Engines
	// Cache opens a lease for an engine to keep blocks of its model on this Mac's
	// disk, up to most bytes; nil if this Mac keeps none.
	Cache func(o kv.Origin, most func() int64) (CacheLease, error)
	// CacheDir is the folder of those blocks; an engine may write in the folder of its
	// model there, which PrepareCache makes before the engine starts.
	CacheDir     string
	PrepareCache func(model string) error
	// Sandbox is whether engines confine themselves.
	Sandbox wire.Sandbox
	// StateDir holds logs and, where the path is short enough, sockets.
	StateDir string
	Timing   Timing
	// Changed is called after each new Snapshot; Reclaimed after each reclaim.
	// Neither may block.
	Changed   func()
	Reclaimed func(v1alpha1.Reclaim)
}

func (c Config) withDefaults() Config {
	c.Timing = c.Timing.withDefaults()
	if c.Changed == nil {
		c.Changed = func() {}
	}
	if c.Reclaimed == nil {
		c.Reclaimed = func(v1alpha1.Reclaim) {}
	}
	return c
}

// Pool runs the engines of this Mac: it connects the state machine of its
// replicas, the life cycle of their engines, and the pressure loop. It is safe
// for concurrent use.
type Pool struct {
	log       logr.Logger
	registry  *registry
	replicas  *replicas
	requests  *requests
	lifecycle *lifecycle
	pressure  *pressure
	books     *bookkeeper

	// registry.mu guards what follows.
	snapshot   *Snapshot          // the last that was made
	conditions []metav1.Condition // of the Mac, as last published
}

// New returns a pool with the replicas of its journal; nothing runs before Adopt
// and Run.
func New(c Config) (*Pool, error) {
	c = c.withDefaults()
	f, err := newFiles(c.StateDir)
	if err != nil {
		return nil, err
	}
	p := connect(c, f)
	s := c.Journal.Snapshot()
	p.lifecycle.reclaims, p.lifecycle.freedTotal, p.lifecycle.indeterminate = s.Reclaims, s.FreedBytesTotal, s.IndeterminateReclaims
	p.pressure.gate.restore(s)
	for _, r := range s.Replicas {
		p.registry.entry(memory.Key{UID: r.ReplicaUID, Epoch: r.Epoch}).remember(r, time.Now())
	}
	p.registry.publish()
	return p, nil
}

// connect makes the parts and connects them at their interfaces.
func connect(c Config, f files) *Pool {
	reg := newRegistry(c.Ledger, c.Changed)
	rec := &recorder{registry: reg, log: c.Log, journal: c.Journal}
	mt := &meter{registry: reg, log: c.Log, timing: c.Timing, probe: c.Probe}
	sg := &startGate{meter: mt, recorder: rec}
	bk := &bookkeeper{registry: reg, recorder: rec, gate: sg}
	lc := &lifecycle{registry: reg, Config: c, recorder: rec, files: f, mac: mt, gate: sg, cacheless: map[string]time.Time{}}
	pr := &pressure{registry: reg, log: c.Log, timing: c.Timing, meter: mt, gate: sg, books: bk, recorder: rec, engines: lc, enforcer: memory.NewEnforcer()}
	rs := &replicas{registry: reg, log: c.Log, timing: c.Timing, weights: c.Weights, recorder: rec, engines: lc, room: pr, gate: sg}
	rq := &requests{registry: reg, timing: c.Timing, gate: sg}
	lc.owner = rs
	pr.afterPoll = func(r memory.Reading) {
		lc.boundLogs()
		lc.sweepLogs()
		lc.watchdogs(r)
		rq.refuseBlocked()
	}
	return &Pool{log: c.Log, registry: reg, replicas: rs, requests: rq, lifecycle: lc, pressure: pr, books: bk}
}

// Adopt takes over the engines that outlived an earlier agent and reclaims
// those that did not. It is called once, before Run and Apply.
func (p *Pool) Adopt(ctx context.Context) {
	p.pressure.meter.sample()
	p.lifecycle.adopt(ctx)
	p.registry.publish()
}

// Apply takes assignments that were positively read, or are known from then.
// Entries that they do not name are drained and forgotten.
func (p *Pool) Apply(o journal.Desired) {
	p.registry.change(func() {
		p.pressure.meter.setPolicy(o.Memory)
		p.replicas.apply(o)
	})
	p.registry.replan()
	p.registry.pollNow()
}

// Run derives and starts actions until ctx ends. Then it waits for its own
// goroutines and leaves the engines running.
func (p *Pool) Run(ctx context.Context) error {
	reg := p.registry
	stop := context.AfterFunc(ctx, reg.finish)
	defer stop()
	p.pressure.poll() // memory that adopted engines freed, or left, is measured before any start
	reg.tasks.Go(p.pressure.run)
	reg.tasks.Go(p.books.run)
	for reg.life.Err() == nil {
		again := p.replicas.pass(time.Now())
		timer := time.NewTimer(time.Until(again))
		if again.IsZero() {
			timer.Stop()
		}
		select {
		case <-reg.life.Done():
		case <-reg.planSignal:
		case <-timer.C:
			reg.publish() // a pause has ended, which conditions report
		}
		timer.Stop()
	}
	reg.tasks.Wait()
	if err := p.books.store(0); err != nil {
		p.log.Error(err, "Failed to store when engines were last used")
	}
	return ctx.Err()
}

// Acquire takes a hold on the engine of a replica and epoch, which ends with ctx
// at the latest. For an always-resident replica it does not wait: ErrNotHere or
// ErrNotReady report why there is no engine. An OnDemand engine is loaded, once
// for all waiting requests; they wait for at most Timing.LoadWait, and errNoRoom
// and errLoadFailed report why it was not loaded.
func (p *Pool) Acquire(ctx context.Context, uid string, epoch int64) (*Hold, error) {
	return p.requests.acquire(ctx, memory.Key{UID: uid, Epoch: epoch})
}

// Forget clears the prompt cache and the pooled memory of each serving engine,
// all at once, and returns what each freed. One that does not answer within Hello
// is listed without a figure. Requests continue.
func (p *Pool) Forget(ctx context.Context) []v1alpha1.EngineCleared {
	return p.pressure.clearCaches(ctx)
}

// EndOverfull ends the engines that may write to these folders of the cache, which take more of the
// disk than the engines were granted: one of them was taken over.
func (p *Pool) EndOverfull(folders []string) { p.lifecycle.endOverfull(folders) }

// Snapshot returns the current state. It is built on demand, because most changes
// are followed by others before it is read.
func (p *Pool) Snapshot() *Snapshot {
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	if p.registry.stale {
		p.snapshot, p.registry.stale = p.build(time.Now()), false
	}
	return p.snapshot
}

// build makes a snapshot; the caller holds the lock.
func (p *Pool) build(now time.Time) *Snapshot {
	m := p.pressure.memory()
	m.FreedBytesTotal, m.IndeterminateReclaims = p.lifecycle.freedTotal, p.lifecycle.indeterminate
	p.conditions = transition(p.conditions, p.pressure.macConditions(), now)
	return &Snapshot{
		Generation: p.replicas.generation, Assignments: p.replicas.reports(now), Memory: m,
		Reclaims: p.lifecycle.reclaims, Host: p.pressure.meter.last(), Backend: p.lifecycle.backend,
		Conditions: slices.Clone(p.conditions), Guards: p.replicas.guards(), Remembered: p.replicas.remembered(),
	}
}

// Endpoints returns the replicas that requests may name now, with their current
// holds (a Snapshot's may be older).
func (p *Pool) Endpoints() []Endpoint {
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	return p.replicas.endpoints()
}
