package pool

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/wire"
)

// supervise starts the goroutines that every engine has from its start or
// adoption to its end: one follows its status, one waits for its process.
func (lc *lifecycle) supervise(e *entry, g *engine) {
	ctx, cancel := context.WithCancel(lc.life)
	followed := make(chan struct{})
	lc.tasks.Go(func() {
		defer close(followed)
		lc.follow(ctx, e, g)
	})
	lc.tasks.Go(func() {
		defer cancel()
		select {
		case <-g.proc.Done():
			cancel()
			<-followed
			_ = g.client.Close()
			lc.collect(e, g)
		case <-lc.life.Done():
			<-followed
			_ = g.client.Close()
			g.proc.Forget()
		}
	})
}

// follow says hello and then follows the engine's status until ctx ends.
func (lc *lifecycle) follow(ctx context.Context, e *entry, g *engine) {
	hello, cancel := context.WithTimeout(ctx, lc.Timing.Hello)
	h, err := g.hello(hello)
	cancel()
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if !exitsSoon(ctx, g) {
			lc.giveUp(e, g, v1alpha1.ReclaimLoadFailed, journal.Refusal{Reason: v1alpha1.ReasonLoadFailed, Message: err.Error()})
		}
		return
	}
	lc.change(func() { lc.backend = excerpt.Of(h.GetBackend(), maxBackend) })
	lc.tasks.Go(func() { lc.leaseDisk(ctx, e, g) }) // not waited for: a slow disk must not delay the end of a process
	var p pace
	p.reads, p.takes = rate.NewLimiter(statusReads, statusReads), rate.NewLimiter(statusRate, statusBurst)
	for {
		lc.watch(ctx, e, g, p)
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchAgain): // the stream broke and the process lives
		}
	}
}

// maxBackend bounds the name of a back end, in bytes.
const maxBackend = 64

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

// exitGrace is how long the exit status is waited for after a failed connection.
const exitGrace = time.Second

// watchAgain is the pause before a broken status stream is opened again.
const watchAgain = 100 * time.Millisecond

// An engine sends a status each Poll and when something changes. Of one that sends more,
// statusRate a second are taken after statusBurst, the newest each time: each may cause a
// poll. statusReads a second are read at most.
const statusRate, statusBurst, statusReads = 50, 100, 1000

// pace bounds how many statuses of an engine are read and taken.
type pace struct{ reads, takes *rate.Limiter }

// newest takes the statuses that recv returns until it fails, one at a time. Of those that
// come faster than the pace only the newest is taken; the last one always is.
func (p pace) newest(ctx context.Context, recv func() (*wire.Status, error), take func(*wire.Status)) {
	latest := make(chan *wire.Status, 1)
	go func() {
		defer close(latest)
		for {
			s, err := recv()
			if err != nil {
				return
			}
			select {
			case <-latest:
			default:
			}
			latest <- s
			_ = p.reads.Wait(ctx) // recv ends with ctx
		}
	}()
	for s := range latest {
		take(s)
		_ = p.takes.Wait(ctx) // the last one is taken after its end, too
	}
}

// watch follows one status stream to its end.
func (lc *lifecycle) watch(ctx context.Context, e *entry, g *engine, p pace) {
	stream, err := g.client.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: uint32(lc.Timing.Poll.Milliseconds())})
	if err != nil {
		return
	}
	p.newest(ctx, stream.Recv, func(s *wire.Status) { lc.observe(e, g, s) })
}

// observe takes one status message, as far as it is accepted.
func (lc *lifecycle) observe(e *entry, g *engine, s *wire.Status) {
	became := false
	if s.GetState() == wire.State_STATE_READY && lc.expected(g) {
		lc.mac.sample() // the first report of a serving engine carries its footprint
		became = true
	}
	asks := false
	lc.change(func() {
		now := time.Now()
		s = accepted(s, lc.mac.last().Total)
		first := g.status == nil
		worked := requestsOf(g.status) > 0
		if g.status, g.statusAt = s, now; worked && requestsOf(s) == 0 && len(g.holds) == 0 {
			lc.engineIdle() // its last hold was released before it reported the end of the request
		}
		asks = first || s.GetGuard().GetHeadroomRequest() > g.headroom.answered && g.headroom.victim == nil
		if g.firstStatus != nil {
			close(g.firstStatus)
			g.firstStatus = nil
		}
		if became = became && g.state == Loading; became {
			g.state, g.failure, g.readySince = Ready, nil, now
			if g.lastUse.IsZero() { // an adopted engine's may be known
				g.use(now)
			}
			lc.owner.ready(e, g, now)
		}
	})
	switch {
	case became:
		lc.Log.Info("Engine is ready", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "load", g.load, "pid", g.pid)
		lc.replan()
		lc.pollNow()
	case s.GetState() == wire.State_STATE_FAILED:
		lc.giveUp(e, g, v1alpha1.ReclaimLoadFailed, journal.Refusal{Reason: s.GetReason(), Message: s.GetMessage()})
	case asks:
		lc.pollNow() // it waits for its limits, or for the answer to its question
	}
}

// requestsOf counts the requests that an engine works on or queues.
func requestsOf(s *wire.Status) int64 {
	return s.GetActivity().GetRunning() + s.GetActivity().GetQueued()
}

// expected reports whether the engine is waited for.
func (lc *lifecycle) expected(g *engine) (yes bool) {
	lc.read(func() { yes = g.state == Loading })
	return yes
}

// giveUp ends an engine that cannot serve. Requests that wait for it get the
// reason at once.
func (lc *lifecycle) giveUp(e *entry, g *engine, as v1alpha1.ReclaimReason, why journal.Refusal) {
	why = why.Bounded()
	first := false
	lc.unload(e, as, func(current *engine) bool {
		if first = current == g && g.failure == nil; first {
			g.failure = &why
			lc.owner.gaveUp(e, why, time.Now())
		}
		return first
	})
	if first {
		lc.Log.Info("Engine failed; unloading it", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "load", g.load, "reason", why.Reason, "message", why.Message)
	}
}
