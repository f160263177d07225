package modelreplica

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// copied are the conditions of the Mac's report that the operator copies.
var copied = []string{
	v1alpha1.ConditionDownloaded, v1alpha1.ConditionAdmitted, v1alpha1.ConditionLoaded,
	v1alpha1.ConditionServing, v1alpha1.ConditionReleased,
}

// derive computes the status of a replica from its Mac's report. Placement owns the
// condition Placed, so it is not in the result.
func derive(r *v1alpha1.ModelReplica, mac *v1alpha1.MacNode, now time.Time) v1alpha1.ModelReplicaStatus {
	next := v1alpha1.ModelReplicaStatus{ObservedGeneration: r.Generation}
	state := fleet.StateOf(mac)
	report := fleet.Report(mac, r)
	var reported []metav1.Condition
	switch {
	case r.Spec.NodeName == "":
		// Its Mac only prefetches the weights, or none does.
		next.Freed = r.Status.Freed
		if report != nil {
			next.Progress, reported = report.Progress, status.Pick(report.Conditions, v1alpha1.ConditionDownloaded)
		}
	case report != nil:
		next.Progress, next.Memory, next.Freed, next.Canary = report.Progress, report.Memory, report.Freed, report.Canary
		next.Restarts, next.LastFailure = report.Restarts, report.LastFailure
		reported = status.Pick(report.Conditions, copied...)
	case state != fleet.MacReady:
		// The last report of a Mac that is away is kept, marked as stale.
		next.Progress, next.Memory, next.Freed, next.Canary = r.Status.Progress, r.Status.Memory, r.Status.Freed, r.Status.Canary
		next.Restarts, next.LastFailure = r.Status.Restarts, r.Status.LastFailure
		reported = status.Pick(r.Status.Conditions, copied...)
	}
	if fenced(r, state) && !meta.IsStatusConditionTrue(reported, v1alpha1.ConditionReleased) {
		if r.Spec.NodeName != "" { // otherwise it never had memory
			next.Freed = unknownFreed(next.Freed)
		}
		reported = withReleased(reported, r, now)
	}
	released := meta.IsStatusConditionTrue(reported, v1alpha1.ConditionReleased)
	ready := readiness(r, state, released, reported, next.Progress)
	if ready.Status == metav1.ConditionTrue && fleet.Unreachable(mac) {
		ready = status.False(v1alpha1.ConditionReady, v1alpha1.ReasonMacUnreachable, "no gateway can connect to "+r.Spec.NodeName+"; see Reachable in `kubectl describe mac "+r.Spec.NodeName+"`")
	}
	next.Conditions = append(status.Merge(r.Status.Conditions, r.Generation, now, ready), reported...)
	if evicting, _ := Stay(r, mac, now); evicting != nil {
		next.Conditions = append(next.Conditions, *evicting)
	}
	stale := r.Spec.NodeName != "" && state != fleet.MacReady && !released
	next.Summary = summarize(next, stale, released)
	next.Summary.Reserved = v1alpha1.FormatBytes(r.Spec.ReservedBytes)
	return next
}

// fenced reports whether there will be no more report on a replica that is being deleted:
// it was never bound, or its Mac is gone.
func fenced(r *v1alpha1.ModelReplica, state fleet.MacState) bool {
	return !r.DeletionTimestamp.IsZero() && (r.Spec.NodeName == "" || state == fleet.MacGone)
}

// unknownFreed keeps what was measured before and marks the bytes of the last engine as
// unknown.
func unknownFreed(f v1alpha1.Freed) v1alpha1.Freed {
	return v1alpha1.Freed{TotalBytes: f.TotalBytes, HostCheck: v1alpha1.HostCheckIndeterminate}
}

// withReleased adds the operator's own Released.
func withReleased(reported []metav1.Condition, r *v1alpha1.ModelReplica, now time.Time) []metav1.Condition {
	c := status.True(v1alpha1.ConditionReleased, v1alpha1.ReasonMacGone,
		r.Spec.NodeName+" is gone: the replica is fenced by its epoch, and the memory that it freed is unknown")
	if r.Spec.NodeName == "" {
		c = status.True(v1alpha1.ConditionReleased, v1alpha1.ReasonReleased, "the replica was never placed on a Mac")
	}
	kept := status.Pick(reported, copied[:len(copied)-1]...)
	return append(kept, status.Merge(r.Status.Conditions, r.Generation, now, c)...)
}

