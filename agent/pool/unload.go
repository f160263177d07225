package pool

import (
	"cmp"
	"context"
	"errors"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/wire"
)

// unload is the only way in which an engine is ended. It marks the engine as
// draining, unless it is ending already or only (called under the lock) returns
// false, and drains and stops it in a goroutine; collect does the rest once the
// end of the process was observed. It reports whether it began.
func (lc *lifecycle) unload(e *entry, reason v1alpha1.ReclaimReason, only func(*engine) bool) bool {
	var g *engine
	lc.change(func() {
		if e.engine == nil || !e.engine.alive() || e.engine.leaving() || only != nil && !only(e.engine) {
			return
		}
		g = e.engine
		if e.assignment.ReplicaUID != "" {
			g.record.DrainSeconds = e.assignment.DrainSeconds // it may have been changed since the start
		}
		g.stop = &stopping{reason: reason, since: time.Now(), hurry: hurried(reason) || g.failure != nil, returned: make(chan struct{}), sooner: make(chan struct{})}
		g.stop.patience, g.stop.kill = context.WithCancel(lc.life)
		if old := g.record.Stop; old != nil { // an earlier agent began it
			g.stop.reason, g.stop.since, g.stop.footprint = old.Reason, earlier(old.Since, time.Now()), old.Footprint
		}
		g.stop.until = g.stop.since.Add(g.drainTime())
		g.state, e.state = Draining, Draining
	})
	if g == nil {
		return false
	}
	lc.Log.Info("Unloading engine", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "load", g.load, "reason", reason)
	lc.tasks.Go(func() {
		lc.recordStop(g)
		if lc.drain(g) {
			lc.stopEngine(e, g)
		}
	})
	return true
}

// hurried reasons do not wait for running requests: the memory is needed now.
func hurried(r v1alpha1.ReclaimReason) bool {
	switch r {
	case v1alpha1.ReclaimHardPressure, v1alpha1.ReclaimEmergency, v1alpha1.ReclaimOverLimit, v1alpha1.ReclaimLoadCancelled:
		return true
	}
	return false
}

// recordStop writes to the journal that the engine was asked to end, and what it
// held.
func (lc *lifecycle) recordStop(g *engine) {
	lc.recorder.record(func(s *journal.State) {
		if of := s.Engine(g.key.UID, g.key.Epoch); of == nil || of.Load != g.load {
			return // it ended and was collected meanwhile, and another may have been started
		}
		lc.read(func() {
			g.record.Stop = &journal.Stop{Reason: g.stop.reason, Since: g.stop.since, Footprint: g.stop.footprint}
			s.PutEngine(g.record)
		})
	}, nil)
}

// drainTime is how long the requests of an engine that is ended may take; the
// caller holds registry.mu.
func (g *engine) drainTime() time.Duration {
	drain := time.Duration(g.record.DrainSeconds) * time.Second
	switch {
	case g.stop.hurry:
		return 0
	case g.stop.reason == v1alpha1.ReclaimMadeRoom:
		return min(drain, longestYield)
	}
	return drain
}

// drain waits until no request uses the engine, or its deadline. It reports
// false when the process ended, or the agent.
func (lc *lifecycle) drain(g *engine) bool {
	idle := make(chan struct{})
	var deadline time.Time
	lc.read(func() {
		deadline = g.stop.until
		g.idle = idle
		g.checkIdle()
	})
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	sooner := g.stop.sooner
	for {
		select {
		case <-sooner:
			sooner = nil
			lc.read(func() { deadline = g.stop.until })
			timer.Reset(time.Until(deadline))
			continue
		case <-idle:
		case <-timer.C:
		case <-g.stop.patience.Done():
		case <-g.proc.Done():
		}
		return !lc.over(g)
	}
}

// hasten gives the requests of an engine that drains no longer than those of one
// that is ended for another model. It reports whether they had longer.
func (lc *lifecycle) hasten(e *entry) (yes bool) {
	lc.change(func() {
		g, now := e.engine, time.Now()
		if yes = g != nil && g.lasts(now); yes {
			g.stop.until = now.Add(longestYield)
			close(g.stop.sooner)
		}
	})
	if yes {
		lc.Log.Info("Shortened a drain because another model waits for the memory", "ModelReplica", e.key.UID)
	}
	return yes
}

