package modelreplica

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Stay returns the condition Evicting of a replica whose Mac has NoExecute taints that it
// does not tolerate for ever, and how much longer it may stay; nil if nothing ends its stay.
// The time of the condition's transition is when the first of these taints was noticed:
// tolerationSeconds counts from it.
func Stay(r *v1alpha1.ModelReplica, mac *v1alpha1.MacNode, now time.Time) (*metav1.Condition, time.Duration) {
	e := fleet.Evicted(mac, r.Spec.Placement.Tolerations)
	if e == nil || r.Spec.NodeName == "" || !r.DeletionTimestamp.IsZero() {
		return nil, 0
	}
	c := status.Merge(r.Status.Conditions, r.Generation, now, status.True(v1alpha1.ConditionEvicting, v1alpha1.ReasonTainted, fmt.Sprintf(
		"%s has the taint %s with effect NoExecute, which this replica tolerates for %d s; then it drains and its deployment creates another", mac.Name, e.Taint, int(e.After.Seconds()))))[0]
	return &c, max(0, c.LastTransitionTime.Add(e.After).Sub(now))
}

// evict deletes a replica whose stay is over, and returns how long another one may stay.
func (r *Reconciler) evict(ctx context.Context, replica *v1alpha1.ModelReplica, mac *v1alpha1.MacNode) (time.Duration, error) {
	c, left := Stay(replica, mac, r.Clock.Now())
	if c == nil || left > 0 {
		return left, nil
	}
	if err := r.Client.Delete(ctx, replica, client.Preconditions{UID: &replica.UID}); err != nil {
		return 0, fmt.Errorf("evict %s from %s: %w", client.ObjectKeyFromObject(replica), mac.Name, err)
	}
	notice.PostAll(ctx, r.Client, r.Clock.Now(), notice.Notice{About: notice.Of("ModelReplica", replica), ID: mac.Name, Reason: c.Reason, Message: c.Message})
	ctrl.LoggerFrom(ctx).Info("Replica evicted because of a taint", "MacNode", mac.Name)
	return 0, nil
}