// readiness derives the condition Ready.
func readiness(r *v1alpha1.ModelReplica, state fleet.MacState, released bool, reported []metav1.Condition, p v1alpha1.Progress) status.Condition {
	not := func(reason, message string) status.Condition {
		return status.False(v1alpha1.ConditionReady, reason, message)
	}
	switch {
	case released:
		return not(v1alpha1.ReasonReleased, "the replica is released")
	case !r.DeletionTimestamp.IsZero() || r.Spec.Desired == v1alpha1.DesiredDrained:
		return not(v1alpha1.ReasonDraining, "running requests finish, then the engine stops")
	case fleet.Prefetches(r) && meta.IsStatusConditionTrue(reported, v1alpha1.ConditionDownloaded):
		return not(v1alpha1.ReasonPrefetched, r.Spec.PrefetchNodeName+" keeps the weights on its disk; no engine runs (spec.prefetch)")
	case r.Spec.NodeName == "" && meta.IsStatusConditionFalse(reported, v1alpha1.ConditionDownloaded):
		c := meta.FindStatusCondition(reported, v1alpha1.ConditionDownloaded)
		return not(c.Reason, r.Spec.PrefetchNodeName+" downloads the weights first: "+c.Message)
	case r.Spec.NodeName == "":
		return not(placing(r))
	case state == fleet.MacGone:
		return not(v1alpha1.ReasonMacGone, r.Spec.NodeName+" is gone; its deployment creates another replica")
	case state == fleet.MacSilent:
		return status.Unknown(v1alpha1.ConditionReady, v1alpha1.ReasonMacSilent,
			r.Spec.NodeName+" has no recent heartbeat; all figures are from its last report")
	case state == fleet.MacUnknown:
		return status.Unknown(v1alpha1.ConditionReady, v1alpha1.ReasonPending, r.Spec.NodeName+" is not evaluated yet")
	case onDemand(reported):
		return status.True(v1alpha1.ConditionReady, v1alpha1.ReasonOnDemand, "not loaded on "+r.Spec.NodeName+": the next request loads it")
	case meta.IsStatusConditionTrue(reported, v1alpha1.ConditionServing):
		return status.True(v1alpha1.ConditionReady, v1alpha1.ReasonReady, "serving on "+r.Spec.NodeName)
	}
	for _, kind := range []string{v1alpha1.ConditionDownloaded, v1alpha1.ConditionAdmitted, v1alpha1.ConditionLoaded, v1alpha1.ConditionServing} {
		if c := meta.FindStatusCondition(reported, kind); c != nil && c.Status != metav1.ConditionTrue {
			return not(c.Reason, c.Message)
		}
	}
	if p.Stage == "" {
		return not(v1alpha1.ReasonWaiting, "waiting for "+r.Spec.NodeName+" to accept the assignment")
	}
	return not(v1alpha1.ReasonNotReady, "stage "+string(p.Stage)+" on "+r.Spec.NodeName)
}

// placing returns why a replica has no Mac, as placement reported.
func placing(r *v1alpha1.ModelReplica) (reason, message string) {
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionPlaced); c != nil && c.Status != metav1.ConditionTrue {
		return c.Reason, c.Message
	}
	return v1alpha1.ReasonPlacing, "placement has not evaluated it yet"
}

// onDemand reports whether a replica accepts requests without a model in memory: its Mac
// loads it for the first request.
func onDemand(reported []metav1.Condition) bool {
	serving, loaded := meta.FindStatusCondition(reported, v1alpha1.ConditionServing), meta.FindStatusCondition(reported, v1alpha1.ConditionLoaded)
	return serving != nil && serving.Status == metav1.ConditionTrue &&
		loaded != nil && loaded.Status != metav1.ConditionTrue && loaded.Reason == v1alpha1.ReasonOnDemand
}

// summarize rounds the figures for kubectl get.
func summarize(s v1alpha1.ModelReplicaStatus, stale, released bool) v1alpha1.ReplicaSummary {
	mark := ""
	if stale {
		mark = " (stale)"
	}
	out := v1alpha1.ReplicaSummary{
		Memory: v1alpha1.FormatBytes(s.Memory.FootprintBytes) + mark,
		Freed:  v1alpha1.FormatBytes(s.Freed.TotalBytes),
	}
	if released && s.Freed.HostCheck == v1alpha1.HostCheckIndeterminate && s.Freed.Bytes == nil {
		out.Freed += " + unknown"
	}
	switch p := s.Progress; {
	case onDemand(s.Conditions) && !released:
		out.Progress = "On demand, not loaded" + mark
	case p.Stage != "":
		out.Progress = string(p.Stage) + progress(p) + mark
	}
	return out
}

// progress formats " 41% (38.2 MiB of 93.1 MiB, 4 s)" while a stage counts bytes.
func progress(p v1alpha1.Progress) string {
	if p.BytesTotal <= 0 || p.BytesDone >= p.BytesTotal {
		return ""
	}
	eta := ""
	if p.ETASeconds != nil {
		eta = fmt.Sprintf(", %d s", *p.ETASeconds)
	}
	return fmt.Sprintf(" %d%% (%s of %s%s)", int64(100*(float64(p.BytesDone)/float64(p.BytesTotal))),
		v1alpha1.FormatBytes(p.BytesDone), v1alpha1.FormatBytes(p.BytesTotal), eta)
}
