package pool

import (
	"errors"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// reserve asks the ledger for the memory of an entry's engine.
func (p *Pool) reserve(e *entry) {
	if p.admitted(e) {
		p.change(func() { e.reserved, e.state = true, Reserved })
	}
}

// promise asks the ledger for a reservation alone: nothing is evicted for an
// engine that may not be started yet, and nothing is refused.
func (p *Pool) promise(e *entry) {
	var short *memory.NoRoomError
	switch err := p.Ledger.Reserve(e.key, e.order.ReservedBytes); {
	case err == nil:
		p.change(func() { e.reserved, e.state = true, Reserved })
	case errors.As(err, &short):
		p.awaitRoom(e, short)
	default:
		p.refuse(e, err)
	}
}

// admitted asks for memory to load a model: that it may be promised, and that
// the Mac has it now. Where it has not, idle OnDemand engines go for it, one at
// a time; the entry is tried again after each observed exit.
func (p *Pool) admitted(e *entry) bool {
	r := p.look()
	var w memory.Want
	p.read(func() {
		w = memory.Want{Key: e.key, Bytes: e.order.ReservedBytes, Priority: e.order.Residency.Priority}
		if !e.onDemand() {
			w.Priority = anyPriority
		}
	})
	err := p.Ledger.Admit(w, r)
	if err == nil {
		p.change(func() { e.short, e.roomAgain = nil, time.Time{} })
		return true
	}
	var short *memory.NoRoomError
	switch {
	case !errors.As(err, &short): // an order that cannot be meant
		p.refuse(e, err)
	case short.Final:
		p.refuseRoom(e, short)
	case short.Pending || p.awaiting(e) || p.evictFor(e, short.Victims):
		p.awaitRoom(e, short)
	default:
		p.noVictim(e, short)
	}
	return false
}

// anyPriority: an Always replica evicts whatever is idle and OnDemand.
const anyPriority = 1<<31 - 1

// evictFor unloads the first of the engines that is idle still, for e.
func (p *Pool) evictFor(e *entry, victims []memory.Key) bool {
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
func (p *Pool) awaiting(e *entry) (yes bool) {
	p.read(func() {
		if yes = e.awaits != nil && e.awaits.engine != nil && e.awaits.engine.stop != nil; !yes {
			e.awaits = nil
		}
	})
	return yes
}

// evict unloads an engine that is OnDemand and that nothing uses: a hold that
// was taken meanwhile keeps it. It reports whether an unload began.
func (p *Pool) evict(k memory.Key, why v1alpha1.ReclaimReason) bool {
	var e *entry
	p.read(func() { e = p.entries[k] })
	if e == nil {
		return false
	}
	return p.unload(e, why, func(g *engine) bool { return e.onDemand() && g.ready && len(g.holds) == 0 })
}

// awaitRoom has the entry tried again when memory was given back.
func (p *Pool) awaitRoom(e *entry, short *memory.NoRoomError) {
	p.change(func() { e.short, e.roomAgain = short, time.Now().Add(p.Timing.RoomRetry) })
}

// roomChanged has every entry that found no room tried again; the caller holds
// mu and wakes the loop.
func (p *Pool) roomChanged() {
	for _, e := range p.entries {
		e.roomAgain = time.Time{}
	}
}

// noVictim: what is in the way is promised for good, or busy, or not ours.
func (p *Pool) noVictim(e *entry, short *memory.NoRoomError) {
	lasting, demanded, reserved := false, false, false
	p.read(func() {
		lasting = short.Term != footprint.Dynamic && short.Needed > p.spare(e.key)
		demanded, reserved = e.demand != nil, e.reserved
	})
	switch {
	case lasting && !reserved:
		p.refuseRoom(e, short)
	case demanded:
		p.change(func() {
			e.short = short
			e.disappoint(&RoomError{Cause: short, RetryAfter: p.Timing.RoomRetry})
		})
	default:
		p.awaitRoom(e, short)
	}
}

// spare is what the ledger may promise to a replica beside what is promised
// for good: to replicas that are wanted resident always, and not to those that
// leave the memory. The caller holds mu.
func (p *Pool) spare(k memory.Key) int64 {
	a := p.Ledger.Account()
	left := a.Limits.Capacity
	for holder, bytes := range a.Holders {
		if e := p.entries[holder]; holder != k && (e == nil || !e.onDemand() && !e.want.leaves()) {
			left -= bytes
		}
	}
	return left
}

// refuseRoom says no for as long as the promises stand: for good to an Always
// replica, which is then made elsewhere; to the waiters of an OnDemand one,
// which is asked again by the next request.
func (p *Pool) refuseRoom(e *entry, short *memory.NoRoomError) {
	demanded := false
	p.change(func() {
		if demanded = e.onDemand(); demanded {
			e.short = short
			e.disappoint(&RoomError{Cause: short})
		}
	})
	if !demanded {
		p.refuse(e, short)
	}
}

// refuse is final for that replica.
func (p *Pool) refuse(e *entry, why error) {
	var name string
	refused := &journal.Refusal{Reason: v1alpha1.ReasonInsufficientRoom, Message: why.Error()}
	p.change(func() {
		name = e.order.Namespace + "/" + e.order.Name
		p.Ledger.Release(e.key) // it may have been promised before the ceiling fell
		e.refused, e.state, e.reserved = refused, Failed, false
		p.roomChanged()
		e.disappoint(&LoadError{Reason: refused.Reason, Message: refused.Message})
	})
	p.Log.Info("Replica was not admitted", "ModelReplica", name, "reason", refused.Message)
	p.record(func(s *journal.State) { s.Replica(e.key.UID, e.key.Epoch).Refused = refused }, nil)
	p.wake()
}
