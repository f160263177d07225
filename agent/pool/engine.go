package pool

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// engine is one process from just before its start to its observed end. Pool.mu
// guards the fields behind config; proc, conn and client are set before any
// other goroutine sees the engine.
type engine struct {
	key    memory.Key
	load   int64
	record journal.Engine
	config wire.Config
	files  engineFiles

	proc   process.Handle
	pid    int
	client process.Conn

	// holds are the requests that use it. Their number is the active count.
	holds map[*Hold]struct{}
	// idle is closed when a draining engine has no hold left.
	idle chan struct{}
	// stop is why it was asked to end; nil while it was not.
	stop *stopping
	// ready since it said so.
	ready bool
	// gone since its end was seen; its reclaim may not be on disk yet.
	gone bool
	// failure it reported, or why it was given up while loading.
	failure *journal.Refusal

	status    *wire.Status
	heardAt   time.Time // of the status
	footprint int64     // last measured; 0: never
	measured  time.Time
	loadBegan time.Time
	// progress of the load: what was seen last, and since when it is that.
	progress   loadMark
	progressAt time.Time
	// lastUse is the end of its last hold, or its becoming ready; the journal
	// knows lastUseKept.
	lastUse, lastUseKept time.Time
	// asking: limits were sent at that time and not answered yet; zero: no.
	asking time.Time
	// behind: a poll found them unanswered and could send nothing newer.
	behind bool
	trim   trimming
	// aborting: an Abort goes on.
	aborting bool
	// limitsRefused: the last limits were not taken.
	limitsRefused bool
	headroom      headroom
	// heard is closed after the first status; nil afterwards.
	heard chan struct{}
}

// stopping is an unload under way.
type stopping struct {
	reason    v1alpha1.ReclaimReason
	since     time.Time
	footprint *int64
	// before is the host's memory just before the stop; alone says that no
	// other engine worked, so that a difference can be attributed.
	before probe.Host
	alone  bool
	// rung is how far the ladder was climbed; answered says that the engine
	// confirmed Shutdown.
	rung     rung
	answered bool
	killed   time.Time // when SIGKILL was sent; zero: it was not
	// told is closed when the call of Shutdown has returned.
	told chan struct{}
	// hurry ends running requests at once, with a typed error.
	hurry bool
}

// rung of the ladder that ends a process.
type rung int

const (
	rungDrain rung = iota
	rungShutdown
	rungTerm
	rungKill
)

// connect dials the engine; the first call waits for its socket.
func (g *engine) connect(engines process.Engines) (err error) {
	g.client, err = engines.Dial(g.record.Socket)
	return err
}

// child makes proc the engine's process.
func (g *engine) child(proc process.Handle) {
	g.proc = proc
	g.pid, _ = proc.ID()
}

// hello asks who listens on the socket and wants the engine that was started.
func (g *engine) hello(ctx context.Context) (*wire.HelloResponse, error) {
	h, err := g.client.Hello(ctx, &wire.HelloRequest{ProtocolVersions: []uint32{wire.ProtocolVersion}}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("engine does not answer: %w", err)
	}
	switch {
	case h.GetProtocolVersion() != wire.ProtocolVersion:
		return nil, fmt.Errorf("engine speaks protocol %d, this agent speaks %d", h.GetProtocolVersion(), wire.ProtocolVersion)
	case h.GetReplicaUid() != g.key.UID || h.GetEpoch() != g.key.Epoch:
		return nil, fmt.Errorf("engine serves replica %s epoch %d, want %s epoch %d", h.GetReplicaUid(), h.GetEpoch(), g.key.UID, g.key.Epoch)
	case h.GetConfigHash() != g.config.Hash():
		return nil, fmt.Errorf("engine was started with another configuration (hash %.12s, want %.12s)", h.GetConfigHash(), g.config.Hash())
	case h.GetPid() != int64(g.pid):
		return nil, fmt.Errorf("engine reports process ID %d, want %d", h.GetPid(), g.pid)
	}
	return h, nil
}

// attend begins what every engine has from its start or adoption to its end:
// a goroutine that talks with it, and one that sees its end.
func (p *Pool) attend(e *entry, g *engine) {
	talk, hush := context.WithCancel(p.life)
	talked := make(chan struct{})
	p.tasks.Go(func() {
		defer close(talked)
		p.talk(talk, e, g)
	})
	p.tasks.Go(func() {
		defer hush()
		select {
		case <-g.proc.Done():
			hush()
			<-talked
			_ = g.client.Close()
			p.collect(e, g)
		case <-p.life.Done():
			<-talked
			_ = g.client.Close()
			g.proc.Forget()
		}
	})
}

