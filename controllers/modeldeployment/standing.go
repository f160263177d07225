package modeldeployment

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// manual are the reasons of Accepted, Placed and Downloaded that last until a
// person changes something, although most are checked again at intervals.
func manual() []string {
	return []string{
		v1alpha1.ReasonNameConflict, v1alpha1.ReasonSpecTooLarge, v1alpha1.ReasonInvalidAffinity, v1alpha1.ReasonUnknownSize, v1alpha1.ReasonSourceNotFound, v1alpha1.ReasonSourceForbidden,
		v1alpha1.ReasonDigestMismatch, v1alpha1.ReasonReportRefused, v1alpha1.ReasonSourceDisputed, v1alpha1.ReasonInvalidModel, v1alpha1.ReasonUnsupportedModel,
		v1alpha1.ReasonContextTooLong, v1alpha1.ReasonCacheUseless, v1alpha1.ReasonLimitTooSmall, v1alpha1.ReasonInspectionFailed, v1alpha1.ReasonGatedModel,
		v1alpha1.ReasonTokenRefused, v1alpha1.ReasonPriorityClassNotFound, v1alpha1.ReasonProfileNotFound, v1alpha1.ReasonProfileConflict, v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonSecretInvalid, v1alpha1.ReasonSecretForbidden,
		v1alpha1.ReasonTooLarge, v1alpha1.ReasonOverQuota, v1alpha1.ReasonRulesMissing, v1alpha1.ReasonDiskFull,
	}
}

func needsPerson(c *metav1.Condition) bool {
	return c != nil && c.Status != metav1.ConditionTrue && slices.Contains(manual(), c.Reason)
}

// createError is an error of the API server when it was asked for a replica.
type createError struct {
	name string
	err  error
}

func (e *createError) Error() string { return "create replica " + e.name + ": " + e.err.Error() }
func (e *createError) Unwrap() error { return e.err }

// failureReason is the reason of a failed pass; empty if it did not fail. A
// conflict is no failure: the next pass reads the new object.
func (s *scope) failureReason() string {
	var create *createError
	switch {
	case s.failure == nil || apierrors.IsConflict(s.failure):
		return ""
	case errors.As(s.failure, &create), full(s.failure):
		return v1alpha1.ReasonCreateFailed
	}
	return v1alpha1.ReasonReconcileFailed
}

// full reports whether the namespace has no room for a replica, a larger one, or a revision.
func full(err error) bool {
	var full *fullError
	var revisions *createRevisionError
	return errors.As(err, &full) || errors.As(err, &revisions)
}

