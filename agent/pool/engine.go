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
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/wire"
)

// engine is one process from just before its start to its observed end. registry.mu
// guards the fields after config; proc, conn and client are set before any
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
	unsent *wire.Unsent

	// holds are the requests that use it. Their number is the active count.
	holds map[*Hold]struct{}
	// idle is closed when a draining engine has no hold left.
	idle chan struct{}
	// state is one of Starting, Loading, Ready, Draining, Stopping and Exited. An
	// engine whose end was observed stays Exited until its reclaim is on disk.
	state State
	// stop is why it was asked to end, or how it ended; nil until then.
	stop *stopping
	// failure that it reported, or the reason why its load was given up.
	failure *journal.Refusal

	status    *wire.Status
	statusAt  time.Time // time of the status
	footprint int64     // last measured; 0: never
	measured  time.Time
	// unmeasured is for how long it could not be measured while another engine could, less the
	// time that it could, up to watched.
	unmeasured time.Duration
	watched    time.Time
	loadBegan  time.Time
	// progress is the most that was seen of the load, and progressAt since when.
	progress   loadMark
	progressAt time.Time
	readySince time.Time // zero: it was not ready yet
	// lastUse is the end of its last hold, or the time when it became ready; the
	// journal has lastUseKept.
	lastUse, lastUseKept time.Time
	// limitsSentAt is when limits were sent that are not answered yet; zero: none.
	limitsSentAt time.Time
	// limitsSent is the sequence of the last limits that were sent; 0: none.
	limitsSent int64
	// resend: a poll found them unanswered and could not send newer ones.
	resend bool
	trim   trimming
	// aborting: an Abort call is running.
	aborting bool
	// limitsRefused: the last limits were not taken.
	limitsRefused bool
	// untakenSince is when the first limits were sent after those that it took; zero: it took the last.
	untakenSince time.Time
	headroom     headroom
	// firstStatus is closed after the first status; nil afterwards.
	firstStatus chan struct{}
}

// stopping is an unload under way.
type stopping struct {
	reason    v1alpha1.ReclaimReason
	since     time.Time
	footprint *int64
	// before is the host's memory just before the stop; alone: no other
	// engine was there, so that a difference can be attributed.
	before probe.Host
	alone  bool
	// rung is the last step of the stop sequence; answered: the engine confirmed
	// Shutdown.
	rung     rung
	answered bool
	killed   time.Time // when SIGKILL was sent; zero: it was not
	// until then its requests may go on; sooner is closed when that was shortened.
	until  time.Time
	sooner chan struct{}
	// returned is closed when the call of Shutdown has returned.
	returned chan struct{}
	// hurry ends running requests at once, with a typed error.
	hurry bool
	// patience ends, by kill, when the engine gets no more time to end by itself;
	// set by unload.
	patience context.Context
	kill     context.CancelFunc
}

// rung is a step of the sequence that stops a process.
type rung int

const (
	rungDrain rung = iota
	rungShutdown
	rungTerm
	rungKill
)

// trimming is the last request for an engine's pooled bytes.
type trimming struct {
	asked, acknowledged time.Time // zero: never
	running             bool
}

// headroom are the requests of an engine's guard for more memory: each is answered
// once, after at most one idle engine was evicted for it or none was found.
type headroom struct {
	// answered is the newest request that was handled, and sent the newest of
	// which the engine got the answer.
	answered, sent int64
	// seen is the newest one in the last reading; later ones were not considered.
	seen int64
	// tied is the request that waits for the end of victim, and of all other
	// engines that are being unloaded then.
	tied   int64
	victim *engine
}

// alive reports whether it has a process whose end was not observed; the caller
// holds registry.mu.
func (g *engine) alive() bool { return g.state != Starting && g.state != Exited }

// leaving reports whether it was asked to end or has ended; the caller holds
// registry.mu.
func (g *engine) leaving() bool {
	return g.state == Draining || g.state == Stopping || g.state == Exited
}

// lasts reports whether its requests may go on for longer than those of an engine
// that is ended for another model; the caller holds registry.mu.
func (g *engine) lasts(now time.Time) bool {
	return g.state == Draining && g.stop != nil && g.stop.until.Sub(now) > longestYield
}

// yielding reports whether its requests finish because another model needs its
// memory, so that new ones are not to wait for it; the caller holds registry.mu.
func (g *engine) yielding() bool {
	return g != nil && g.state == Draining && g.stop.reason == v1alpha1.ReclaimMadeRoom && len(g.holds) > 0
}

// active reports whether the engine's memory use changes: it loads, ends, or
// works on requests. The caller holds registry.mu.
func (g *engine) active() bool {
	a := g.status.GetActivity()
	return g.state != Ready || len(g.holds) > 0 || a.GetRunning()+a.GetQueued() > 0
}

