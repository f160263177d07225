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
	r := p.meter.look()
	var w memory.Want
	p.read(func() {
		w = memory.Want{Key: e.key, Bytes: e.order.ReservedBytes, Priority: e.order.Residency.Priority}
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

// anyPriority: an Always replica evicts whatever is idle and OnDemand.
const anyPriority = 1<<31 - 1

// evictFor unloads the first of the engines that is idle still, for e.
func (p *pressure) evictFor(e *entry, victims []memory.Key) bool {
	for _, k := range victims {
		if p.evict(k, v1alpha1.ReclaimMadeRoom) {
			p.read(func() { e.awaits = p.entries[k] })
			return true
		}
	}
	return false
}

// awaiting reports whether an engine that goes for e has not gone yet: the next
// one goes only if its memory was not enough.
func (p *pressure) awaiting(e *entry) (yes bool) {
	p.read(func() {
		if yes = e.awaits != nil && e.awaits.engine != nil && e.awaits.engine.leaving(); !yes {
			e.awaits = nil
		}
	})
	return yes
}

// evict unloads an engine that is OnDemand and that nothing uses: a hold that
// was taken meanwhile keeps it. It reports whether an unload began.
func (p *pressure) evict(k memory.Key, why v1alpha1.ReclaimReason) bool {
	var e *entry
	p.read(func() { e = p.entries[k] })
	if e == nil {
		return false
	}
	return p.engines.unload(e, why, func(g *engine) bool { return e.onDemand() && g.state == Ready && len(g.holds) == 0 })
}
