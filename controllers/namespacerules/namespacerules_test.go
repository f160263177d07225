package namespacerules

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/fairqueue"
)

// TestReplicasThatComeAndGoAreCountedTogether: a hundred are created, changed and deleted each second.
func TestReplicasThatComeAndGoAreCountedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := fairqueue.New("", workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		counts := countLater(handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: v1alpha1.NamespaceRulesName}}}
		}))
		passes, ended := 0, make(chan struct{})
		go func() {
			defer close(ended)
			for {
				r, shutdown := q.Get()
				if shutdown {
					return
				}
				passes++
				q.Done(r)
			}
		}()
		replica := &v1alpha1.ModelReplica{}
		for range 1000 {
			counts.Create(t.Context(), event.CreateEvent{Object: replica}, q)
			counts.Update(t.Context(), event.UpdateEvent{ObjectOld: replica, ObjectNew: replica}, q)
			counts.Delete(t.Context(), event.DeleteEvent{Object: replica}, q)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * countAfter)
		synctest.Wait()
		q.ShutDown()
		<-ended
		if passes < 5 || passes > 11 {
			t.Errorf("%d passes in ten seconds", passes)
		}
	})
}
