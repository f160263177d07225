package placement

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// residencyChanged passes a deployment whose replicas are to have another residency.
func residencyChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.(*v1alpha1.ModelDeployment).Spec.Residency.Policy != e.ObjectNew.(*v1alpha1.ModelDeployment).Spec.Residency.Policy
	}}
}

// stays begins the reason why a replica keeps its residency; its figures change with other replicas.
const stays = "; it stays "

// reserve gives bound replicas the residency policy that their deployments want, as far as the rules
// and their Macs allow, and reports in their condition Placed why one keeps its own. Their
// deployments change every other field of theirs.
func (r *Reconciler) reserve(ctx context.Context, s *plan.Snapshot, w *writes, replicas []v1alpha1.ModelReplica) error {
	var deployments v1alpha1.ModelDeploymentList
	if err := r.Client.List(ctx, &deployments, client.UnsafeDisableDeepCopy); err != nil { // only read
		return fmt.Errorf("list deployments: %w", err)
	}
	wanted := make(map[string]v1alpha1.Residency, len(deployments.Items))
	for i := range deployments.Items {
		wanted[string(deployments.Items[i].UID)] = fleet.Residency(deployments.Items[i].Spec.Residency)
	}
	due := residencyWrites{}
	for _, replica := range boundOf(replicas) {
		message := "placed on " + replica.Spec.NodeName
		residency, known := wanted[replica.Spec.DeploymentRef.UID]
		placed, changes := placedTrue(replica), false
		if onDemand := replica.Spec.Residency.OnDemand(); known && onDemand != residency.OnDemand() && !fleet.Released(replica) {
			why := s.ChangeResidency(replica, residency)
			switch changes = why == ""; {
			case changes:
			case onDemand:
				message += stays + "OnDemand: " + why
			default:
				message += stays + "Always: " + why
			}
			if !changes && !placed {
				r.round.lookAgain(sayAfter) // this pass reports the Mac, and no watch the condition
			}
		}
		reports, repeat := false, "" // as repeatOf
		if placed {
			before := meta.FindStatusCondition(replica.Status.Conditions, v1alpha1.ConditionPlaced).Message
			reports = before != message
			if strings.Contains(before, stays) && strings.Contains(message, stays) {
				repeat = replica.Namespace
			}
		}
		if !changes && !reports {
			continue
		}
		due.add(replica, func() bool {
			if r.delays(repeat, w.now) {
				r.round.lookAgain(repeatAgain)
				return false
			}
			if changes {
				w.specWrite(replica.UID, func() error { return r.change(ctx, replica, residency) })
			}
			if reports {
				w.deferStatus(replica.UID, func() error {
					return r.report(ctx, replica, status.True(v1alpha1.ConditionPlaced, v1alpha1.ReasonPlaced, message))
				})
			}
			return true
		})
	}
	w.more = due.begin()
	return nil
}

// maxResidencyWrites bounds the replicas that one pass writes to because of their residency: an edit
// of one deployment may concern thousands, and the pass places the replicas of all.
const maxResidencyWrites = 128

// residencyWrites are the writes for replicas because of their residency.
type residencyWrites struct {
	replicas []*v1alpha1.ModelReplica
	begins   map[types.UID]func() bool // false if it is too early
}

func (d *residencyWrites) add(replica *v1alpha1.ModelReplica, begin func() bool) {
	if d.begins == nil {
		d.begins = map[types.UID]func() bool{}
	}
	d.replicas = append(d.replicas, replica)
	d.begins[replica.UID] = begin
}

// begin begins the writes of a pass, of which namespaces have turns, and reports whether some are
// left for the next one.
func (d *residencyWrites) begin() (left bool) {
	plan.Sort(d.replicas)
	begun := 0
	for _, replica := range d.replicas {
		if begun == maxResidencyWrites {
			return true
		}
		if d.begins[replica.UID]() {
			begun++
		}
	}
	return false
}

// boundOf returns the replicas that have a Mac, in the order of placement.
func boundOf(replicas []v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	var out []*v1alpha1.ModelReplica
	for i := range replicas {
		if r := &replicas[i]; r.DeletionTimestamp.IsZero() && r.Spec.NodeName != "" {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, plan.Before)
	return out
}

// change writes another residency of a replica.
func (r *Reconciler) change(ctx context.Context, replica *v1alpha1.ModelReplica, residency v1alpha1.Residency) error {
	next := replica.DeepCopy()
	next.Spec.Residency = residency
	err := r.Client.Patch(ctx, next, client.MergeFromWithOptions(replica, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.ManagerOperator))
	if err != nil {
		return fmt.Errorf("change the residency of replica %s: %w", client.ObjectKeyFromObject(replica), err)
	}
	return nil
}
