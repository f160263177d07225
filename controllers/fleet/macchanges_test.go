package fleet

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestAMacThatJoinsOrLeavesIsComparedWithNone(t *testing.T) {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	a, b := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	for name, tc := range map[string]struct {
		send func(handler.EventHandler, queue)
		want string
	}{
		"joins":  {func(h handler.EventHandler, q queue) { h.Create(t.Context(), event.CreateEvent{Object: a}, q) }, "->a"},
		"leaves": {func(h handler.EventHandler, q queue) { h.Delete(t.Context(), event.DeleteEvent{Object: a}, q) }, "a->"},
		"changes": {func(h handler.EventHandler, q queue) {
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: a, ObjectNew: b}, q)
		}, "a->b"},
	} {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer q.ShutDown()
		tc.send(OnMacChange(func(_ context.Context, before, now *v1alpha1.MacNode) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: before.Name + "->" + now.Name}}}
		}), q)
		if q.Len() != 1 {
			t.Errorf("%s: %d requests are queued, want one", name, q.Len())
			continue
		}
		if got, _ := q.Get(); got.Name != tc.want {
			t.Errorf("%s: the change is %s, want %s", name, got.Name, tc.want)
		}
	}
}
