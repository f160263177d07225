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
func (rs *replicas) reserve(e *entry) {
	if rs.admitted(e) {
		rs.change(func() { e.reserved, e.state = true, Reserved })
	}
}

// reserveOnly asks the ledger for a reservation alone: nothing is evicted for an
// engine that may not be started yet, and nothing is refused.
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

// admitted asks for memory to load a model. Where there is none the entry is
// refused, or tried again after each observed exit.
func (rs *replicas) admitted(e *entry) bool {
	searched := rs.roomChangesNow()
	coming, err := rs.room.admit(e)
	if err == nil {
		rs.change(func() { e.short, e.roomAgain = nil, time.Time{} })
		return true
	}
	var short *memory.NoRoomError
	switch {
	case !errors.As(err, &short): // the assignment cannot be meant
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

// roomChangesNow is what awaitRoom compares: read it before the search.
func (rs *replicas) roomChangesNow() (n int64) {
	rs.read(func() { n = rs.roomChanges })
	return n
}

// awaitRoom has the entry tried again when memory was given back, or at once if
// some was since the search began.
func (rs *replicas) awaitRoom(e *entry, short *memory.NoRoomError, searched int64) {
	rs.change(func() {
		if e.short = short; rs.roomChanges == searched {
			e.roomAgain = time.Now().Add(rs.timing.RoomRetry)
		}
	})
}

// noVictim: what is in the way is promised for good, or busy, or not ours.
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

// refuseRoom says no for as long as the promises stand: for good to an Always
// replica, which is then made elsewhere; to the waiters of an OnDemand one,
// which is asked again by the next request.
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

// refuse is final for that replica.
func (rs *replicas) refuse(e *entry, why error) {
	var name string
	refused := &journal.Refusal{Reason: v1alpha1.ReasonInsufficientRoom, Message: why.Error()}
	rs.change(func() {
		name = e.assignment.Namespace + "/" + e.assignment.Name
		rs.ledger.Release(e.key) // it may have been promised before the ceiling fell
		e.refused, e.state, e.reserved = refused, Failed, false
		rs.roomChanged()
		e.failWaiters(&LoadError{Reason: refused.Reason, Message: refused.Message})
	})
	rs.log.Info("Replica was not admitted", "ModelReplica", name, "reason", refused.Message)
	rs.recorder.record(func(s *journal.State) { s.Replica(e.key.UID, e.key.Epoch).Refused = refused }, nil)
	rs.replan()
}
