package pool

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// ReasonInvalidAssignment of Admitted: the assignment is invalid.
const ReasonInvalidAssignment = "InvalidAssignment"

// derive computes the five conditions of an entry; the caller holds mu.
func (rs *replicas) derive(e *entry, now time.Time) []metav1.Condition {
	all := []metav1.Condition{e.downloadedCondition(), e.admittedCondition(), e.loadedCondition(), e.servingCondition(), e.releasedCondition()}
	if e.onDemand() && e.refused == nil {
		rs.deriveOnDemand(e, all, now)
	}
	if held := rs.heldBack(e, now); held != nil {
		all[2] = *held
	}
	return all
}

// deriveOnDemand adapts the conditions to an entry that the first request loads:
// it serves without an engine, unless no request could get one.
func (rs *replicas) deriveOnDemand(e *entry, all []metav1.Condition, now time.Time) {
	serves := condition(v1alpha1.ConditionServing, metav1.ConditionTrue, v1alpha1.ReasonOnDemand, "the first request loads the model")
	if !e.asleep() {
		if reason, why := rs.gate.blocked(); why != "" && e.engine != nil && e.engine.state == Exited {
			all[3] = condition(v1alpha1.ConditionServing, metav1.ConditionFalse, reason, "no engine is started: %s", why)
		} else if e.engine != nil && e.state != Ready && !e.outdated() && !e.engine.yielding() {
			all[3] = serves // a request waits for the load, or for the next one
		}
		return
	}
	if rs.ledger.Account().Limits.Capacity > 0 && e.assignment.ReservedBytes > rs.spare(e.key) {
		never := condition("", metav1.ConditionFalse, v1alpha1.ReasonInsufficientRoom, "the model needs %s, more than this Mac can reserve in addition to its always-resident models", v1alpha1.FormatBytes(e.assignment.ReservedBytes))
		all[1], all[3] = named(never, v1alpha1.ConditionAdmitted), named(never, v1alpha1.ConditionServing)
		all[2] = condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, v1alpha1.ReasonOnDemand, "there is no room to load the model")
		return
	}
	all[1] = condition(v1alpha1.ConditionAdmitted, metav1.ConditionUnknown, v1alpha1.ReasonOnDemand, "memory is reserved when a request loads the model")
	switch reason, why := rs.gate.blocked(); {
	case why != "":
		all[2] = condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, reason, "no engine is started: %s", why)
		all[3] = named(all[2], v1alpha1.ConditionServing)
	case e.setBackNow(now): // Loaded and Serving explain why, and when it is tried again
	case e.demand != nil:
		all[2] = condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, v1alpha1.ReasonLoading, "a request is waiting for the model to load")
		all[3] = serves
	default:
		all[2] = condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, v1alpha1.ReasonOnDemand, "the first request loads the model")
		all[3] = serves
	}
}

// heldBack is the condition Loaded of an entry whose engine may not start yet;
// nil if it may.
func (rs *replicas) heldBack(e *entry, now time.Time) *metav1.Condition {
	starts := e.want == wantRunning && e.engine == nil && e.refused == nil && e.download.done && (!e.onDemand() || e.demand != nil)
	var c metav1.Condition
	switch reason, why := rs.gate.blocked(); {
	case !starts:
		return nil
	case why != "":
		c = condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, reason, "no engine is started: %s", why)
	case !rs.gate.inOrder():
		c = condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, v1alpha1.ReasonHostUnsettled, "an engine ended uncleanly: the next one starts after two checks of the Mac's memory")
	case now.Before(rs.startsNotBefore(e)) && !e.setBackNow(now):
		c = condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, v1alpha1.ReasonBackOff, "engines of namespace %s ended uncleanly: its next ones start later, so that they do not hold up those of others", e.assignment.Namespace)
	case e.short != nil && !e.roomAgain.IsZero():
		c = condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, v1alpha1.ReasonWaitingRoom, "%v; retrying when memory is freed", e.short)
	default:
		return nil
	}
	return &c
}

func (e *entry) downloadedCondition() metav1.Condition {
	d := &e.download
	no := func(reason, format string, args ...any) metav1.Condition {
		return condition(v1alpha1.ConditionDownloaded, metav1.ConditionFalse, reason, format, args...)
	}
	switch {
	case d.done:
		return condition(v1alpha1.ConditionDownloaded, metav1.ConditionTrue, v1alpha1.ReasonVerified, "all files are on disk and verified")
	case d.failure != nil && d.failure.Final:
		return no(d.failure.Reason, "%s", d.failure.Message)
	case d.failure != nil:
		return no(d.failure.Reason, "%s; tried %d times, retrying", d.failure.Message, d.attempts)
	case d.running:
		return no(v1alpha1.ReasonDownloading, "%s to download", v1alpha1.FormatBytes(d.total))
	}
	return no(v1alpha1.ReasonWaiting, "not started")
}

