package pool

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// trimming is how an engine was asked for its pooled bytes.
type trimming struct {
	asked, acknowledged time.Time // zero: never
	running             bool
}

// enforce polls until the pool's life ends: every Poll while an engine works,
// LoadedPoll while engines are there and idle, IdlePoll while there is none; at
// once after a load, an unload and a request.
func (p *Pool) enforce() {
	for p.life.Err() == nil {
		p.poll()
		polled := time.Now()
		for due := false; !due && p.life.Err() == nil; {
			timer := time.NewTimer(p.pause(time.Now()) - time.Since(polled))
			select {
			case <-p.life.Done():
			case <-p.pokes:
				due = true
			case <-p.stirs: // how long to wait is computed again
				due = time.Since(polled) >= p.Timing.Poll
			case <-timer.C:
				due = true
			}
			timer.Stop()
		}
	}
}

// pause is how long the next poll can wait.
func (p *Pool) pause(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := p.Timing.IdlePoll
	for _, e := range p.entries {
		g := e.engine
		if g == nil || g.gone {
			continue
		}
		pause = min(pause, p.Timing.LoadedPoll)
		if g.active() {
			return p.Timing.Poll
		}
		if e.onDemand() && e.idleAfter() > 0 {
			pause = min(pause, max(p.Timing.Poll, g.lastUse.Add(e.idleAfter()).Sub(now)))
		}
	}
	if p.decision.Follow || !p.mayStart() {
		return p.Timing.Poll // what was begun is followed
	}
	return pause
}

// active engines change what they hold: they load, end, or work on requests.
// The caller holds Pool.mu.
func (g *engine) active() bool {
	a := g.status.GetActivity()
	return !g.ready || g.stop != nil || len(g.holds) > 0 || a.GetRunning()+a.GetQueued() > 0
}

// stir says that a request was let in: the Mac is looked at, at once or a Poll
// after the last look.
func (p *Pool) stir() {
	select {
	case p.stirs <- struct{}{}:
	default:
	}
}

// poll looks at the Mac once, decides and acts. What cannot be read is said in
// the decision and does not stop the next poll; no engine is waited for.
func (p *Pool) poll() {
	r := p.look()
	p.boundLogs()
	d := p.enforcer.Poll(r)
	p.change(func() {
		if d.Level != p.decision.Level && p.decision.Level != "" {
			p.Log.Info("Memory pressure changed", "level", d.Level, "because", d.Because)
		}
		if d.Level != p.decision.Level {
			p.mac.pressure = p.pressureFigures(r, d)
		}
		p.decision, p.polled = d, r.Now
		p.mac.divergence = p.divergence.Observe(r, p.residue(r))
	})
	asking := p.act(d)
	p.tieHeadroom(asking)
	for _, k := range memory.Expired(r.Engines, r.Now) {
		p.evict(k, v1alpha1.ReclaimIdle)
	}
	p.publishLimits(r, d)
	p.watchdogs(r)
	p.watchWired(r.Host, r.HostKnown)
	p.refuseBlocked()
	if p.booksDue() {
		p.keepBooks()
	}
}

// act executes a decision through the ways that exist anyway. It returns the
// engine that goes to answer a question for headroom, if one does.
func (p *Pool) act(d memory.Decision) (forHeadroom *engine) {
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
			} else if forHeadroom == nil && p.evict(a.Key, a.Reason) { // at most one for a question
				forHeadroom = g
			}
		case memory.StepCancelLoad:
			p.unload(e, a.Reason, func(g *engine) bool { return !g.ready })
		case memory.StepUnload:
			p.unload(e, a.Reason, nil)
		}
	}
	return forHeadroom
}

// ask makes one call to an engine in a goroutine, bounded by Hello: an engine
// that hangs delays nobody.
func (p *Pool) ask(g *engine, what string, call func(context.Context) error, done func(err error)) {
	p.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(p.life, p.Timing.Hello)
		defer cancel()
		err := call(ctx)
		p.read(func() { done(err) })
		if err != nil && ctx.Err() != nil && p.life.Err() == nil {
			p.Log.Error(err, "Engine does not answer", "call", what, "pid", g.pid)
		}
	})
}

// trim asks an engine for its pooled bytes, and for its prompt cache where that
// is needed, unless it is asked already.
func (p *Pool) trim(g *engine, cache bool) {
	again := false
	p.read(func() {
		if again = g.trim.running; !again {
			g.trim.running, g.trim.asked = true, time.Now()
		}
	})
	if again {
		return
	}
	p.ask(g, "Trim", func(ctx context.Context) error {
		_, err := g.client.Trim(ctx, &wire.TrimRequest{PrefixCache: cache})
		return err
	}, func(err error) {
		g.trim.running = false
		if err == nil {
			g.trim.acknowledged = time.Now()
		}
	})
}

// abort ends the requests of an engine; it goes on.
func (p *Pool) abort(g *engine, because string) {
	again := false
	p.read(func() { again, g.aborting = g.aborting, true })
	if again {
		return
	}
	p.Log.Info("Aborting requests to free memory", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "because", because)
	p.ask(g, "Abort", func(ctx context.Context) error {
		_, err := g.client.Abort(ctx, &wire.AbortRequest{Reason: because})
		return err
	}, func(error) { g.aborting = false })
}
