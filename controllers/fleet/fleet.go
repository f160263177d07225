// Package fleet is the view of the fleet that reconcilers share: which Mac is alive, the
// names and revision of a deployment, the assignments of a Mac.
//
// It owns what more than one reconciler must agree on, as pure functions over API objects,
// and the field indexes that find those objects. It writes nothing and uses no clock. Which
// Macs inspect a source depends on all deployments and all Macs, and is needed for the orders of
// each Mac: Inspectors keeps the parts that do not change, so that an edit costs what it changed.
// Reconcilers never import one another; they share this package and conditions.
//
// Start reading at StateOf, then Eligibility in eligible.go, Engine in engine.go, Residency
// and Promise in residency.go, Assignments in orders.go, Inspect in
// inspection.go and Inspectors in inspectors.go.
package fleet

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// MacState is what the operator may assume about a Mac.
type MacState int

// States of a Mac.
const (
	// MacUnknown: its condition Ready was not set yet.
	MacUnknown MacState = iota
	// MacReady: it renewed its Lease recently.
	MacReady
	// MacSilent: no renewal for 30 s; its engines may well serve.
	MacSilent
	// MacGone: deleted, never joined, or no renewal for 180 s. Its replicas are fenced by
	// UID and epoch and may be created elsewhere.
	MacGone
)

// StateOf returns the state of a Mac; nil means that there is no such MacNode. One that is
// being deleted is gone once it is drained.
func StateOf(mac *v1alpha1.MacNode) MacState {
	if mac == nil || !mac.DeletionTimestamp.IsZero() && !Leaving(mac) {
		return MacGone
	}
	ready := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return MacUnknown
	case ready.Status == metav1.ConditionTrue:
		return MacReady
	case ready.Reason == v1alpha1.ReasonMacGone || ready.Reason == v1alpha1.ReasonNeverReported:
		return MacGone
	default:
		return MacSilent
	}
}

// Unreachable reports whether gateways found that none of them can connect to a Mac.
func Unreachable(mac *v1alpha1.MacNode) bool {
	return mac != nil && meta.IsStatusConditionFalse(mac.Status.Conditions, v1alpha1.ConditionReachable)
}

// Leaving reports whether a MacNode is being deleted and its replicas are drained first.
func Leaving(mac *v1alpha1.MacNode) bool {
	return !mac.DeletionTimestamp.IsZero() && controllerutil.ContainsFinalizer(mac, v1alpha1.FinalizerDrain)
}

// Report returns a Mac's status of a replica, by its UID and epoch, or nil.
func Report(mac *v1alpha1.MacNode, replica *v1alpha1.ModelReplica) *v1alpha1.AssignmentStatus {
	if mac == nil {
		return nil
	}
	for i := range mac.Status.Assignments {
		a := &mac.Status.Assignments[i]
		if a.ReplicaUID == string(replica.UID) && a.Epoch == replica.Spec.Epoch {
			return a
		}
	}
	return nil
}

// Prefetches reports whether a replica keeps weights on a Mac and never runs an engine
// (spec.prefetch).
func Prefetches(r *v1alpha1.ModelReplica) bool {
	return r.Spec.Desired == v1alpha1.DesiredDownloaded && r.Spec.NodeName == ""
}

// Serving splits the replicas of deployments into those that serve, or will, and those that
// only keep weights.
func Serving(all []v1alpha1.ModelReplica) (serving, prefetching []v1alpha1.ModelReplica) {
	for i := range all {
		if Prefetches(&all[i]) {
			prefetching = append(prefetching, all[i])
		} else {
			serving = append(serving, all[i])
		}
	}
	return serving, prefetching
}

// ReplicaReady reports whether a replica counts as ready.
func ReplicaReady(r *v1alpha1.ModelReplica) bool {
	return r.DeletionTimestamp.IsZero() && meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady)
}

// Released reports whether a replica holds no memory any more, or is fenced.
func Released(r *v1alpha1.ModelReplica) bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReleased)
}

// Refused returns the message with which the Mac's memory ledger refused a replica that has
// to stay in memory. Waiting for admission is not a refusal. An OnDemand replica is not
// refused either: it shares memory with others and waits for it on its Mac.
func Refused(r *v1alpha1.ModelReplica) (string, bool) {
	if r.Spec.Residency.OnDemand() {
		return "", false
	}
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionAdmitted)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonInsufficientRoom {
		return "", false
	}
	return c.Message, true
}
