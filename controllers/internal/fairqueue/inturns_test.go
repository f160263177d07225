package fairqueue

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// slowHandler notes what it handles, and waits in the first event until it is released.
type slowHandler struct {
	release chan struct{}
	handled []string
}

func (h *slowHandler) funcs() handler.Funcs {
	note := func(format string, args ...any) {
		h.handled = append(h.handled, fmt.Sprintf(format, args...))
		<-h.release
	}
	name := func(o client.Object) string { return o.GetNamespace() + "/" + o.GetName() + o.GetResourceVersion() }
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, _ requests) {
			defer h.check(ctx)
			note("create %s %t", name(e.Object), e.IsInInitialList)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ requests) {
			defer h.check(ctx)
			note("update %s %s", name(e.ObjectOld), name(e.ObjectNew))
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ requests) { note("delete %s", name(e.Object)) },
	}
}

// check notes a context that has ended: reads would fail.
func (h *slowHandler) check(ctx context.Context) {
	if ctx.Err() != nil {
		h.handled = append(h.handled, ctx.Err().Error())
	}
}

func deployment(namespace, name string, version int) client.Object {
	return &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: fmt.Sprint("@", version)}}
}

// handledAfter returns what is handled of events that arrive while the first one is. Their context ends
// before they are handled, as that of a controller.
func handledAfter(t *testing.T, events func(ctx context.Context, h handler.EventHandler, q requests)) []string {
	t.Helper()
	slow := &slowHandler{}
	synctest.Test(t, func(t *testing.T) {
		slow.release = make(chan struct{})
		h, q := InTurns(slow.funcs()), workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer q.ShutDown()
		ctx, cancel := context.WithCancel(t.Context())
		h.Create(ctx, event.CreateEvent{Object: deployment("first", "f", 0)}, q)
		synctest.Wait()
		events(ctx, h, q)
		cancel()
		synctest.Wait()
		close(slow.release)
		synctest.Wait()
	})
	return slow.handled[1:]
}

// TestEventsOfAnObjectThatWaitAreMerged: a handler that is slower than the events of one tenant
// keeps no version of an object but the first and the last.
func TestEventsOfAnObjectThatWaitAreMerged(t *testing.T) {
	got := handledAfter(t, func(ctx context.Context, h handler.EventHandler, q requests) {
		for i := range 1000 {
			h.Update(ctx, event.UpdateEvent{ObjectOld: deployment("large", "d", i), ObjectNew: deployment("large", "d", i+1)}, q)
		}
		h.Create(ctx, event.CreateEvent{Object: deployment("small", "new", 1), IsInInitialList: true}, q)
		h.Update(ctx, event.UpdateEvent{ObjectOld: deployment("small", "new", 1), ObjectNew: deployment("small", "new", 2)}, q)
	})
	if want := []string{"update large/d@0 large/d@1000", "create small/new@2 true"}; !slices.Equal(got, want) {
		t.Errorf("handled %q, want %q", got, want)
	}
}

func TestDeletionsAreHandledOnceAndLast(t *testing.T) {
	got := handledAfter(t, func(ctx context.Context, h handler.EventHandler, q requests) {
		h.Update(ctx, event.UpdateEvent{ObjectOld: deployment("n", "edited", 1), ObjectNew: deployment("n", "edited", 2)}, q)
		h.Delete(ctx, event.DeleteEvent{Object: deployment("n", "edited", 3)}, q)
		h.Create(ctx, event.CreateEvent{Object: deployment("n", "short", 1)}, q)
		h.Delete(ctx, event.DeleteEvent{Object: deployment("n", "short", 1)}, q)
		h.Delete(ctx, event.DeleteEvent{Object: deployment("n", "replaced", 1)}, q)
		h.Create(ctx, event.CreateEvent{Object: deployment("n", "replaced", 2)}, q)
		h.Delete(ctx, event.DeleteEvent{Object: deployment("n", "plain", 1)}, q)
	})
	want := []string{"update n/edited@1 n/edited@2", "delete n/edited@3", "delete n/short@1", "update n/replaced@1 n/replaced@2", "delete n/plain@1"}
	if !slices.Equal(got, want) {
		t.Errorf("handled %q, want %q", got, want)
	}
}

// TestANamespaceWithManyEventsLetsOthersGoFirst: and so does an object without a namespace.
func TestANamespaceWithManyEventsLetsOthersGoFirst(t *testing.T) {
	for name, namespace := range map[string]string{"a namespace": "large", "Macs": ""} {
		got := handledAfter(t, func(ctx context.Context, h handler.EventHandler, q requests) {
			for i := range 1000 {
				h.Create(ctx, event.CreateEvent{Object: deployment(namespace, fmt.Sprint("d", i), 1)}, q)
			}
			h.Create(ctx, event.CreateEvent{Object: deployment("small", "d", 1)}, q)
		})
		at := slices.IndexFunc(got, func(s string) bool { return strings.Contains(s, "small/d@1") })
		if len(got) != 1001 || namespace != "" && at != 1 {
			t.Errorf("%s: %d events are handled, that of another namespace after %d", name, len(got), at)
		}
	}
}

// TestNothingIsHandledAfterTheController: its queue is shut down then.
func TestNothingIsHandledAfterTheController(t *testing.T) {
	got := handledAfter(t, func(ctx context.Context, h handler.EventHandler, q requests) {
		h.Create(ctx, event.CreateEvent{Object: deployment("n", "d", 1)}, q)
		q.ShutDown()
	})
	if len(got) > 0 {
		t.Errorf("handled %q", got)
	}
}

// TestHandlersThatListObjectsTakeTurns: those of the controllers that read many objects for one event.
func TestHandlersThatListObjectsTakeTurns(t *testing.T) {
	lists := regexp.MustCompile(`Watches\(&v1alpha1\.\w+\{\}, (.*(OnMacChange|onClaims|ofDeployments|routers)\(?.*)`)
	found := 0
	for _, file := range []string{"../../macnode/orders.go", "../../modeldeployment/watches.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range lists.FindAllStringSubmatch(string(text), -1) {
			if found++; !strings.HasPrefix(m[1], "fairqueue.InTurns(") {
				t.Errorf("%s: %s is handled in the list of the informer", file, m[1])
			}
		}
	}
	if found != 7 {
		t.Errorf("%d such handlers, want 7", found)
	}
}
