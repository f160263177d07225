package fairqueue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func newQueue(t *testing.T) priorityqueue.PriorityQueue[reconcile.Request] {
	q := New("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second))
	t.Cleanup(q.ShutDown)
	return q.(priorityqueue.PriorityQueue[reconcile.Request])
}

func of(namespace string, n int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("o", n)}}
}

func next(t *testing.T, q priorityqueue.PriorityQueue[reconcile.Request]) reconcile.Request {
	t.Helper()
	r, _, shutdown := q.GetWithPriority()
	if shutdown {
		t.Fatal("the queue was shut down")
	}
	q.Done(r)
	return r
}

func TestANamespaceWithManyChangesLetsOthersGoFirst(t *testing.T) {
	q := newQueue(t)
	for i := range 1000 {
		q.Add(of("large", i))
	}
	q.Add(of("small", 1))
	q.Add(of("small", 2))
	q.Add(of("tiny", 1))
	for _, want := range []reconcile.Request{of("large", 0), of("small", 1), of("tiny", 1), of("large", 1), of("small", 2), of("large", 2)} {
		if got := next(t, q); got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func TestANamespaceThatAlwaysHasOneChangeDoesNotStopOthers(t *testing.T) {
	q := newQueue(t)
	for i := range 10 {
		q.Add(of("large", i))
	}
	busy := 0
	for served := 0; served < 10; {
		q.Add(of("busy", 1))
		if next(t, q).Namespace == "busy" {
			busy++
		} else {
			served++
		}
		if busy > served+1 {
			t.Fatalf("%d requests of one namespace went before %d of another", busy, served)
		}
	}
}

func TestListedObjectsComeAfterChanges(t *testing.T) {
	q := newQueue(t)
	low := priorityqueue.AddOpts{Priority: ptr.To(handler.LowPriority)}
	for i := range 4 {
		q.AddWithOpts(low, of("a", i))
	}
	q.Add(of("a", 9))
	q.Add(of("a", 3)) // it was listed, and changed since
	for _, want := range []int{9, 3, 0, 1, 2} {
		if got := next(t, q); got != of("a", want) {
			t.Fatalf("got %v, want %v", got, of("a", want))
		}
	}
	if q.Len() != 0 {
		t.Fatalf("%d requests are left", q.Len())
	}
}

// macs returns a handler that enqueues the Macs from first to last.
func macs(first, last int) handler.EventHandler {
	return OnBehalf(handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		var out []reconcile.Request
		for i := first; i <= last; i++ {
			out = append(out, of("", i))
		}
		return out
	}))
}

func change(namespace string) event.UpdateEvent {
	return event.UpdateEvent{
		ObjectOld: &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, ResourceVersion: "1"}},
		ObjectNew: &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, ResourceVersion: "2"}},
	}
}

func TestMacsWaitInTheTurnOfTheNamespaceThatChanged(t *testing.T) {
	q, ctx := newQueue(t), t.Context()
	macs(0, 999).Update(ctx, change("large"), q)
	macs(700, 700).Update(ctx, change("small"), q) // it is due already
	macs(2000, 2000).Create(ctx, event.CreateEvent{Object: change("other").ObjectNew}, q)
	for _, want := range []int{0, 700, 2000, 1} {
		if got := next(t, q); got != of("", want) {
			t.Fatalf("got %v, want %v", got, of("", want))
		}
	}
	if q.Len() != 997 {
		t.Fatalf("%d Macs are left of 997: each is reconciled once", q.Len())
	}
}

func TestRetriesKeepTheirNamespace(t *testing.T) {
	q := newQueue(t)
	q.AddRateLimited(of("a", 1))
	q.AddAfter(of("b", 1), time.Millisecond)
	got := map[reconcile.Request]bool{next(t, q): true, next(t, q): true}
	if !got[of("a", 1)] || !got[of("b", 1)] {
		t.Fatalf("got %v", got)
	}
}

func TestAQueueThatIsShutDownHandsOutNothing(t *testing.T) {
	q := newQueue(t)
	q.Add(of("a", 1))
	q.ShutDown()
	if r, _, shutdown := q.GetWithPriority(); !shutdown {
		t.Fatalf("got %v after the shutdown", r)
	}
}

func TestEachRequestIsHandedOutAfterItsLastChange(t *testing.T) {
	synctest.Test(t, history)
}

// history adds requests at random and compares what the workers saw with the last change of each.
func history(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	q := newQueue(t)
	var mu sync.Mutex
	changes, seen, running := map[reconcile.Request]int{}, map[reconcile.Request]int{}, map[reconcile.Request]bool{}
	var workers, writers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for {
				r, _, shutdown := q.GetWithPriority()
				if shutdown {
					return
				}
				mu.Lock()
				if running[r] {
					t.Errorf("%v is processed twice at a time", r)
				}
				running[r], seen[r] = true, changes[r]
				mu.Unlock()
				mu.Lock()
				running[r] = false
				mu.Unlock()
				q.Done(r)
			}
		})
	}
	for w := range 4 {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			for range 2000 {
				r, namespace := of("", random.IntN(20)), fmt.Sprint("n", random.IntN(4))
				mu.Lock()
				changes[r]++
				mu.Unlock()
				o := priorityqueue.AddOpts{}
				if random.IntN(3) == 0 {
					o.Priority = ptr.To(handler.LowPriority)
				}
				share(q, change(namespace).ObjectNew).(*shared).AddWithOpts(o, r)
			}
		})
	}
	writers.Wait()
	synctest.Wait() // the workers wait for more
	q.ShutDown()
	workers.Wait()
	for r, n := range changes {
		if seen[r] != n {
			t.Errorf("%v: the last pass saw change %d of %d", r, seen[r], n)
		}
	}
	if lanes := q.(*queue).lanes; lanes.turns.Len()+len(lanes.of)+len(lanes.notes) > 0 {
		t.Errorf("%d turns, %d lanes and %d notes are left of an empty queue", lanes.turns.Len(), len(lanes.of), len(lanes.notes))
	}
}
