package pool

import (
	"errors"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// admit asks for the memory that an entry's engine needs: the ledger must be
// able to reserve it, and the Mac must have it now. Where it has not, idle
// OnDemand engines are evicted for it, one at a time. With the error of a
// refusal that is not final, coming reports whether memory is about to be given
// back.
func (p *pressure) admit(e *entry) (coming bool, err error) {
	r := p.meter.sample()
	var w memory.Want
	p.read(func() {
		w = memory.Want{Key: e.key, Bytes: e.assignment.ReservedBytes, Priority: e.assignment.Residency.EvictionPriority}
		if !e.onDemand() {
			w.Priority = anyPriority
		}
	})
	err = p.ledger.Admit(w, r)
	if short := (*memory.NoRoomError)(nil); errors.As(err, &short) && !short.Final {
		coming = short.Pending || p.awaiting(e) || p.evictFor(e, short.Victims)
	}
	return coming, err
}

// anyPriority: an always-resident replica evicts any idle OnDemand engine.
const anyPriority = 1<<31 - 1

// evictFor evicts, for e, the first of the engines that is still idle.
func (p *pressure) evictFor(e *entry, victims []memory.Key) bool {
	for _, k := range victims {
		if p.evict(k, v1alpha1.ReclaimMadeRoom) {
			p.read(func() { e.waitsFor = p.entries[k] })
			return true
		}
	}
	return false
}

// awaiting reports whether an engine that is evicted for e has not ended yet: the
// next one is evicted only if its memory was not enough.
func (p *pressure) awaiting(e *entry) (yes bool) {
	p.read(func() {
		if yes = e.waitsFor != nil && e.waitsFor.engine != nil && e.waitsFor.engine.leaving(); !yes {
			e.waitsFor = nil
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