// talk says hello and then follows the engine's status until ctx ends.
func (p *Pool) talk(ctx context.Context, e *entry, g *engine) {
	hello, cancel := context.WithTimeout(ctx, p.Timing.Hello)
	h, err := g.hello(hello)
	cancel()
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if !exitsSoon(ctx, g) {
			p.giveUp(e, g, v1alpha1.ReclaimLoadFailed, journal.Refusal{Reason: v1alpha1.ReasonLoadFailed, Message: err.Error()})
		}
		return
	}
	p.change(func() { p.backend = h.GetBackend() })
	p.tasks.Go(func() { p.grantDisk(ctx, e, g) }) // not waited for here: the end of a process is seen whatever the disk does
	for {
		p.watch(ctx, e, g)
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchAgain): // the stream broke and the process lives
		}
	}
}

// exitsSoon waits a moment for the end of an engine whose connection failed. A
// process that dies closes its socket before the agent learns its exit status,
// and the exit status is the better explanation.
func exitsSoon(ctx context.Context, g *engine) bool {
	wait := time.NewTimer(exitGrace)
	defer wait.Stop()
	select {
	case <-g.proc.Done():
		return true
	case <-ctx.Done():
		return true
	case <-wait.C:
		return false
	}
}

// exitGrace is how long a failed connection waits for the exit status.
const exitGrace = time.Second

// watchAgain is the pause before a broken status stream is opened again.
const watchAgain = 100 * time.Millisecond

// watch follows one status stream to its end.
func (p *Pool) watch(ctx context.Context, e *entry, g *engine) {
	stream, err := g.client.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: uint32(p.Timing.Poll.Milliseconds())})
	if err != nil {
		return
	}
	for {
		s, err := stream.Recv()
		if err != nil {
			return
		}
		p.observe(e, g, s)
	}
}

// observe takes one status message.
func (p *Pool) observe(e *entry, g *engine, s *wire.Status) {
	became := false
	if s.GetState() == wire.State_STATE_READY && p.expected(g) {
		p.Fault(FaultLoadReady)
		p.look() // the first report of a serving engine carries its footprint
		became = true
	}
	asks := false
	p.change(func() {
		now := time.Now()
		first := g.status == nil
		g.status, g.heardAt = s, now
		asks = first || s.GetGuard().GetHeadroomRequest() > g.headroom.answered && g.headroom.victim == nil
		if g.heard != nil {
			close(g.heard)
			g.heard = nil
		}
		if became = became && g.stop == nil; became {
			g.ready, g.failure = true, nil
			e.state, e.failure = Ready, nil
			e.canary = &v1alpha1.Canary{Time: metav1.NewTime(now.Truncate(time.Second))} // it is ready because it generated one
			if g.lastUse.IsZero() {                                                      // an adopted engine's may be known
				g.use(now)
			}
			e.grant(g)
		}
	})
	switch {
	case became:
		p.Log.Info("Engine is ready", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "load", g.load, "pid", g.pid)
		p.wake()
		p.poke()
	case s.GetState() == wire.State_STATE_FAILED:
		p.giveUp(e, g, v1alpha1.ReclaimLoadFailed, journal.Refusal{Reason: s.GetReason(), Message: s.GetMessage()})
	case asks:
		p.poke() // it waits for its limits, or for the answer to its question
	}
}

// expected reports whether the engine is waited for.
func (p *Pool) expected(g *engine) (yes bool) {
	p.read(func() { yes = !g.ready && g.stop == nil })
	return yes
}

// giveUp ends an engine that cannot serve. Whoever waits for it is told at once.
func (p *Pool) giveUp(e *entry, g *engine, as v1alpha1.ReclaimReason, why journal.Refusal) {
	fresh := false
	p.change(func() {
		if fresh = g.failure == nil && g.stop == nil; fresh {
			g.failure = &why
			g.ready = false
			e.disappoint(e.failedLoad(why, time.Now()))
		}
	})
	if fresh {
		p.Log.Info("Engine failed; unloading it", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "load", g.load, "reason", why.Reason, "message", why.Message)
		p.unload(e, as, nil)
	}
}
