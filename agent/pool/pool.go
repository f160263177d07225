package pool

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/integrity"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
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

// Config is what a pool is made of.
type Config struct {
	Log     logr.Logger
	Journal Journal
	Ledger  *memory.Ledger
	Probe   probe.Probe
	Weights Weights
	// Engine is the program, and EngineEnv its environment.
	Engine    string
	EngineEnv []string
	// Engines starts and dials engines; nil means processes of this machine.
	Engines process.Engines
	// Cache opens an engine's leave to keep blocks of its model on this Mac's disk,
	// which may take so many bytes there; nil where this Mac keeps none.
	Cache func(o kv.Origin, most func() int64) (CacheLease, error)
	// CacheDir is the folder of those blocks, in which engines may write that of their
	// model. PrepareCache makes the latter before an engine starts.
	CacheDir     string
	PrepareCache func(model string) error
	// Sandbox says whether engines confine themselves.
	Sandbox wire.Sandbox
	// StateDir holds logs and, where the path is short enough, sockets.
	StateDir string
	Timing   Timing
	// Changed is called after each new Snapshot; Reclaimed after each reclaim.
	// Neither may block.
	Changed   func()
	Reclaimed func(v1alpha1.Reclaim)
	// Fault is called at each of FaultPoints, for tests that end the agent
	// there; nil in production.
	Fault func(point string)
}

// Pool holds the engines of this Mac. It is safe for concurrent use.
type Pool struct {
	Config
	files files
	// wakes makes Run plan, pokes makes enforce look at the Mac, and stirs
	// makes it look as often as while an engine works.
	wakes, pokes, stirs chan struct{}
	// books makes bookkeep write down what polls found.
	books chan struct{}
	// boot names this boot of the machine; empty where it is not known.
	boot string
	// enforcer belongs to the goroutine of enforce alone.
	enforcer *memory.Enforcer
	// life ends with Run: the supervisor stops, engines live on.
	life   context.Context
	finish context.CancelFunc
	tasks  sync.WaitGroup

	mu         sync.Mutex // guards what follows, and all entries; held for memory work only
	entries    map[memory.Key]*entry
	policy     v1alpha1.MacMemoryPolicy
	generation int64
	host       probe.Host
	hostKnown  bool
	measuredAt time.Time
	reclaims   []v1alpha1.Reclaim
	freedTotal int64
	// indeterminate counts reclaims whose host check could not be made.
	indeterminate int64
	backend       string
	decision      memory.Decision // of the last poll
	polled        time.Time       // when that was; zero: never
	stranding     memory.Stranding
	evidenceKept  memory.Evidence // of stranding, as the journal has it
	unsettledKept bool            // as the journal has it
	ends          int64           // processes that were seen to end
	unsaved       string          // why the journal could not be written last; empty: it could
	divergence    memory.Divergence
	mac           macFindings
	conditions    []metav1.Condition // of the Mac, as last published

	// snapshot is the last that was made; stale: something changed since.
	snapshot *Snapshot
	stale    bool
}

// New makes a pool from its journal: it remembers replicas, and nothing runs
// before Adopt and Run.
func New(c Config) (*Pool, error) {
	c.Timing = c.Timing.withDefaults()
	if c.Changed == nil {
		c.Changed = func() {}
	}
	if c.Reclaimed == nil {
		c.Reclaimed = func(v1alpha1.Reclaim) {}
	}
	if c.Fault == nil {
		c.Fault = func(string) {}
	}
	if c.Engines == nil {
		program, err := integrity.Of(filepath.Dir(c.Engine), filepath.Base(c.Engine))
		if err != nil {
			return nil, err
		}
		c.Engines = process.System{Probe: c.Probe, Program: program}
	}
	f, err := newFiles(c.StateDir)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		Config: c, files: f, wakes: make(chan struct{}, 1), pokes: make(chan struct{}, 1), stirs: make(chan struct{}, 1),
		books:    make(chan struct{}, 1),
		enforcer: memory.NewEnforcer(), entries: map[memory.Key]*entry{},
	}
	p.life, p.finish = context.WithCancel(context.Background())
	s := c.Journal.Snapshot()
	p.reclaims, p.freedTotal, p.indeterminate = s.Reclaims, s.FreedBytesTotal, s.IndeterminateReclaims
	p.restoreWired(s)
	for _, r := range s.Replicas {
		p.entry(memory.Key{UID: r.ReplicaUID, Epoch: r.Epoch}).remember(r, time.Now())
	}
	p.publish()
	return p, nil
}

// entry finds an entry or makes one; the caller holds mu, or is New.
func (p *Pool) entry(k memory.Key) *entry {
	e := p.entries[k]
	if e == nil {
		e = &entry{key: k, state: Absent}
		p.entries[k] = e
	}
	return e
}

