package macnode

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/signal"
)

// refusing returns a client whose API server answers the creation of some Events with an error,
// and the number of those.
func refusing(c client.WithWatch, refuse func(*corev1.Event) error) (client.WithWatch, *int) {
	refused := new(int)
	return interceptor.NewClient(c, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if err := refuse(o.(*corev1.Event)); err != nil {
			*refused++
			return err
		}
		return c.Create(ctx, o, opts...)
	}}), refused
}

func reported(t *testing.T, c client.Client) []string {
	t.Helper()
	var events corev1.EventList
	if err := c.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range events.Items {
		out = append(out, e.Namespace+" "+e.InvolvedObject.Kind+" "+e.Reason)
	}
	slices.Sort(out)
	return out
}

// TestANamespaceThatRefusesEventsHoldsNoOtherBack: a quota refuses for good, and a server that
// fails is asked again.
func TestANamespaceThatRefusesEventsHoldsNoOtherBack(t *testing.T) {
	quota := apierrors.NewForbidden(corev1.Resource("events"), "e", errors.New("exceeded quota: events"))
	for name, row := range map[string]struct {
		err     error
		retried bool
		refused int // in three passes
	}{
		"a quota":                {quota, false, 1},
		"a server that fails":    {apierrors.NewInternalError(errors.New("etcdserver: request timed out")), true, 3},
		"an error of any client": {errors.New("connection refused"), true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			mac := aMac()
			first, second := reclaim("u/1/1", start), reclaim("v/1/1", start)
			second.Namespace, second.ReplicaUID = "other", "v"
			mac.Status.Reclaims = []v1alpha1.Reclaim{first, second}
			inner := objects(t, mac)
			c, refused := refusing(inner, func(e *corev1.Event) error {
				if e.Namespace == "ns" {
					return row.err
				}
				return nil
			})
			metrics, err := signal.New(prometheus.NewRegistry(), inner)
			if err != nil {
				t.Fatal(err)
			}
			r := &Reclaims{Client: c, Clock: clocktesting.NewFakePassiveClock(start), Metrics: metrics}
			r.holders.bound(replicaOn("m", "ns", "r", "u"))
			r.holders.bound(replicaOn("m", "other", "r", "v"))
			for range 3 {
				if _, err := r.Reconcile(t.Context(), request); (err != nil) != row.retried {
					t.Errorf("the pass ends with %v", err)
				}
			}
			if got := reported(t, inner); !slices.Equal(got, []string{"default MacNode Reclaimed", "default MacNode Reclaimed", "other ModelReplica Reclaimed"}) {
				t.Errorf("events: %q", got)
			}
			if *refused != row.refused {
				t.Errorf("%d Events were refused, want %d", *refused, row.refused)
			}
		})
	}
}

// TestEventsThatAreTriedAgainAreCountedOnce: the limit of a Mac is not used up by a namespace
// that fails for long.
func TestEventsThatAreTriedAgainAreCountedOnce(t *testing.T) {
	mac := aMac()
	mac.Status.Reclaims = []v1alpha1.Reclaim{reclaim("u/1/1", start)}
	inner := objects(t, mac)
	fails := true
	c, refused := refusing(inner, func(e *corev1.Event) error {
		if fails && e.Namespace == "ns" {
			return errors.New("connection refused")
		}
		return nil
	})
	metrics, err := signal.New(prometheus.NewRegistry(), inner)
	if err != nil {
		t.Fatal(err)
	}
	r := &Reclaims{Client: c, Clock: clocktesting.NewFakePassiveClock(start), Metrics: metrics}
	r.holders.bound(replicaOn("m", "ns", "r", "u"))
	const passes = 500
	for range passes {
		if _, err := r.Reconcile(t.Context(), request); err == nil {
			t.Fatal("an Event is lost")
		}
	}
	fails = false
	if _, err := r.Reconcile(t.Context(), request); err != nil || *refused != passes {
		t.Errorf("%v after %d refusals, want %d", err, *refused, passes)
	}
	if got := reported(t, inner); !slices.Equal(got, []string{"default MacNode Reclaimed", "ns ModelReplica Reclaimed"}) {
		t.Errorf("events: %q", got)
	}
}

func TestAnAlertThatIsRefusedHoldsNoOtherBack(t *testing.T) {
	a := newAlertRoom(t)
	fails := true
	a.r.Client, _ = refusing(a.c.(client.WithWatch), func(e *corev1.Event) error {
		if fails && e.Reason == pressure {
			return errors.New("connection refused")
		}
		return nil
	})
	var mac v1alpha1.MacNode
	if err := a.c.Get(t.Context(), request.NamespacedName, &mac); err != nil {
		t.Fatal(err)
	}
	for _, kind := range alerted() {
		mac.Status.Conditions = append(mac.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Why",
			LastTransitionTime: metav1.NewTime(start)})
	}
	if err := a.c.Status().Update(t.Context(), &mac); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.r.Reconcile(t.Context(), request); err == nil {
			t.Error("an Event that was not created is not tried again")
		}
	}
	if got := reported(t, a.c); len(got) != len(alerted())-1 {
		t.Errorf("events: %q", got)
	}
	fails = false
	a.look()
	if got := reported(t, a.c); len(got) != len(alerted()) {
		t.Errorf("events once it is accepted: %q", got)
	}
}
