package pool

import (
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// unloader is what the pressure loop needs of the engine life cycle.
type unloader interface {
	// unload begins to end the engine of an entry, if only (checked under the
	// lock; nil: always) allows it, and reports whether it did.
	unload(e *entry, reason v1alpha1.ReclaimReason, only func(*engine) bool) bool
	// hasten shortens the drain of an engine that is being unloaded, and reports
	// whether it lasted.
	hasten(e *entry) bool
	// kill ends an engine that is being unloaded by SIGKILL, at once.
	kill(e *entry)
}

// pressure polls the Mac's memory, does what agent/memory decides (trim, abort,
// evict, unload), finds memory for what is to be loaded, and sends every engine
// its limits.
type pressure struct {
	*registry
	log      logr.Logger
	timing   Timing
	meter    *meter
	gate     *startGate
	books    *bookkeeper
	recorder *recorder
	engines  unloader
	// afterPoll is called in each poll, without the lock.
	afterPoll func(memory.Reading)
	// enforcer belongs to the goroutine of run alone.
	enforcer *memory.Enforcer

	// registry.mu guards what follows.
	decision   memory.Decision // of the last poll
	polled     time.Time       // when that was; zero: never
	divergence memory.Divergence
	diverged   memory.Finding
	figures    string // what was measured when the pressure level was entered
}

// run polls until registry.life ends: every Poll while an engine works, every
// LoadedPoll while engines are idle, every IdlePoll while there is none; at once
// after a load, an unload and a request.
func (p *pressure) run() {
	for p.life.Err() == nil {
		p.poll()
		polled := time.Now()
		for due := false; !due && p.life.Err() == nil; {
			timer := time.NewTimer(p.pause(time.Now()) - time.Since(polled))
			select {
			case <-p.life.Done():
			case <-p.pollSignal:
				due = true
			case <-p.requestSignal: // the pause is computed again
				due = time.Since(polled) >= p.timing.Poll
			case <-timer.C:
				due = true
			}
			timer.Stop()
		}
	}
}

// pause is how long the next poll can wait.
func (p *pressure) pause(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := p.timing.IdlePoll
	for _, e := range p.entries {
		g := e.engine
		if g == nil || g.state == Exited {
			continue
		}
		pause = min(pause, p.timing.LoadedPoll)
		if g.active() {
			return p.timing.Poll
		}
		if e.onDemand() && e.idleAfter() > 0 {
			pause = min(pause, max(p.timing.Poll, g.lastUse.Add(e.idleAfter()).Sub(now)))
		}
	}
	if p.decision.Follow || !p.gate.mayStart() {
		return p.timing.Poll // actions that were begun are followed
	}
	return pause
}

// poll measures the Mac once, decides and acts. What cannot be measured is part
// of the decision and does not stop the next poll. It waits for no engine.
func (p *pressure) poll() {
	r, before := p.meter.sampleHeld()
	d := p.enforcer.Poll(r)
	p.change(func() {
		if d.Level != p.decision.Level && p.decision.Level != "" {
			p.log.Info("Memory pressure changed", "level", d.Level, "because", d.Because)
		}
		if d.Level != p.decision.Level {
			p.figures = p.pressureFigures(r, d)
		}
		p.decision, p.polled = d, r.Now
		p.diverged = p.divergence.Observe(r, p.meter.residue(r))
	})
	asking := p.act(d)
	p.tieHeadroom(asking)
	for _, k := range memory.Expired(r.Engines, r.Now) {
		p.evict(k, v1alpha1.ReclaimIdle)
	}
	p.publishLimits(r, d)
	p.gate.watchWired(r.Host, r.HostKnown, before)
	p.afterPoll(r)
	if p.books.due() {
		p.storeBooks()
	}
}

// act executes a decision. It returns the engine that is being evicted to answer
// a request for headroom; nil if there is none.
func (p *pressure) act(d memory.Decision) (forHeadroom *engine) {
	for _, a := range d.Actions {
		var e *entry
		var g *engine
		p.read(func() {
			if e = p.entries[a.Key]; e != nil {
				g = e.engine
			}
		})
		if g == nil {
			continue
		}
		switch a.Step {
		case memory.StepTrim:
			p.trim(g, a.Cache)
		case memory.StepAbort:
			p.abort(g, a.Because)
		case memory.StepEvict:
			if a.Reason != v1alpha1.ReclaimHeadroom {
				p.evict(a.Key, a.Reason)
			} else if forHeadroom == nil && p.evict(a.Key, a.Reason) { // at most one for each request for headroom
				forHeadroom = g
			}
		case memory.StepCancelLoad:
			p.engines.unload(e, a.Reason, func(g *engine) bool { return g.state != Ready })
		case memory.StepUnload:
			p.engines.unload(e, a.Reason, nil)
		case memory.StepKill:
			p.engines.unload(e, a.Reason, nil) // unless it is unloaded already
			p.engines.kill(e)
		}
	}
	return forHeadroom
}
