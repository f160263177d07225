package pool

import (
	"errors"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	// roomLapse is how long after an attempt that found no memory the next one
	// continues the same wait: requests come and go, and their model waits.
	roomLapse = 10 * time.Minute
	// claimTime is how long memory that engines in use are ended for is kept for
	// the load, which is longer than they may take.
	claimTime = 5 * time.Minute
	// waitLapse is how long after an attempt that found no memory room is kept for the next one:
	// the request was refused, and its client asks again.
	waitLapse = 15 * time.Second
	// longestYield bounds the drain of an engine that is ended for another model.
	longestYield = time.Minute
)

// roomWait is the wait of an entry for memory to load its model; registry.mu
// guards it.
type roomWait struct {
	began, last time.Time // first and last attempt that found none; zero: none did
	engine      *engine   // that is ended for it
	// claim: until then memory that is being freed for it is kept for it.
	claim time.Time
}

// tried notes an attempt and returns for how long memory is waited for.
func (w *roomWait) tried(now time.Time) time.Duration {
	if w.last.IsZero() || now.Sub(w.last) > roomLapse {
		w.began = now
	}
	w.last = now
	return now.Sub(w.began)
}

// admit asks for the memory that an entry's engine needs: the ledger must be
// able to reserve it, and the Mac must have it now. Where it has not, idle
// OnDemand engines are evicted for it, one at a time; after a wait those in use
// that memory.Want allows. With the error of a refusal that is not final, coming
// reports whether memory is about to be given back.
func (p *pressure) admit(e *entry) (coming bool, err error) {
	r := p.meter.sample()
	var w memory.Want
	p.read(func() {
		now := time.Now()
		w = p.wantOf(e, e.wait.tried(now), now)
		w.Claimed += p.keptFor(e, r, now)
	})
	if err = p.ledger.Admit(w, r); err == nil {
		p.read(func() { e.wait = roomWait{} })
		return false, nil
	}
	if short := (*memory.NoRoomError)(nil); errors.As(err, &short) && !short.Final {
		coming = short.Pending || p.awaiting(e) || p.evictFor(e, short.Victims) || p.endFor(e, short.Busy)
	}
	return coming, err
}

// wantOf is what an entry asks for; the caller holds mu.
func (p *pressure) wantOf(e *entry, waits time.Duration, now time.Time) memory.Want {
	w := memory.Want{
		Key: e.key, Bytes: e.assignment.ReservedBytes, Priority: e.assignment.Residency.EvictionPriority,
		Namespace: e.assignment.Namespace, Always: !e.onDemand(), Waits: waits, Claimed: p.claimed(e, now),
	}
	if w.Always {
		w.Priority = anyPriority
	}
	return w
}

// keptFor is the memory that an on-demand load leaves to the one of another namespace that has
// waited longest, and for a minute, of those that could have it (memory.CanAdmit): it is next, also
// if another asks first when an engine becomes idle or ends. A load that needs the room of several
// engines gets it although they never become idle, or serve for long enough, at the same time: what
// ends is not followed by others. The caller holds mu.
func (p *pressure) keptFor(e *entry, r memory.Reading, now time.Time) int64 {
	if !e.onDemand() || e.reserved || e.claims(now) {
		return 0
	}
	var first *entry
	for _, o := range p.entries {
		if o.waits(now) && !o.claims(now) && o.assignment.Namespace != e.assignment.Namespace &&
			o.wait.began.Before(e.wait.began) && (first == nil || o.wait.began.Before(first.wait.began)) &&
			p.ledger.CanAdmit(p.wantOf(o, now.Sub(o.wait.began), now), r) {
			first = o
		}
	}
	if first == nil {
		return 0
	}
	return first.assignment.ReservedBytes
}

// waits reports whether requests of an on-demand entry have found no memory for a minute; the
// caller holds registry.mu.
func (e *entry) waits(now time.Time) bool {
	return e.onDemand() && e.refused == nil && e.engine == nil && !e.reserved && !e.wait.last.IsZero() &&
		now.Sub(e.wait.last) <= waitLapse && now.Sub(e.wait.began) >= memory.BusyWait
}

// anyPriority: an always-resident replica evicts any idle OnDemand engine.
const anyPriority = 1<<31 - 1

// evictFor evicts, for e, the first of the engines that is still idle.
func (p *pressure) evictFor(e *entry, victims []memory.Key) bool {
	for _, k := range victims {
		if p.evict(k, v1alpha1.ReclaimMadeRoom) {
			p.read(func() {
				if o := p.entries[k]; o != nil {
					e.wait.engine = o.engine
				}
			})
			return true
		}
	}
	return false
}

// endFor ends, for e, OnDemand engines in use: their requests may finish until
// the deadline of the drain, which is shortened for those that drain already. What
// they hold is claimed for e.
func (p *pressure) endFor(e *entry, victims []memory.Key) (began bool) {
	for _, k := range victims {
		var other *entry
		p.read(func() { other = p.entries[k] })
		if other == nil || !p.engines.unload(other, v1alpha1.ReclaimMadeRoom, func(*engine) bool { return other.onDemand() }) && !p.engines.hasten(other) {
			continue
		}
		began = true
		p.read(func() { e.wait.engine, e.wait.claim = other.engine, time.Now().Add(claimTime) })
	}
	return began
}

// claimed adds up the memory that is kept for other entries than e; the caller
// holds mu. Always-resident replicas come first, then those that claimed first.
func (p *pressure) claimed(e *entry, now time.Time) (sum int64) {
	for _, o := range p.entries {
		first := !o.onDemand() && e.onDemand()
		if o.onDemand() == e.onDemand() {
			first = !e.claims(now) || o.wait.claim.Before(e.wait.claim)
		}
		if o != e && first && o.claims(now) {
			sum += o.assignment.ReservedBytes
		}
	}
	return sum
}

// claims reports whether memory is being freed for the entry; the caller holds
// registry.mu.
func (e *entry) claims(now time.Time) bool {
	return now.Before(e.wait.claim) && e.want == wantRunning && e.refused == nil && e.engine == nil && !e.reserved &&
		(!e.onDemand() || e.demand != nil)
}

// awaiting reports whether an engine that is ended for e has not ended yet: the
// next one is evicted only if its memory was not enough.
func (p *pressure) awaiting(e *entry) (yes bool) {
	p.read(func() {
		if g := e.wait.engine; g != nil {
			o := p.entries[g.key]
			yes = o != nil && o.engine == g && g.leaving()
		}
		if !yes {
			e.wait.engine = nil
		}
	})
	return yes
}

// evict unloads an OnDemand engine that nothing uses: a hold taken meanwhile keeps
// it. It reports whether an unload began.
func (p *pressure) evict(k memory.Key, why v1alpha1.ReclaimReason) bool {
	var e *entry
	p.read(func() { e = p.entries[k] })
	if e == nil {
		return false
	}
	return p.engines.unload(e, why, func(g *engine) bool { return e.onDemand() && g.state == Ready && len(g.holds) == 0 })
}
