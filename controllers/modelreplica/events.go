package modelreplica

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// macEvents maps the events of a Mac to requests. Unlike a map function it compares the old
// and the new object, so that a Mac with many replicas triggers only those whose report
// changed.
type macEvents struct {
	every  func(context.Context, client.Object) []reconcile.Request
	update func(ctx context.Context, old, now *v1alpha1.MacNode) []reconcile.Request
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func add(q queue, requests []reconcile.Request) {
	for _, r := range requests {
		q.Add(r)
	}
}

func (h macEvents) Create(ctx context.Context, e event.CreateEvent, q queue) {
	add(q, h.every(ctx, e.Object))
}

func (h macEvents) Update(ctx context.Context, e event.UpdateEvent, q queue) {
	add(q, h.update(ctx, e.ObjectOld.(*v1alpha1.MacNode), e.ObjectNew.(*v1alpha1.MacNode)))
}

func (h macEvents) Delete(ctx context.Context, e event.DeleteEvent, q queue) {
	add(q, h.every(ctx, e.Object))
}

func (h macEvents) Generic(ctx context.Context, e event.GenericEvent, q queue) {
	add(q, h.every(ctx, e.Object))
}
