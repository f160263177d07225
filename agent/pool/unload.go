package pool

import (
	"context"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/wire"
)

// unload is the one way an engine is ended, whatever the reason. It marks the
// engine, unless it goes already or only says no under the lock, and climbs the
// ladder in a goroutine; collect does the rest once the process was seen to
// end. It reports whether it began.
func (p *Pool) unload(e *entry, reason v1alpha1.ReclaimReason, only func(*engine) bool) bool {
	var g *engine
	p.change(func() {
		if e.engine == nil || e.engine.stop != nil || e.engine.proc == nil || only != nil && !only(e.engine) {
			return
		}
		g = e.engine
		if e.order.ReplicaUID != "" {
			g.record.DrainSeconds = e.order.DrainSeconds // it may have been changed since the start
		}
		g.stop = &stopping{reason: reason, since: time.Now(), hurry: hurried(reason) || g.failure != nil, told: make(chan struct{})}
		if old := g.record.Stop; old != nil { // an agent before us began it
			g.stop.reason, g.stop.since, g.stop.footprint = old.Reason, earlier(old.Since, time.Now()), old.Footprint
		}
		g.ready, e.state = false, Draining
	})
	if g == nil {
		return false
	}
	p.Log.Info("Unloading engine", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "load", g.load, "reason", reason)
	p.Fault(FaultUnloadBegun)
	p.tasks.Go(func() {
		p.recordStop(g)
		p.Fault(FaultUnloadRecorded)
		if p.drain(g) {
			p.Fault(FaultUnloadDrained)
			p.stopEngine(e, g)
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

// recordStop writes down that the engine was asked to end, and what it held.
func (p *Pool) recordStop(g *engine) {
	p.record(func(s *journal.State) {
		if of := s.Engine(g.key.UID, g.key.Epoch); of == nil || of.Load != g.load {
			return // it ended and was collected meanwhile, and another may have been started
		}
		p.read(func() {
			g.record.Stop = &journal.Stop{Reason: g.stop.reason, Since: g.stop.since, Footprint: g.stop.footprint}
			s.PutEngine(g.record)
		})
	}, nil)
}

// drain waits until no request uses the engine, or its deadline. It reports
// false when the process ended, or the agent.
func (p *Pool) drain(g *engine) bool {
	idle := make(chan struct{})
	var deadline time.Time
	p.read(func() {
		deadline = g.stop.since
		if !g.stop.hurry {
			deadline = deadline.Add(time.Duration(g.record.DrainSeconds) * time.Second)
		}
		g.idle = idle
		g.checkIdle()
	})
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	case <-g.proc.Done():
		return false
	case <-p.life.Done():
		return false
	}
	return true
}

// stopEngine climbs the ladder: Shutdown, SIGTERM, SIGKILL, each with time in
// proportion to what the engine holds.
func (p *Pool) stopEngine(e *entry, g *engine) {
	p.change(func() { e.state = Stopping })
	held, _ := p.measure(g)
	host, hostErr := p.Probe.Host(p.life, p.ownFootprint())
	p.change(func() {
		if held > 0 {
			g.stop.footprint = &held
		}
		if hostErr == nil {
			g.stop.before = host
		}
		g.stop.alone = p.alone(g)
		g.stop.rung = rungShutdown
	})
	p.recordStop(g)
	p.Fault(FaultUnloadMeasured)
	extra := time.Duration(held/footprint.MiB) * p.Timing.StopPerGiB / 1024
	stop, term := p.Timing.Stop, p.Timing.Term
	if g.stop.hurry {
		stop, term = min(stop, p.Timing.HurriedStop), term/2
	}
	if p.shutdown(g, stop+extra) {
		return
	}
	if p.signal(g, rungTerm, syscall.SIGTERM, term+extra) {
		return
	}
	p.signal(g, rungKill, syscall.SIGKILL, 0)
}

// shutdown asks the engine to end and waits for the observed exit. Requests
// that still run get their terminal error from the engine.
func (p *Pool) shutdown(g *engine, limit time.Duration) (ended bool) {
	ctx, cancel := context.WithTimeout(p.life, limit)
	defer cancel()
	if _, err := g.client.Shutdown(ctx, &wire.ShutdownRequest{}); err == nil {
		p.read(func() { g.stop.answered = true })
	}
	close(g.stop.told)
	p.Fault(FaultUnloadAsked)
	select {
	case <-g.proc.Done():
		return true
	case <-ctx.Done():
		return p.life.Err() != nil
	}
}

// signal sends one and waits for the observed exit; a limit of 0 waits for ever.
func (p *Pool) signal(g *engine, r rung, s syscall.Signal, limit time.Duration) (ended bool) {
	p.Log.Info("Engine does not exit; sending a signal", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "pid", g.pid, "signal", s.String())
	p.read(func() {
		if g.stop.rung = r; r == rungKill {
			g.stop.killed = time.Now()
		}
	})
	if err := g.proc.Signal(s); err != nil {
		p.Log.Error(err, "Cannot signal engine", "pid", g.pid)
	}
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-g.proc.Done():
		return true
	case <-p.life.Done():
		return true
	case <-late:
		return false
	}
}

// alone reports whether no other engine is there; the caller holds mu. An
// engine that loads or serves changes the host's memory too.
func (p *Pool) alone(g *engine) bool {
	for _, e := range p.entries {
		if e.engine != nil && e.engine != g {
			return false
		}
	}
	return true
}
