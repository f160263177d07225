// Package fleet is how every reconciler sees the world: which Mac is alive,
// what a deployment's names and revision are, which orders a Mac gets.
//
// It owns what more than one reconciler must agree on, as pure functions over
// API objects, and the field indexes that find those objects. It refuses
// effects: it writes nothing and asks no clock. Reconcilers never import one
// another; they meet here and in conditions.
//
// Start reading at StateOf, then Eligibility in eligible.go, Engine in engine.go, Residency and Promise in
// residency.go, Assignments in orders.go and Inspect in inspection.go.
package fleet

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// MacState is what the operator may assume of a Mac.
type MacState int

// The states of a Mac.
const (
	// MacUnknown: its condition Ready was not judged yet.
	MacUnknown MacState = iota
	// MacReady: heard from lately.
	MacReady
	// MacSilent: not heard from for 30 s; its engines may well serve.
	MacSilent
	// MacGone: deleted, never joined, or not heard from for 180 s. What it held
	// is fenced by replica UID and epoch and may be made elsewhere.
	MacGone
)

// StateOf reads the state of a Mac; nil means that there is no such MacNode.
func StateOf(mac *v1alpha1.MacNode) MacState {
	if mac == nil || !mac.DeletionTimestamp.IsZero() {
		return MacGone
	}
	ready := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return MacUnknown
	case ready.Status == metav1.ConditionTrue:
		return MacReady
	case ready.Reason == v1alpha1.ReasonMacGone || ready.Reason == v1alpha1.ReasonNeverHeardFrom:
		return MacGone
	default:
		return MacSilent
	}
}

// Report is what a Mac says of a replica: of its UID and its epoch, or nothing.
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

// ReplicaReady says whether a replica counts as ready.
func ReplicaReady(r *v1alpha1.ModelReplica) bool {
	return r.DeletionTimestamp.IsZero() && meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady)
}

// Released says whether a replica holds no memory any more, or is fenced.
func Released(r *v1alpha1.ModelReplica) bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReleased)
}

// Refused returns the sentence with which the Mac's ledger refused a replica
// that has to stay in memory. Waiting for admission is no refusal, and an
// OnDemand replica waits where it is: it shares its Mac's memory with others,
// and what is taken now comes back.
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