// stopEngine escalates from Shutdown to SIGTERM and SIGKILL, each with time in
// proportion to the engine's memory, which may be more than this Mac has: the rest is
// swapped out, and gets no time.
func (lc *lifecycle) stopEngine(e *entry, g *engine) {
	lc.change(func() { g.state, e.state = Stopping, Stopping })
	held, _ := lc.mac.measure(g)
	host, hostErr := lc.mac.hostNow()
	var resident int64 // at most
	lc.change(func() {
		resident = min(held, cmp.Or(host.Total, lc.mac.last().Total, held))
		if held > 0 {
			g.stop.footprint = &held
		}
		if hostErr == nil {
			g.stop.before = host
		}
		g.stop.alone = lc.alone(g)
		g.stop.rung = rungShutdown
	})
	lc.recordStop(g)
	extra := time.Duration(resident/footprint.MiB) * lc.Timing.StopPerGiB / 1024
	stop, term := lc.Timing.Stop, lc.Timing.Term
	if g.stop.hurry {
		stop, term = min(stop, lc.Timing.HurriedStop), term/2
	}
	if lc.shutdown(g, stop+extra) {
		return
	}
	if lc.signal(g, rungTerm, syscall.SIGTERM, term+extra) {
		return
	}
	lc.signal(g, rungKill, syscall.SIGKILL, 0)
}

// shutdown asks the engine to end and waits for the observed exit. Requests
// that still run get their terminal error from the engine.
func (lc *lifecycle) shutdown(g *engine, limit time.Duration) (ended bool) {
	ctx, cancel := context.WithTimeout(g.stop.patience, limit)
	defer cancel()
	if _, err := g.client.Shutdown(ctx, &wire.ShutdownRequest{}); err == nil {
		lc.read(func() { g.stop.answered = true })
	}
	close(g.stop.returned)
	select {
	case <-g.proc.Done():
		return true
	case <-ctx.Done():
		return lc.over(g)
	}
}

// over reports whether the process has ended, or the agent.
func (lc *lifecycle) over(g *engine) bool {
	select {
	case <-g.proc.Done():
		return true
	default:
		return lc.life.Err() != nil
	}
}

// kill sends an engine that is being unloaded SIGKILL as the next step: it gets no
// more time to end by itself.
func (lc *lifecycle) kill(e *entry) {
	lc.read(func() {
		if g := e.engine; g != nil && g.stop != nil && g.stop.kill != nil {
			g.stop.kill()
		}
	})
}

// signalAgain is the pause before a signal that could not be sent is sent again.
const signalAgain = 100 * time.Millisecond

// signal sends one and waits for the observed exit; a limit of 0 waits for ever.
func (lc *lifecycle) signal(g *engine, r rung, s syscall.Signal, limit time.Duration) (ended bool) {
	lc.Log.Info("Engine does not exit; sending a signal", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "pid", g.pid, "signal", s.String())
	lc.read(func() { g.stop.rung = r })
	var late <-chan time.Time
	var killed <-chan struct{}
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late, killed = timer.C, g.stop.patience.Done()
	}
	for first := true; ; first = false {
		var again <-chan time.Time
		if !lc.send(g, s, first) {
			again = time.After(signalAgain)
		}
		select {
		case <-again:
			continue
		case <-g.proc.Done():
			return true
		case <-lc.life.Done():
			return true
		case <-killed:
			return lc.over(g)
		case <-late:
			return false
		}
	}
}

// send reports whether a signal was sent or the process is gone. It may fail for a while: the agent has
// no descriptor left to make sure that the process is the engine, say.
func (lc *lifecycle) send(g *engine, s syscall.Signal, first bool) bool {
	err := g.proc.Signal(s)
	if err != nil && first {
		lc.Log.Error(err, "Cannot signal engine", "pid", g.pid)
	}
	if err != nil && !errors.Is(err, probe.ErrGone) {
		return false
	}
	if s == syscall.SIGKILL {
		lc.read(func() { g.stop.killed = time.Now() })
	}
	return true
}