// Apply takes orders that were positively read, or remembered from then.
// Entries they do not name are drained and forgotten.
func (p *Pool) Apply(o journal.Orders) {
	p.change(func() {
		p.generation, p.policy = o.Generation, o.Memory
		p.setLedger()
		for _, e := range p.entries {
			e.want = wantGone
		}
		for _, bad := range o.Invalid {
			for k, e := range p.entries { // whatever of it runs goes on
				if k.UID == bad.ReplicaUID {
					e.want = wantInvalid
				}
			}
			e := p.entry(memory.Key{UID: bad.ReplicaUID, Epoch: bad.Epoch})
			e.want, e.invalid = wantInvalid, bad.Message
		}
		for _, a := range o.Assignments {
			e := p.entry(memory.Key{UID: a.ReplicaUID, Epoch: a.Epoch})
			if e.reserved && e.engine == nil && e.order.ReservedBytes != a.ReservedBytes {
				p.Ledger.Release(e.key) // asked for again, as it is ordered now
				e.reserved, e.state = false, Absent
			}
			e.take(a)
		}
		for _, e := range p.entries {
			if e.want != wantRunning { // whoever waits for a load waits in vain
				e.disappoint(&NotReadyError{State: e.state, RetryAfter: notReadyRetry})
			}
		}
		p.roomChanged()
	})
	p.wake()
	p.poke()
}

// setLedger tells the ledger what the machine and the administrator allow; the
// caller holds mu.
func (p *Pool) setLedger() {
	if !p.hostKnown {
		return
	}
	h := footprint.Host{Total: p.host.Total, MetalCap: p.host.MetalCap, Policy: footprint.Policy(p.policy.Policy)}
	if p.policy.Ceiling != nil {
		h.Explicit = p.policy.Ceiling.Value()
	}
	p.Ledger.SetHost(h)
}

// Run derives and starts actions until ctx ends. Then it waits for its own
// goroutines and leaves the engines running.
func (p *Pool) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.finish)
	defer stop()
	p.poll() // what adopted engines gave back, or left, is seen before anything is started
	p.tasks.Go(p.enforce)
	p.tasks.Go(p.bookkeep)
	for p.life.Err() == nil {
		again := p.pass(time.Now())
		timer := time.NewTimer(time.Until(again))
		if again.IsZero() {
			timer.Stop()
		}
		select {
		case <-p.life.Done():
		case <-p.wakes:
		case <-timer.C:
			p.publish() // a pause has ended, which conditions speak of
		}
		timer.Stop()
	}
	p.tasks.Wait()
	if err := p.saveBooks(0); err != nil {
		p.Log.Error(err, "Failed to store when engines were last used")
	}
	return ctx.Err()
}

// pass plans on a snapshot of the entries and executes the plan, until there
// is nothing to do at once. It returns when to look again.
func (p *Pool) pass(now time.Time) time.Time {
	for {
		actions, again := plan(p.views(), now)
		if len(actions) == 0 {
			return again
		}
		for _, a := range actions {
			p.execute(a)
		}
	}
}

func (p *Pool) views() []view {
	p.mu.Lock()
	defer p.mu.Unlock()
	views := make([]view, 0, len(p.entries))
	for _, e := range p.entries {
		views = append(views, e.view(p.hostKnown, p.mayStart()))
	}
	slices.SortFunc(views, func(a, b view) int { return byKey(a.key, b.key) })
	return views
}

func byKey(a, b memory.Key) int {
	return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Epoch, b.Epoch))
}

// execute begins one action. Each leaves a mark in its entry, so that the next
// plan does not name it again.
func (p *Pool) execute(a action) {
	p.mu.Lock()
	e := p.entries[a.key]
	p.mu.Unlock()
	switch a.step {
	case stepDownload:
		p.download(e)
	case stepCancelDownload:
		p.change(e.download.end)
	case stepReserve:
		p.reserve(e)
	case stepPromise:
		p.promise(e)
	case stepLoad:
		p.load(e)
	case stepUnload:
		p.unload(e, a.reason, nil)
	case stepUnreserve:
		p.Ledger.Release(e.key)
		p.change(func() {
			e.reserved, e.state = false, Absent
			p.roomChanged()
		})
	case stepRelease:
		p.release(e)
	case stepForget:
		p.forget(e)
	default:
		panic(fmt.Sprintf("pool: plan named the unknown step %d", a.step))
	}
}

// change does memory work under the lock and publishes the result.
func (p *Pool) change(f func()) {
	p.mu.Lock()
	f()
	p.stale = true
	p.mu.Unlock()
	p.Changed()
}

// read does a copy under the lock.
func (p *Pool) read(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// wake makes the loop plan again.
func (p *Pool) wake() {
	select {
	case p.wakes <- struct{}{}:
	default:
	}
}

// poke has the Mac looked at now.
func (p *Pool) poke() {
	select {
	case p.pokes <- struct{}{}:
	default:
	}
}
