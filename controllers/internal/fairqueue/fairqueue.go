// Package fairqueue is the queue of a controller in which namespaces take turns: a namespace
// with a thousand changed objects does not make one with a single change wait for them.
//
// It owns the order of requests that are due. Delays, retries and the rule that a request
// is processed once at a time are those of client-go's queue. Requests of the first list of
// a watch come after changes of the same namespace. Passes that the API server takes long to refuse
// are repeated seldom.
//
// Start reading at New and lanes.Pop; InTurns does the same for the events of a watch, and
// AfterRefusals delays retries.
package fairqueue

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// requests is the interface of a controller's queue.
type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// queue assigns each request to the namespace that caused it: its own, unless a handler of
// OnBehalf adds it.
type queue struct {
	requests
	lanes *lanes
}

var _ priorityqueue.PriorityQueue[reconcile.Request] = (*queue)(nil)

// New returns the queue of a controller, for controller.Options.NewQueue. It accepts the
// priorities of controller-runtime; all below 0 are one.
func New(controller string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	lanes := newLanes()
	due := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: controller, Queue: lanes})
	delayed := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: controller, Queue: due})
	return &queue{
		requests: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{DelayingQueue: delayed}),
		lanes:    lanes,
	}
}

func (q *queue) Add(r reconcile.Request) { q.AddWithOpts(priorityqueue.AddOpts{}, r) }

func (q *queue) AddAfter(r reconcile.Request, d time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: d}, r)
}

func (q *queue) AddRateLimited(r reconcile.Request) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, r)
}

func (q *queue) AddWithOpts(o priorityqueue.AddOpts, all ...reconcile.Request) {
	for _, r := range all {
		q.addFor(r.Namespace, o, r)
	}
}

func (q *queue) addFor(namespace string, o priorityqueue.AddOpts, r reconcile.Request) {
	level := changed
	if ptr.Deref(o.Priority, 0) < 0 {
		level = listed
	}
	q.lanes.note(r, namespace, level)
	switch {
	case o.RateLimited:
		q.requests.AddRateLimited(r)
	case o.After > 0:
		q.requests.AddAfter(r, o.After)
	default:
		q.requests.Add(r)
	}
}

// GetWithPriority returns the next request. After a shutdown there is none, although some
// may be left: the next leader lists everything.
func (q *queue) GetWithPriority() (reconcile.Request, int, bool) {
	r, shutdown := q.Get()
	return r, 0, shutdown || q.ShuttingDown()
}

// OnBehalf returns a handler whose requests wait their turn among those of the namespace
// of the object that changed. It is for requests that have no namespace of their own, such
// as Macs: one that two namespaces changed is reconciled once, in the first turn of either.
func OnBehalf(h handler.EventHandler) handler.EventHandler { return wrapped{h, share} }

// wrapped has a handler add its requests to another view of the queue.
type wrapped struct {
	of   handler.EventHandler
	view func(q requests, changed client.Object) requests
}

func (h wrapped) Create(ctx context.Context, e event.CreateEvent, q requests) {
	h.of.Create(ctx, e, h.view(q, e.Object))
}

func (h wrapped) Update(ctx context.Context, e event.UpdateEvent, q requests) {
	h.of.Update(ctx, e, h.view(q, e.ObjectNew))
}

func (h wrapped) Delete(ctx context.Context, e event.DeleteEvent, q requests) {
	h.of.Delete(ctx, e, h.view(q, e.Object))
}

func (h wrapped) Generic(ctx context.Context, e event.GenericEvent, q requests) {
	h.of.Generic(ctx, e, h.view(q, e.Object))
}

// share returns the part of a queue that an object's namespace has. Other kinds of queues are
// returned unchanged.
func share(q requests, o client.Object) requests {
	if q, ok := q.(*queue); ok {
		return &shared{q, o.GetNamespace()}
	}
	return q
}

type shared struct {
	*queue
	namespace string
}

func (s *shared) Add(r reconcile.Request) { s.AddWithOpts(priorityqueue.AddOpts{}, r) }

func (s *shared) AddAfter(r reconcile.Request, d time.Duration) {
	s.AddWithOpts(priorityqueue.AddOpts{After: d}, r)
}

func (s *shared) AddRateLimited(r reconcile.Request) {
	s.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, r)
}

func (s *shared) AddWithOpts(o priorityqueue.AddOpts, all ...reconcile.Request) {
	for _, r := range all {
		s.addFor(s.namespace, o, r)
	}
}

// Later returns a queue that delays what is added to it. A request that waits is kept once, so that
// all changes of that time are one pass.
func Later(q workqueue.TypedRateLimitingInterface[reconcile.Request], after time.Duration) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return later{q, after}
}

type later struct {
	requests
	after time.Duration
}

func (l later) Add(r reconcile.Request) { l.AddAfter(r, l.after) }

// After returns a handler whose requests wait: all changes of that time are one pass. It is for a pass
// over many objects that each change of one of them causes.
func After(h handler.EventHandler, wait time.Duration) handler.EventHandler {
	return wrapped{h, func(q requests, _ client.Object) requests { return Later(q, wait) }}
}
