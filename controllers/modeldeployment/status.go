package modeldeployment

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

func condition(conditions []metav1.Condition, kind string) *metav1.Condition {
	return meta.FindStatusCondition(conditions, kind)
}

// deriveStatus computes the whole status from what the pass read and did.
func deriveStatus(s *scope) v1alpha1.ModelDeploymentStatus {
	d := s.deployment
	next := v1alpha1.ModelDeploymentStatus{
		ObservedGeneration: s.observed(),
		Selector:           v1alpha1.LabelDeployment + "=" + d.Name,
		ServedNames:        s.verdict.names,
		Adapters:           fleet.Adapters(d, s.verdict.names),
		ModelSource:        d.Spec.Model.Resolved().Source,
	}
	if d.Spec.Model.SecretRef != nil {
		next.SecretUID = d.Status.SecretUID
	}
	if s.current != nil {
		next.UpdateRevision = s.current.object.Name
		next.ModelDigest, next.Context = s.current.engine.Model.Digest, &s.current.engine.Context
		next.Features = v1alpha1.FeaturesOf(s.current.engine.Model, s.current.engine.ChatTemplate)
		// The revision resolved before, so the estimate cannot fail; 0 means unknown.
		next.ReservedBytesPerReplica, _ = s.current.engine.ReservedBytes()
	} else {
		next.UpdateRevision, next.ModelDigest, next.Context = d.Status.UpdateRevision, d.Status.ModelDigest, d.Status.Context
		next.ReservedBytesPerReplica, next.Features = d.Status.ReservedBytesPerReplica, d.Status.Features
	}
	if s.verdict.condition.Type == "" {
		// This pass did not decide: it failed early, or the deployment is being deleted and
		// its bare names are free again.
		next.ServedNames, next.Adapters = d.Status.ServedNames, d.Status.Adapters
		if !d.DeletionTimestamp.IsZero() {
			next.ServedNames = []string{d.Namespace + "/" + d.Name}
		}
	}
	count(&next, s)
	next.CurrentRevision, next.Rollout = d.Status.CurrentRevision, d.Status.Rollout
	if s.current != nil && d.DeletionTimestamp.IsZero() {
		describeRollout(&next, s)
	}
	next.RetiredFreedBytes, next.Accounted = account(d.Status, slices.Concat(s.replicas, s.prefetchers))
	next.FreedBytesTotal = fleet.Add(next.RetiredFreedBytes, liveFreed(s.replicas, next.Accounted))
	if d.Spec.Prefetch.Macs > 0 {
		next.PrefetchedMacs = prefetchedMacs(s)
	}
	next.Summary = v1alpha1.DeploymentSummary{
		Ready:  fmt.Sprintf("%d/%d", next.ReadyReplicas, fleet.Wanted(d)),
		Memory: v1alpha1.FormatBytes(next.FootprintBytes),
		Freed:  v1alpha1.FormatBytes(next.FreedBytesTotal),
	}
	next.Conditions = status.Merge(d.Status.Conditions, max(0, next.ObservedGeneration), s.now, conditions(s, next)...)
	return next
}

// describeRollout sets the state of the rollout and the revision that served last. A
// deployment that is scaled to zero proves nothing.
func describeRollout(next *v1alpha1.ModelDeploymentStatus, s *scope) {
	next.CurrentRevision = s.served()
	if (complete(s, *next) || s.tookOver()) && fleet.Wanted(s.deployment) > 0 {
		next.CurrentRevision = next.UpdateRevision
	}
	if s.rollout.StartTime != nil { // otherwise the pass failed before it was judged
		next.Rollout = s.rollout
	}
	next.Rollout.State = stateOf(s, *next)
	next.Rollout.ETASeconds = eta(s, *next)
}

func count(next *v1alpha1.ModelDeploymentStatus, s *scope) {
	for i := range s.replicas {
		r := &s.replicas[i]
		next.FootprintBytes = fleet.Add(next.FootprintBytes, r.Status.Memory.FootprintBytes)
		if !r.DeletionTimestamp.IsZero() {
			continue
		}
		next.Replicas++
		if fleet.ReplicaReady(r) {
			next.ReadyReplicas++
		}
		if available(r) {
			next.AvailableReplicas++
		}
		if fleet.Loaded(r) {
			next.LoadedReplicas++
		}
		if r.Spec.Revision == next.UpdateRevision {
			next.UpdatedReplicas++
			if available(r) {
				next.UpdatedAvailableReplicas++
			}
		}
	}
}

// account adds the freed bytes of released replicas to the retired total, each once: its
// UID and its bytes enter the status in the same write. Entries of deleted replicas are
// dropped.
func account(before v1alpha1.ModelDeploymentStatus, replicas []v1alpha1.ModelReplica) (retired int64, accounted []string) {
	retired = before.RetiredFreedBytes
	for i := range replicas {
		r := &replicas[i]
		uid := string(r.UID)
		if slices.Contains(before.Accounted, uid) {
			accounted = append(accounted, uid)
			continue
		}
		if !r.DeletionTimestamp.IsZero() && fleet.Released(r) {
			retired = fleet.Add(retired, r.Status.Freed.TotalBytes)
			accounted = append(accounted, uid)
		}
	}
	slices.Sort(accounted)
	return retired, accounted
}

