package pool

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
)

// engines is the engine life cycle as the state machine uses it.
type engines interface {
	unloader
	// start begins an engine for an entry that has none.
	start(e *entry)
}

// room is the pressure side as the state machine uses it.
type room interface {
	// admit asks for the memory of an entry's engine; see pressure.admit.
	admit(e *entry) (coming bool, err error)
	// answerHeadroom is called when an engine has ended, under the lock.
	answerHeadroom(g *engine)
}

// gate reports whether engines may be started on this Mac; its methods are
// called under the lock.
type gate interface {
	// known reports whether the Mac's memory was measured yet.
	known() bool
	// mayStart reports whether an engine may be started now.
	mayStart() bool
	// inOrder reports whether the Mac's memory is in order.
	inOrder() bool
	// blocked returns the reason for which none can be started for longer than a
	// check takes, and a sentence with the next step; empty if there is none.
	blocked() (reason, why string)
}

// replicas is the state machine of the replicas of this Mac: it compares what
// is assigned with what is observed, executes the next step of each entry, and
// derives what is reported.
type replicas struct {
	*registry
	log      logr.Logger
	timing   Timing
	weights  Weights
	recorder *recorder
	engines  engines
	room     room
	gate     gate

	// registry.mu guards what follows.
	generation int64 // of the assignments it follows
	shares     startShares
	tenures    tenures
}

// apply makes assignments the desired state: entries that they do not name are
// drained and forgotten. The caller holds mu.
func (rs *replicas) apply(o journal.Desired) {
	rs.generation = o.Generation
	for _, e := range rs.entries {
		e.want = wantGone
	}
	for _, bad := range o.Invalid {
		for k, e := range rs.entries { // engines of it that run are left alone
			if k.UID == bad.ReplicaUID {
				e.want = wantInvalid
			}
		}
		e := rs.entry(memory.Key{UID: bad.ReplicaUID, Epoch: bad.Epoch})
		e.want, e.invalid = wantInvalid, bad.Message
	}
	for _, a := range o.Assignments {
		e := rs.entry(memory.Key{UID: a.ReplicaUID, Epoch: a.Epoch})
		if e.reserved && e.engine == nil && e.assignment.ReservedBytes != a.ReservedBytes {
			rs.ledger.Release(e.key) // reserved again with the new size
			e.reserved, e.state = false, Absent
		}
		e.take(a)
	}
	for _, e := range rs.entries {
		if e.want != wantRunning { // requests that wait for a load wait in vain
			e.failWaiters(&NotReadyError{State: e.state, RetryAfter: notReadyRetry})
		}
	}
	rs.roomChanged()
}

// pass plans on a snapshot of the entries and executes the plan, until there
// is nothing to do at once. It returns when to look again.
func (rs *replicas) pass(now time.Time) time.Time {
	for {
		views, changed := rs.views(now)
		if changed {
			rs.publish()
		}
		actions, again := plan(views, now)
		if len(actions) == 0 {
			return again
		}
		for _, a := range actions {
			rs.execute(a)
		}
	}
}

// views returns the input of plan, and whether an entry may start again that had failed.
func (rs *replicas) views(now time.Time) (views []view, changed bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	views = make([]view, 0, len(rs.entries))
	for _, e := range rs.entries {
		changed = e.startAgain(now) || changed
		v := e.view(rs.gate.known(), rs.gate.mayStart())
		v.loadNotBefore = rs.startsNotBefore(e)
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b view) int { return byKey(a.key, b.key) })
	return views, changed
}

// execute begins one action. Each leaves a mark in its entry, so that the next
// plan does not name it again.
func (rs *replicas) execute(a action) {
	rs.mu.Lock()
	e := rs.entries[a.key]
	rs.mu.Unlock()
	if e == nil { // forgotten after the plan was made
		return
	}
	switch a.step {
	case stepDownload:
		rs.download(e)
	case stepCancelDownload:
		rs.change(e.download.end)
	case stepReserve:
		rs.reserve(e)
	case stepReserveOnly:
		rs.reserveOnly(e)
	case stepLoad:
		rs.load(e)
	case stepUnload:
		rs.engines.unload(e, a.reason, nil)
	case stepUnreserve:
		rs.ledger.Release(e.key)
		rs.change(func() {
			e.reserved, e.state = false, Absent
			rs.roomChanged()
		})
	case stepRelease:
		rs.release(e)
	case stepForget:
		rs.forget(e)
	default:
		panic(fmt.Sprintf("pool: plan named the unknown step %d", a.step))
	}
}

// load starts the engine of an entry, unless one of its namespace that may start no other soon
// was started after the plan was made. A reservation is not enough: the Mac must have the memory
// now.
func (rs *replicas) load(e *entry) {
	now, early := time.Now(), false
	rs.read(func() { early = now.Before(rs.startsNotBefore(e)) })
	if early || !rs.admitted(e) {
		return
	}
	rs.read(func() {
		rs.shares.starts(e.assignment.Namespace, now)
		e.tenure = rs.tenures.follow(e.assignment.Namespace, now)
	})
	rs.engines.start(e)
}

// release gives back the reservation of an entry that was drained, and reports
// it once that is written down.
func (rs *replicas) release(e *entry) {
	rs.giveBack(e)
	rs.recorder.record(func(s *journal.State) { s.Replica(e.key.UID, e.key.Epoch).Released = true }, func() {
		rs.change(func() {
			e.recording, e.state = false, Exited
			e.released = e.want != wantRunning && e.want != wantDownloaded // it may have been wanted again
		})
		rs.replan()
	})
}

// forget removes an entry that is not assigned.
func (rs *replicas) forget(e *entry) {
	rs.giveBack(e)
	rs.recorder.record(func(s *journal.State) { s.DropReplica(e.key.UID, e.key.Epoch) }, func() {
		rs.change(func() {
			if e.recording = false; e.want == wantGone && e.engine == nil { // it may have been assigned again
				delete(rs.entries, e.key)
			}
		})
		rs.replan()
	})
}

// giveBack ends the reservation of an entry without an engine, which is about to
// be written down.
func (rs *replicas) giveBack(e *entry) {
	rs.ledger.Release(e.key)
	rs.change(func() {
		e.recording, e.reserved = true, false
		rs.roomChanged()
	})
}