func (e *entry) admittedCondition() metav1.Condition {
	switch {
	case e.want == wantInvalid:
		return condition(v1alpha1.ConditionAdmitted, metav1.ConditionFalse, ReasonInvalidAssignment, "%s", e.invalid)
	case e.refused != nil:
		return condition(v1alpha1.ConditionAdmitted, metav1.ConditionFalse, e.refused.Reason, "%s", e.refused.Message)
	case e.reserved:
		return condition(v1alpha1.ConditionAdmitted, metav1.ConditionTrue, v1alpha1.ReasonReserved, "%s are reserved", v1alpha1.FormatBytes(e.assignment.ReservedBytes))
	case e.released:
		return condition(v1alpha1.ConditionAdmitted, metav1.ConditionFalse, v1alpha1.ReasonReleased, "the reservation was released")
	}
	return condition(v1alpha1.ConditionAdmitted, metav1.ConditionUnknown, v1alpha1.ReasonWaiting, "memory is requested once the files are on disk")
}

func (e *entry) loadedCondition() metav1.Condition {
	no := func(reason, format string, args ...any) metav1.Condition {
		return condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, reason, format, args...)
	}
	switch {
	case e.refused != nil && e.refused.Reason == v1alpha1.ReasonInsufficientRoom && e.failure != nil:
		return no(e.failure.Reason, "%s", e.failure.Message) // Admitted explains why it is not started again
	case e.refused != nil && e.failure != nil:
		return no(e.refused.Reason, "%s", e.refused.Message)
	case e.engine != nil && e.engine.failure != nil: // given up, and not gone yet
		return no(e.engine.failure.Reason, "%s", e.engine.failure.Message)
	case e.state == Ready, e.state == Draining, e.state == Stopping && e.engine != nil:
		return condition(v1alpha1.ConditionLoaded, metav1.ConditionTrue, v1alpha1.ReasonLoaded, "the engine has loaded the model")
	case e.state == Loading:
		return no(v1alpha1.ReasonLoading, "load %d", e.loads)
	case e.failure != nil:
		return no(e.failure.Reason, "%s; restart %d of %d", e.failure.Message, len(e.crashes), maxCrashes)
	case e.loads > 0:
		return no(v1alpha1.ReasonStopped, "no engine is running")
	}
	return no(v1alpha1.ReasonWaiting, "not started")
}

func (e *entry) servingCondition() metav1.Condition {
	no := func(reason, format string, args ...any) metav1.Condition {
		return condition(v1alpha1.ConditionServing, metav1.ConditionFalse, reason, format, args...)
	}
	switch {
	case e.state == Ready:
		return condition(v1alpha1.ConditionServing, metav1.ConditionTrue, v1alpha1.ReasonServing, "the engine answers requests")
	case e.state == Draining, e.state == Stopping:
		return no(v1alpha1.ReasonDraining, "running requests finish; new requests are routed to other replicas")
	case e.state == Loading:
		return no(v1alpha1.ReasonLoading, "the engine is loading the model")
	case e.refused != nil:
		return no(e.refused.Reason, "%s", e.refused.Message)
	case e.failure != nil:
		return no(v1alpha1.ReasonBackOff, "%s; the engine restarts soon", e.failure.Message)
	case e.released || e.loads > 0:
		return no(v1alpha1.ReasonStopped, "no engine is running")
	}
	return no(v1alpha1.ReasonWaiting, "not started")
}

func (e *entry) releasedCondition() metav1.Condition {
	if !e.released {
		return condition(v1alpha1.ConditionReleased, metav1.ConditionFalse, v1alpha1.ReasonHeld, "assigned to this Mac")
	}
	switch {
	case e.loads == 0:
		return condition(v1alpha1.ConditionReleased, metav1.ConditionTrue, v1alpha1.ReasonReleased, "the replica had no engine")
	case e.freed.Bytes == nil:
		return condition(v1alpha1.ConditionReleased, metav1.ConditionTrue, v1alpha1.ReasonReleased, "the engine has ended; the memory it held could not be measured")
	}
	return condition(v1alpha1.ConditionReleased, metav1.ConditionTrue, v1alpha1.ReasonReleased, "the engine has ended and freed %s", v1alpha1.FormatBytes(*e.freed.Bytes))
}
