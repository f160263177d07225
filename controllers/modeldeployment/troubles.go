package modeldeployment

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

func progressingCondition(s *scope, next v1alpha1.ModelDeploymentStatus, living []*v1alpha1.ModelReplica) status.Condition {
	is := v1alpha1.ConditionProgressing
	switch state := next.Rollout.State; {
	case s.failureReason() != "":
		return status.False(is, s.failureReason(), s.failure.Error()+"; the operator retries")
	case state == v1alpha1.RolloutPaused && s.deployment.DeletionTimestamp.IsZero():
		return status.Unknown(is, string(state), fmt.Sprintf("the rollout is paused by spec.rollout.paused (resume it with `kubectl metalfleet rollout resume %s`); %s", s.deployment.Name, rolling(s, next)))
	case state == v1alpha1.RolloutHalted:
		return status.False(is, string(state), halted(s.deployment, next))
	case s.overdue:
		return status.False(is, v1alpha1.ReasonProgressDeadline, fmt.Sprintf("no progress for %d s; %s", int(deadline(s.deployment).Seconds()), rolling(s, next)))
	case state == v1alpha1.RolloutSurging || state == v1alpha1.RolloutReplacing || state == v1alpha1.RolloutPrefetching || state == v1alpha1.RolloutSwapping || state == v1alpha1.RolloutWaiting:
		return status.True(is, string(state), rolling(s, next))
	case len(living) != len(s.replicas):
		return status.True(is, v1alpha1.ReasonDraining, fmt.Sprintf("draining replicas: %d", len(s.replicas)-len(living)))
	case s.verdict.condition.Status == metav1.ConditionUnknown:
		return status.True(is, s.verdict.condition.Reason, s.verdict.condition.Message)
	}
	for _, r := range living {
		if c := underWay(r); c != nil {
			return status.True(is, c.Reason, r.Name+": "+detail(r, c)+nextStep(r, c.Reason))
		}
		if fleet.ReplicaReady(r) {
			continue
		}
		if p := r.Status.Summary.Progress; p != "" {
			return status.True(is, v1alpha1.ReasonLoading, r.Name+": "+p)
		}
		return status.True(is, v1alpha1.ReasonWaiting, r.Name+" is not ready yet")
	}
	if wanted := fleet.Wanted(s.deployment); !s.ends() && s.verdict.engine != nil && next.AvailableReplicas < wanted {
		return status.True(is, v1alpha1.ReasonWaiting, fmt.Sprintf("%d of %d replicas are available", next.AvailableReplicas, wanted))
	}
	return status.False(is, v1alpha1.ReasonStable, "no change is in progress")
}

func degradedCondition(s *scope, living []*v1alpha1.ModelReplica) status.Condition {
	is := v1alpha1.ConditionDegraded
	if reason := s.failureReason(); reason != "" {
		return status.True(is, reason, s.failure.Error()+"; the operator retries")
	}
	if s.verdict.condition.Status == metav1.ConditionFalse && len(living) > 0 {
		return status.True(is, s.verdict.condition.Reason, "the previously accepted spec stays in effect: "+s.verdict.condition.Message)
	}
	if h := s.rollout.Halt; h != nil {
		return status.True(is, h.Reason, fmt.Sprintf("revision %s failed: %s", h.Revision, h.Message))
	}
	for _, r := range living {
		if c := trouble(r); c != nil {
			return status.True(is, c.Reason, r.Name+": "+c.Message+nextStep(r, c.Reason))
		}
	}
	return status.False(is, v1alpha1.ReasonStable, "no failure")
}

// troubles are the reasons of a replica's conditions that mean a failure that is retried.
func troubles() []string {
	return []string{
		v1alpha1.ReasonDownloadFailed, v1alpha1.ReasonDiskFull, v1alpha1.ReasonInsufficientRoom, v1alpha1.ReasonLoadFailed, v1alpha1.ReasonCanaryFailed,
		v1alpha1.ReasonEngineCrashed, v1alpha1.ReasonBackOff, v1alpha1.ReasonHostUnsettled,
		v1alpha1.ReasonMacSilent, v1alpha1.ReasonMacGone,
	}
}

// trouble returns the failed condition of a replica. A ready one may have one too: an
// OnDemand replica accepts requests while its Mac cannot load it.
func trouble(r *v1alpha1.ModelReplica) *metav1.Condition {
	return reported(r, troubles())
}

// underWay returns the condition that describes what an assigned replica waits for or does
// with memory.
func underWay(r *v1alpha1.ModelReplica) *metav1.Condition {
	c := reported(r, []string{v1alpha1.ReasonWaitingRoom, v1alpha1.ReasonHostUnsettled})
	if c == nil && fleet.ReplicaReady(r) {
		c = reported(r, []string{v1alpha1.ReasonLoading})
	}
	return c
}

// reported returns the first condition, of Ready and the Mac's conditions of memory and
// engine, that is false or unknown for one of the reasons.
func reported(r *v1alpha1.ModelReplica, reasons []string) *metav1.Condition {
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAdmitted, v1alpha1.ConditionLoaded} {
		c := condition(r.Status.Conditions, kind)
		if c != nil && c.Status != metav1.ConditionTrue && slices.Contains(reasons, c.Reason) {
			return c
		}
	}
	return nil
}

// detail prefers the progress of a load in bytes to the Mac's message about it.
func detail(r *v1alpha1.ModelReplica, c *metav1.Condition) string {
	if p := r.Status.Summary.Progress; c.Reason == v1alpha1.ReasonLoading && p != "" {
		return p
	}
	return c.Message
}

// nextStep returns what a person may do about a memory reason; empty if the message
// contains it, or waiting is the only option.
func nextStep(r *v1alpha1.ModelReplica, reason string) string {
	switch {
	case reason == v1alpha1.ReasonHostUnsettled:
		return "; the Mac checks its memory before it starts an engine again; if this persists, see WiredStranded in `kubectl describe mac`"
	case reason == v1alpha1.ReasonWaitingRoom && r.Spec.Residency.OnDemand():
		return "; it loads once another model on that Mac is idle: lower residency.idleSeconds of that model, raise residency.evictionPriority of this one, or add a Mac"
	case reason == v1alpha1.ReasonWaitingRoom:
		return "; it loads once another model on that Mac is idle or drained"
	case reason == v1alpha1.ReasonInsufficientRoom && !r.Spec.Residency.OnDemand():
		return "; another replica is created, and placement avoids that Mac for a while"
	case reason == v1alpha1.ReasonInsufficientRoom:
		return "; scale down an Always model on that Mac, make it OnDemand, or delete this replica so that it is placed again"
	}
	return ""
}
