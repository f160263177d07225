package pool

import (
	"errors"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// reserve reserves the memory of an entry's engine, or refuses the entry.
func (rs *replicas) reserve(e *entry) {
	if rs.admitted(e) {
		rs.change(func() { e.reserved, e.state = true, Reserved })
	}
}

// reserveOnly reserves the memory of an engine that may not start yet: nothing is
// evicted for it, and a failure refuses nothing.
func (rs *replicas) reserveOnly(e *entry) {
	searched := rs.roomChangesNow()
	var short *memory.NoRoomError
	switch err := rs.ledger.Reserve(e.key, e.assignment.ReservedBytes); {
	case err == nil:
		rs.change(func() { e.reserved, e.state = true, Reserved })
	case errors.As(err, &short):
		rs.awaitRoom(e, short, searched)
	default:
		rs.refuse(e, err)
	}
}

// admitted asks for the memory to load a model. Without it the entry is refused,
// or tried again after each observed exit.
func (rs *replicas) admitted(e *entry) bool {
	searched := rs.roomChangesNow()
	coming, err := rs.room.admit(e)
	if err == nil {
		rs.change(func() { e.short, e.roomAgain = nil, time.Time{} })
		return true
	}
	var short *memory.NoRoomError
	switch {
	case !errors.As(err, &short): // the assignment is invalid
		rs.refuse(e, err)
	case short.Final:
		rs.refuseRoom(e, short)
	case coming:
		rs.awaitRoom(e, short, searched)
	default:
		rs.noVictim(e, short, searched)
	}
	return false
}

// roomChangesNow is the counter that awaitRoom compares: read it before the
// search.
func (rs *replicas) roomChangesNow() (n int64) {
	rs.read(func() { n = rs.roomChanges })
	return n
}

// awaitRoom retries the entry when memory is freed, or at once if some was freed
// since the search began.
func (rs *replicas) awaitRoom(e *entry, short *memory.NoRoomError, searched int64) {
	rs.change(func() {
		if e.short = short; rs.roomChanges == searched {
			e.roomAgain = time.Now().Add(rs.timing.RoomRetry)
		}
	})
}

// noVictim handles memory that no eviction frees: it is reserved for
// always-resident replicas, busy, or used by other programs.
func (rs *replicas) noVictim(e *entry, short *memory.NoRoomError, searched int64) {
	lasting, demanded, reserved := false, false, false
	rs.read(func() {
		lasting = short.Term != footprint.Dynamic && short.Needed > rs.spare(e.key)
		demanded, reserved = e.demand != nil && rs.roomChanges == searched, e.reserved
	})
	switch {
	case lasting && !reserved:
		rs.refuseRoom(e, short)
	case demanded:
		rs.change(func() {
			e.short = short
			e.failWaiters(&RoomError{Cause: short, RetryAfter: rs.timing.RoomRetry})
		})
	default:
		rs.awaitRoom(e, short, searched)
	}
}

// refuseRoom refuses an entry while the reservations stand: an Always replica for
// good, so that it is placed elsewhere; the waiting requests of an OnDemand one,
// which the next request tries again.
func (rs *replicas) refuseRoom(e *entry, short *memory.NoRoomError) {
	demanded := false
	rs.change(func() {
		if demanded = e.onDemand(); demanded {
			e.short = short
			e.failWaiters(&RoomError{Cause: short})
		}
	})
	if !demanded {
		rs.refuse(e, short)
	}
}

// refuse fails the replica for good.
func (rs *replicas) refuse(e *entry, why error) {
	var name string
	refused := &journal.Refusal{Reason: v1alpha1.ReasonInsufficientRoom, Message: why.Error()}
	rs.change(func() {
		name = e.assignment.Namespace + "/" + e.assignment.Name
		rs.ledger.Release(e.key) // it may have been reserved before the ceiling fell
		e.refused, e.state, e.reserved = refused, Failed, false
		rs.roomChanged()
		e.failWaiters(&LoadError{Reason: refused.Reason, Message: refused.Message})
	})
	rs.log.Info("Replica was not admitted", "ModelReplica", name, "reason", refused.Message)
	rs.recorder.record(func(s *journal.State) { s.Replica(e.key.UID, e.key.Epoch).Refused = refused }, nil)
	rs.replan()
}
