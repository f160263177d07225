package modelreplica

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
)

// macEvents maps the events of a Mac to requests. Unlike a map function it compares the old
// and the new object, so that a Mac with many replicas triggers only those whose report
// changed.
//
// A Mac may change its report on 64 replicas with each of many writes. Beyond a burst, each of its
// replicas waits a moment, in which all changes are one request.
type macEvents struct {
	every  func(context.Context, client.Object) []reconcile.Request
	update func(ctx context.Context, old, now *v1alpha1.MacNode) []reconcile.Request
	limits *notice.Limits
	now    func() time.Time
}

// Bounds of the requests of one Mac: after the burst, about as many for each second as a Mac has
// replicas in reportAfter.
const (
	reportBurst = 4 * fleet.MaxAssignments
	reportEvery = 30 * time.Millisecond
	reportAfter = 2 * time.Second
)

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
	for _, r := range h.update(ctx, e.ObjectOld.(*v1alpha1.MacNode), e.ObjectNew.(*v1alpha1.MacNode)) {
		if h.limits.Allow(e.ObjectNew.GetName(), h.now()) {
			q.Add(r)
		} else {
			q.AddAfter(r, reportAfter)
		}
	}
}

func (h macEvents) Delete(ctx context.Context, e event.DeleteEvent, q queue) {
	add(q, h.every(ctx, e.Object))
}

func (h macEvents) Generic(ctx context.Context, e event.GenericEvent, q queue) {
	add(q, h.every(ctx, e.Object))
}