// refused reports whether the answer is final: a quota, an admission policy, missing permissions
// or a full namespace.
func refused(err error) bool {
	return full(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// silent reports whether the Mac of a replica is silent: it may be back at any time.
func silent(r *v1alpha1.ModelReplica) bool {
	c := condition(r.Status.Conditions, v1alpha1.ConditionReady)
	return c != nil && c.Status == metav1.ConditionUnknown
}

// stalledCondition reports problems that only a person can solve.
func stalledCondition(s *scope, next v1alpha1.ModelDeploymentStatus, accepted status.Condition, living []*v1alpha1.ModelReplica) status.Condition {
	is := v1alpha1.ConditionStalled
	no := status.False(is, v1alpha1.ReasonStable, "nothing waits for a person")
	switch {
	case s.ends():
		return no
	case refused(s.failure):
		return status.True(is, s.failureReason(), s.failure.Error()+"; the operator retries")
	case accepted.Status != metav1.ConditionTrue && slices.Contains(manual(), accepted.Reason):
		return status.True(is, accepted.Reason, accepted.Message)
	case accepted.Status != metav1.ConditionTrue:
		return no // a halt of the previous spec
	case s.rollout.Halt != nil:
		return status.True(is, v1alpha1.ReasonHalted, halted(s.deployment, next))
	case s.overdue && s.some(func(r *v1alpha1.ModelReplica) bool { return !available(r) && !silent(r) }):
		return status.True(is, v1alpha1.ReasonProgressDeadline, fmt.Sprintf("no progress for %d s; %s", int(deadline(s.deployment).Seconds()), rolling(s, next)))
	}
	for _, r := range living {
		if available(r) {
			continue
		}
		for _, kind := range []string{v1alpha1.ConditionPlaced, v1alpha1.ConditionDownloaded} {
			if c := condition(r.Status.Conditions, kind); needsPerson(c) {
				return status.True(is, c.Reason, r.Name+": "+c.Message)
			}
		}
		if f := r.Status.LastFailure; f != nil && r.Status.Restarts >= maxFailures && next.CurrentRevision != r.Spec.Revision {
			return status.True(is, f.Reason, fmt.Sprintf("%s: the engine failed %d times and never served: %s", r.Name, r.Status.Restarts, f.Message))
		}
	}
	return no
}

// readyCondition is true only if the current spec is accepted and every desired replica
// serves it: an earlier revision that serves counts for Available.
func readyCondition(s *scope, next v1alpha1.ModelDeploymentStatus, accepted, placed, stalled status.Condition, living []*v1alpha1.ModelReplica) status.Condition {
	wanted := fleet.Wanted(s.deployment)
	is := v1alpha1.ConditionReady
	progress := fmt.Sprintf("%d of %d replicas are ready", next.UpdatedAvailableReplicas, wanted)
	switch {
	case !s.deployment.DeletionTimestamp.IsZero():
		return status.False(is, v1alpha1.ReasonDraining, fmt.Sprintf("being deleted; %d replicas are not released yet", len(s.replicas)))
	case stalled.Status == metav1.ConditionTrue:
		return status.False(is, stalled.Reason, stalled.Message)
	case accepted.Status != metav1.ConditionTrue:
		return status.False(is, accepted.Reason, accepted.Message)
	case s.failureReason() != "":
		return status.False(is, s.failureReason(), s.failure.Error())
	case s.verdict.engine != nil && s.current == nil:
		return status.False(is, v1alpha1.ReasonPending, "the revision of this spec is not stored yet")
	case wanted == 0:
		reason, message := zero(s.deployment)
		return status.True(is, reason, message)
	case complete(s, next) && next.LoadedReplicas == 0 && fleet.Residency(s.deployment.Spec.Residency).OnDemand():
		return status.True(is, v1alpha1.ReasonOnDemand, progress+", none is loaded: the next request loads one")
	case complete(s, next):
		return status.True(is, v1alpha1.ReasonReady, progress)
	case next.Rollout.State.Replaces():
		return status.False(is, string(next.Rollout.State), rolling(s, next))
	case placed.Status == metav1.ConditionFalse:
		return status.False(is, placed.Reason, progress+"; "+placed.Message)
	}
	for _, r := range living {
		if c := condition(r.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Status != metav1.ConditionTrue {
			return status.False(is, c.Reason, fmt.Sprintf("%s; %s: %s", progress, r.Name, c.Message))
		}
	}
	return status.False(is, v1alpha1.ReasonNotReady, progress)
}

// zero returns why a deployment is to have no replica.
func zero(d *v1alpha1.ModelDeployment) (reason, message string) {
	if d.Spec.Suspend {
		return v1alpha1.ReasonSuspended, "suspended by spec.suspend, which has to be false for replicas to be created again"
	}
	return v1alpha1.ReasonScaledToZero, "scaled to zero"
}

// availableCondition reports whether requests are served, by any revision.
func availableCondition(s *scope, next v1alpha1.ModelDeploymentStatus, ready status.Condition) status.Condition {
	is := v1alpha1.ConditionAvailable
	n := next.AvailableReplicas
	switch {
	case s.deployment.DeletionTimestamp.IsZero() && n > 0 && (next.UpdatedAvailableReplicas == 0 || s.verdict.engine == nil && ready.Status != metav1.ConditionTrue):
		return status.True(is, v1alpha1.ReasonPreviousRevision, fmt.Sprintf("%d replicas of the previous revision (%s) accept requests", n, cmp.Or(next.CurrentRevision, "unknown")))
	case s.deployment.DeletionTimestamp.IsZero() && n > 0:
		return status.True(is, v1alpha1.ReasonAvailable, fmt.Sprintf("%d replicas accept requests, %d of them of the current revision", n, next.UpdatedAvailableReplicas))
	}
	return status.False(is, ready.Reason, ready.Message)
}

// reconcilingCondition is true while the operator works on a state that is neither reached
// nor stalled, and while replicas drain.
func reconcilingCondition(s *scope, ready, stalled status.Condition, living []*v1alpha1.ModelReplica) status.Condition {
	is := v1alpha1.ConditionReconciling
	switch {
	case stalled.Status == metav1.ConditionTrue:
		return status.False(is, stalled.Reason, "the operator waits for a person: see the condition Stalled")
	case ready.Status != metav1.ConditionTrue:
		return status.True(is, ready.Reason, ready.Message)
	case len(living) != len(s.replicas):
		return status.True(is, v1alpha1.ReasonDraining, fmt.Sprintf("draining replicas: %d", len(s.replicas)-len(living)))
	}
	return status.False(is, v1alpha1.ReasonStable, "the current spec is served")
}

// notices returns the Event of a deployment that stalls, or that stalls for another reason:
// a halted rollout, a quota, a missing source. Its ID contains the generation and the
// attempt, so that a flapping one has a single Event.
func notices(s *scope, next v1alpha1.ModelDeploymentStatus) []notice.Notice {
	before, now := condition(s.deployment.Status.Conditions, v1alpha1.ConditionStalled), condition(next.Conditions, v1alpha1.ConditionStalled)
	same := before != nil && before.Status == now.Status && before.Reason == now.Reason && before.ObservedGeneration == now.ObservedGeneration
	if now.Status != metav1.ConditionTrue || same {
		return nil
	}
	return []notice.Notice{{
		About: notice.Of("ModelDeployment", s.deployment), ID: fmt.Sprint(s.deployment.Generation, next.UpdateRevision, s.deployment.Spec.Rollout.RetryGeneration),
		Reason: now.Reason, Message: now.Message, Warning: true,
	}}
}
