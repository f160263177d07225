package pool

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

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

	proc   *process.Process
	conn   *grpc.ClientConn
	client wire.EngineClient

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
	footprint int64 // last measured; 0: never
	measured  time.Time
	loadBegan time.Time
	// asking: limits were sent and not answered yet.
	asking bool
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
func (g *engine) connect() error {
	conn, err := wire.Dial(g.record.Socket)
	if err != nil {
		return err
	}
	g.conn, g.client = conn, wire.NewEngineClient(conn)
	return nil
}

// hello asks who listens on the socket and wants the engine that was started.
func (g *engine) hello(ctx context.Context) (*wire.HelloResponse, error) {
	h, err := g.client.Hello(ctx, &wire.HelloRequest{ProtocolVersions: []uint32{wire.ProtocolVersion}}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("engine does not answer: %w", err)
	}
	switch {
	case h.GetProtocolVersion() != wire.ProtocolVersion:
		return nil, fmt.Errorf("engine speaks protocol %d, this agent %d", h.GetProtocolVersion(), wire.ProtocolVersion)
	case h.GetReplicaUid() != g.key.UID || h.GetEpoch() != g.key.Epoch:
		return nil, fmt.Errorf("engine serves replica %s epoch %d, want %s epoch %d", h.GetReplicaUid(), h.GetEpoch(), g.key.UID, g.key.Epoch)
	case h.GetConfigHash() != g.config.Hash():
		return nil, fmt.Errorf("engine was started with another configuration (hash %.12s, want %.12s)", h.GetConfigHash(), g.config.Hash())
	case h.GetPid() != int64(g.proc.PID):
		return nil, fmt.Errorf("engine says it is process %d, want %d", h.GetPid(), g.proc.PID)
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
			_ = g.conn.Close()
			p.collect(e, g)
		case <-p.life.Done():
			<-talked
			_ = g.conn.Close()
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
		p.giveUp(e, g, v1alpha1.ReasonLoadFailed, err.Error())
		return
	}
	p.change(func() { p.backend = h.GetBackend() })
	for {
		p.watch(ctx, e, g)
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchAgain): // the stream broke and the process lives
		}
	}
}

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
		p.measure(g) // the first report of a serving engine carries its footprint
		p.measureHost()
		became = true
	}
	p.change(func() {
		g.status = s
		if g.heard != nil {
			close(g.heard)
			g.heard = nil
		}
		if became = became && g.stop == nil; became {
			g.ready, g.failure = true, nil
			e.state, e.failure = Ready, nil
		}
	})
	switch {
	case became:
		p.Log.Info("Engine is ready", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "load", g.load, "pid", g.proc.PID)
		p.wake()
	case s.GetState() == wire.State_STATE_FAILED:
		p.giveUp(e, g, s.GetReason(), s.GetMessage())
	}
}

// expected reports whether the engine is waited for.
func (p *Pool) expected(g *engine) (yes bool) {
	p.read(func() { yes = !g.ready && g.stop == nil })
	return yes
}

// giveUp ends an engine that cannot serve.
func (p *Pool) giveUp(e *entry, g *engine, reason, message string) {
	fresh := false
	p.change(func() {
		if fresh = g.failure == nil && g.stop == nil; fresh {
			g.failure = &journal.Refusal{Reason: reason, Message: message}
			g.ready = false
		}
	})
	if fresh {
		p.Log.Info("Engine is given up", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "load", g.load, "reason", reason, "message", message)
		p.unload(e, v1alpha1.ReclaimLoadFailed)
	}
}