// liveFreed returns the freed bytes that are not accounted for yet.
func liveFreed(replicas []v1alpha1.ModelReplica, accounted []string) int64 {
	var sum int64
	for i := range replicas {
		if !slices.Contains(accounted, string(replicas[i].UID)) {
			sum = fleet.Add(sum, replicas[i].Status.Freed.TotalBytes)
		}
	}
	return sum
}

// conditions derives all of them: first the summary that tools wait for, then the steps in
// causal order, and Routed and Prefetched if the spec asks for them.
func conditions(s *scope, next v1alpha1.ModelDeploymentStatus) []status.Condition {
	living := living(s.replicas)
	accepted := s.verdict.condition
	if accepted.Type == "" {
		accepted = keep(s.deployment.Status.Conditions, v1alpha1.ConditionAccepted)
	}
	placed := placedCondition(s, living)
	stalled := stalledCondition(s, next, accepted, living)
	ready := readyCondition(s, next, accepted, placed, stalled, living)
	out := []status.Condition{
		ready, availableCondition(s, next, ready), reconcilingCondition(s, ready, stalled, living), stalled,
		accepted, fitsCondition(living), placed, downloadedCondition(living), progressingCondition(s, next, living), degradedCondition(s, living),
	}
	if targets := s.deployment.Spec.Routing.Targets(); len(targets) > 0 {
		out = append(out, routedCondition(targets, s.missing))
	}
	if s.deployment.Spec.Prefetch.Macs > 0 && !s.ends() {
		out = append(out, prefetchedCondition(s, next))
	}
	return out
}

// keep carries a condition over a pass that could not judge it.
func keep(conditions []metav1.Condition, kind string) status.Condition {
	if c := condition(conditions, kind); c != nil {
		return status.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message}
	}
	return status.Unknown(kind, v1alpha1.ReasonPending, "not evaluated yet")
}

// living returns the replicas that are not being deleted, the first slots first.
func living(replicas []v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	var out []*v1alpha1.ModelReplica
	for i := range replicas {
		if replicas[i].DeletionTimestamp.IsZero() {
			out = append(out, &replicas[i])
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha1.ModelReplica) int {
		if a.Spec.Slot != b.Spec.Slot {
			return int(a.Spec.Slot - b.Spec.Slot)
		}
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}

// fitsCondition: placement reports for each replica whether any Mac could ever hold it.
func fitsCondition(living []*v1alpha1.ModelReplica) status.Condition {
	is := v1alpha1.ConditionFits
	fits := false
	for _, r := range living {
		c := condition(r.Status.Conditions, v1alpha1.ConditionPlaced)
		switch {
		case c == nil:
		case c.Reason == v1alpha1.ReasonTooLarge:
			return status.False(is, v1alpha1.ReasonTooLarge, c.Message)
		case c.Reason == v1alpha1.ReasonPlaced || c.Reason == v1alpha1.ReasonNoRoom || c.Reason == v1alpha1.ReasonPreempting ||
			c.Reason == v1alpha1.ReasonPrefetching || c.Reason == v1alpha1.ReasonSwapping:
			fits = true
		}
	}
	if fits {
		return status.True(is, v1alpha1.ReasonFits, "at least one Mac could hold a replica if it were empty")
	}
	return status.Unknown(is, v1alpha1.ReasonPending, "placement has not evaluated a replica yet")
}

func placedCondition(s *scope, living []*v1alpha1.ModelReplica) status.Condition {
	is := v1alpha1.ConditionPlaced
	for _, r := range living {
		if r.Spec.NodeName != "" {
			continue
		}
		if c := condition(r.Status.Conditions, v1alpha1.ConditionPlaced); c != nil {
			return status.False(is, c.Reason, r.Name+": "+c.Message)
		}
		return status.False(is, v1alpha1.ReasonPlacing, r.Name+": placement has not evaluated it yet")
	}
	switch {
	case len(living) > 0:
		return status.True(is, v1alpha1.ReasonPlaced, "all replicas are placed")
	case fleet.Wanted(s.deployment) == 0:
		reason, message := zero(s.deployment)
		return status.True(is, reason, message)
	default:
		return status.Unknown(is, v1alpha1.ReasonPending, "there is no replica yet")
	}
}

func downloadedCondition(living []*v1alpha1.ModelReplica) status.Condition {
	is := v1alpha1.ConditionDownloaded
	if len(living) == 0 {
		return status.Unknown(is, v1alpha1.ReasonPending, "there is no replica yet")
	}
	for _, r := range living {
		c := condition(r.Status.Conditions, v1alpha1.ConditionDownloaded)
		switch {
		case c == nil:
			return status.False(is, v1alpha1.ReasonWaiting, r.Name+": the download has not started")
		case c.Status != metav1.ConditionTrue:
			return status.False(is, c.Reason, r.Name+": "+c.Message)
		}
	}
	return status.True(is, v1alpha1.ReasonVerified, "all replicas have their weights on disk")
}

// routedCondition reports whether all deployments exist that routing names. A missing one
// gets no requests, and the others do.
func routedCondition(targets, missing []string) status.Condition {
	if len(missing) == 0 {
		return status.True(v1alpha1.ConditionRouted, v1alpha1.ReasonTargetsFound, "found all deployments in spec.routing: "+strings.Join(targets, ", "))
	}
	return status.False(v1alpha1.ConditionRouted, v1alpha1.ReasonTargetNotFound, fmt.Sprintf(
		"ModelDeployment %s does not exist in this namespace and receives no requests. Create it, or remove it from spec.routing", strings.Join(missing, ", ")))
}
