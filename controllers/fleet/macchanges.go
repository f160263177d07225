package fleet

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// OnMacChange returns a handler that enqueues what a change of a Mac concerns. A Mac that joined
// is compared with an empty one, and so is one that left.
func OnMacChange(concerned func(ctx context.Context, before, now *v1alpha1.MacNode) []reconcile.Request) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(ctx context.Context, before, now client.Object, q queue) {
		for _, request := range concerned(ctx, before.(*v1alpha1.MacNode), now.(*v1alpha1.MacNode)) {
			q.Add(request)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, &v1alpha1.MacNode{}, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { add(ctx, e.ObjectOld, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, e.Object, &v1alpha1.MacNode{}, q) },
	}
}