// connect dials the engine; the first call waits for its socket.
func (g *engine) connect(engines process.Engines, unsent *wire.Unsent) (err error) {
	g.unsent = unsent.ToOne()
	g.client, err = engines.Dial(g.record.Socket, func() int { return g.pid }) // which is set before the first call
	return err
}

// child makes proc the engine's process.
func (g *engine) child(proc process.Handle) {
	g.proc, g.state = proc, Loading
	g.pid, _ = proc.ID()
}

// hello checks that the process on the socket is the engine that was started.
func (g *engine) hello(ctx context.Context) (*wire.HelloResponse, error) {
	h, err := g.client.Hello(ctx, &wire.HelloRequest{ProtocolVersions: []uint32{wire.ProtocolVersion}}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("engine does not answer: %w", excerpt.Error(err))
	}
	switch {
	case h.GetProtocolVersion() != wire.ProtocolVersion:
		return nil, fmt.Errorf("engine speaks protocol %d, this agent speaks %d", h.GetProtocolVersion(), wire.ProtocolVersion)
	case h.GetReplicaUid() != g.key.UID || h.GetEpoch() != g.key.Epoch:
		return nil, fmt.Errorf("engine serves replica %.64s epoch %d, want %s epoch %d", h.GetReplicaUid(), h.GetEpoch(), g.key.UID, g.key.Epoch)
	case h.GetConfigHash() != g.config.Hash():
		return nil, fmt.Errorf("engine was started with another configuration (hash %.12s, want %.12s)", h.GetConfigHash(), g.config.Hash())
	case h.GetPid() != int64(g.pid):
		return nil, fmt.Errorf("engine reports process ID %d, want %d", h.GetPid(), g.pid)
	}
	return h, nil
}

// checkIdle signals a drain that waits for the last hold; the caller holds registry.mu.
func (g *engine) checkIdle() {
	if g.idle != nil && len(g.holds) == 0 {
		close(g.idle)
		g.idle = nil
	}
}

// wanted returns the bytes that the guard's open request asks for, and records
// which request that is; the caller holds registry.mu.
func (g *engine) wanted() int64 {
	guard := g.status.GetGuard()
	g.headroom.seen = guard.GetHeadroomRequest()
	if guard.GetHeadroomRequest() <= g.headroom.answered || g.headroom.victim != nil {
		return 0
	}
	return g.asks()
}

// asks returns the bytes that the guard's newest request asks for, at most those that the
// engine's own limit leaves: for more no other engine has to end. What counts as its use, by its
// own figures too, is not asked for again. The caller holds registry.mu.
func (g *engine) asks() int64 {
	bytes, limit := g.status.GetGuard().GetHeadroomBytes(), g.config.LimitBytes
	if limit <= 0 {
		return bytes
	}
	m := g.status.GetMemory()
	pooled := min(m.GetPooledBytes(), limit/2) // is used first
	if g.state == Loading {
		pooled = 0
	}
	return min(bytes, max(0, limit-max(g.footprint-pooled, m.GetActiveBytes(), accounted(m))))
}

// use records a use: the idle time begins again. The caller holds registry.mu.
func (g *engine) use(now time.Time) {
	if now.After(g.lastUse) {
		g.lastUse = now
	}
}

// held is the last measured footprint; nil: never measured.
func (g *engine) held() *int64 {
	if g.footprint <= 0 {
		return nil
	}
	n := g.footprint
	return &n
}

// stalled returns how long the load has made no progress; the caller holds
// registry.mu. The footprint of a process that does nothing moves as well, so only
// another thousandth of its bytes, or hundredth of its limit, is progress: a large model is read
// from a slow disk for hours. There are few of these, also for an engine that was taken over.
func (g *engine) stalled(r memory.EngineReading, now time.Time) time.Duration {
	load := g.status.GetLoad()
	mark := loadMark{bytes: parts(1000, load.GetBytesDone(), load.GetBytesTotal()), footprint: parts(100, r.Footprint, g.config.LimitBytes)}
	if mark.bytes > g.progress.bytes || mark.footprint > g.progress.footprint {
		g.progress, g.progressAt = loadMark{max(mark.bytes, g.progress.bytes), max(mark.footprint, g.progress.footprint)}, now
	}
	return now.Sub(g.progressAt)
}

// parts returns how many of n equal parts of whole are done, at most n.
func parts(n, done, whole int64) int64 {
	if whole <= 0 {
		return 0
	}
	return int64(float64(n) * min(1, float64(done)/float64(whole)))
}
