package modeldeployment

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/fairqueue"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// figuresAfter is how long a pass waits for more figures: a pass reads all replicas of its
// deployment, and the Macs of a thousand report about one each at all times.
const figuresAfter = time.Second

// news is what a change of a replica means to its deployment.
type news int

const (
	// noNews: no pass reads what changed, such as the size of the KV cache.
	noNews news = iota
	// newFigures are added up in the status of the deployment, and decide nothing at once.
	newFigures
	// newState: replicas may be created, removed or updated.
	newState
)

// newsOf compares two states of a replica.
func newsOf(old, now *v1alpha1.ModelReplica) news {
	if old.Generation != now.Generation || old.DeletionTimestamp.IsZero() != now.DeletionTimestamp.IsZero() || !status.Equal(stateOfReplica(old), stateOfReplica(now)) {
		return newState
	}
	if !status.Equal(figuresOf(old), figuresOf(now)) {
		return newFigures
	}
	return noNews
}

// replicaState is what a pass reads of a replica, except its spec and the figures.
type replicaState struct {
	Labels, Annotations map[string]string
	Owners              []metav1.OwnerReference
	Restarts            int32
	LastFailure         *v1alpha1.EngineFailure
	Conditions          []metav1.Condition
}

func stateOfReplica(r *v1alpha1.ModelReplica) replicaState {
	conditions := slices.Clone(r.Status.Conditions)
	for i := range conditions {
		conditions[i].Message = ""
	}
	return replicaState{r.Labels, r.Annotations, r.OwnerReferences, r.Status.Restarts, r.Status.LastFailure, conditions}
}

// replicaFigures are the figures that a pass reads of a replica, and texts that may contain some.
type replicaFigures struct {
	FootprintBytes, FreedBytes, BytesDone int64
	ETASeconds                            *int64
	Progress                              string
	Conditions                            []metav1.Condition
}

func figuresOf(r *v1alpha1.ModelReplica) replicaFigures {
	s := &r.Status
	return replicaFigures{s.Memory.FootprintBytes, s.Freed.TotalBytes, s.Progress.BytesDone, s.Progress.ETASeconds, s.Summary.Progress, s.Conditions}
}

// onNews enqueues the deployment of a replica: at once for a new state, and once for all figures
// of a second.
type onNews struct{ handler.EventHandler }

type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func (h onNews) Update(ctx context.Context, e event.UpdateEvent, q requestQueue) {
	switch newsOf(e.ObjectOld.(*v1alpha1.ModelReplica), e.ObjectNew.(*v1alpha1.ModelReplica)) {
	case newState:
		h.EventHandler.Update(ctx, e, q)
	case newFigures:
		h.EventHandler.Update(ctx, e, fairqueue.Later(q, figuresAfter))
	}
}
