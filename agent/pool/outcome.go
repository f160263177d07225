package pool

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// What the engine life cycle reports to the state machine: each is called under
// the lock.

// ready makes the entry serve and gives every waiting request its hold, in the
// same critical section in which the engine became ready: nothing can evict it
// in between.
func (rs *replicas) ready(e *entry, g *engine, now time.Time) {
	e.state, e.failure = Ready, nil
	e.canary = &v1alpha1.Canary{Time: metav1.NewTime(now.Truncate(time.Second))} // it is ready because it generated one
	e.admitWaiters(g)
}

// gaveUp ends the wait of requests for an engine that cannot serve.
func (rs *replicas) gaveUp(e *entry, why journal.Refusal, now time.Time) {
	e.failWaiters(e.failedLoad(why, now))
}

// failed counts a crash or failed load and decides on a restart; no process is
// there.
func (rs *replicas) failed(e *entry, why journal.Refusal, now time.Time) {
	why = why.Bounded()
	defer func() { e.failWaiters(e.failedLoad(why, now)) }()
	f := e.failed(why, now)
	e.failure, e.crashes, e.lastFailure = &why, f.crashes, f.last
	e.restarts++
	if f.refused == nil {
		e.restart, e.state = now.Add(f.wait), Reserved
		return
	}
	e.refused, e.state, e.reserved = f.refused, Failed, false
	rs.ledger.Release(e.key)
}

// putOff delays the next load, for a reason that is no failure of the engine.
func (rs *replicas) putOff(e *entry, why journal.Refusal, now time.Time) { e.setBack(why, now) }

// ended decides what the entry does after an observed end; why is what it counts
// as if that was the engine's fault, else nil.
func (rs *replicas) ended(e *entry, r v1alpha1.Reclaim, why *journal.Refusal, now time.Time) {
	if unclean(r.Exit) && (why != nil || disobeyed(r)) {
		rs.shares.failed(r.Namespace, now)
	}
	if why != nil {
		rs.failed(e, *why, now)
		if r.Reason == v1alpha1.ReclaimLoadFailed && e.refused == nil {
			e.download.done = false // the files may have been removed since: they are looked at again
		}
		return
	}
	switch r.Reason {
	case v1alpha1.ReclaimHardPressure, v1alpha1.ReclaimEmergency, v1alpha1.ReclaimLoadCancelled:
		e.setBack(journal.Refusal{Reason: string(r.Reason), Message: "the engine was ended because this Mac is short of memory"}, now)
	case v1alpha1.ReclaimReplaced:
		e.state = Reserved
	default:
		e.state, e.failure = Exited, nil
	}
}

// disobeyed reports whether an engine that had time to end by itself had to be killed, or
// crashed: its tenant may have deleted it, and starts the next one.
func disobeyed(r v1alpha1.Reclaim) bool {
	return r.Exit != v1alpha1.ExitUnknown && !hurried(r.Reason)
}

// vacated takes the ended engine out of its entry, so that another may be
// started. An OnDemand entry gives its reservation back and asks again with the
// next request.
func (rs *replicas) vacated(e *entry, ended time.Time) {
	if g := e.engine; g != nil {
		e.guards = e.guards.plus(g.status.GetGuard())
		e.remembered = e.remembered.plus(g.status.GetPrefixCache())
		rs.room.answerHeadroom(g)
		rs.tenures.left(e, g, ended)
	}
	other := e.engine != nil && e.engine.record.Reserved != e.assignment.ReservedBytes // the next engine needs another reservation
	e.engine = nil
	if e.reserved && (e.onDemand() || other) {
		rs.ledger.Release(e.key)
		e.reserved, e.state = false, Absent
	}
	rs.roomChanged()
}
