//go:build !race

package modeldeployment

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// A real API server rejects creations in a terminating namespace as well; this test shows
// that none is attempted.
func TestNothingIsCreatedInATerminatingNamespace(t *testing.T) {
	for name, ending := range map[string]bool{"a living namespace": false, "a terminating namespace": true} {
		t.Run(name, func(t *testing.T) {
			c := fleettest.DuringAWrite(terminating(t, ending))
			r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now)}
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "d"}}); err != nil {
				t.Fatal(err)
			}
			var replicas v1alpha1.ModelReplicaList
			var revisions appsv1.ControllerRevisionList
			if err := c.List(t.Context(), &replicas); err != nil {
				t.Fatal(err)
			}
			if err := c.List(t.Context(), &revisions); err != nil {
				t.Fatal(err)
			}
			if made := len(replicas.Items) + len(revisions.Items); (made == 0) != ending {
				t.Errorf("%d objects were made", made)
			}
		})
	}
}

// A failed list must not be mistaken for an empty one.
func TestWhatCannotBeReadIsNotMissing(t *testing.T) {
	broken := errors.New("the API server has a bad moment")
	c := interceptor.NewClient(terminating(t, false), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, is := list.(*v1alpha1.ModelReplicaList); is {
				return broken
			}
			return c.List(ctx, list, opts...)
		},
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			t.Errorf("%T was created", o)
			return nil
		},
	})
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now)}
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "d"}})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the read", err)
	}
}

func TestNamesFitTheirBounds(t *testing.T) {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("d", 52), UID: "u"}}
	revision := revisionName(d, "hash")
	if len(revision) > 63 || len(replicaName(d, replicaToCreate{revision: revision, slot: 1999, epoch: 1 << 40})) > 63 {
		t.Errorf("names of %d and %d characters, a label has at most 63", len(revision), len(replicaName(d, replicaToCreate{revision: revision})))
	}
	other := d.DeepCopy()
	other.UID = "v"
	if revisionName(other, "hash") == revision {
		t.Error("two deployments share a revision")
	}
}

// Another version of the operator may name revisions differently, and one of the agents
// report other features, which must not replace an engine.
func TestRevisionsAreKnownByWhatTheyHold(t *testing.T) {
	c := terminating(t, false)
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now)}
	request := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "d"}}
	if _, err := r.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	var list appsv1.ControllerRevisionList
	if err := c.List(t.Context(), &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("%d revisions (%v)", len(list.Items), err)
	}
	renamed := list.Items[0].DeepCopy()
	renamed.Name, renamed.ResourceVersion = "named-otherwise", ""
	if err := c.Delete(t.Context(), &list.Items[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), renamed); err != nil {
		t.Fatal(err)
	}
	s, err := r.read(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	engine := *accept(s).engine
	engine.Model.Features = []model.Feature{model.Chat} // newer agents report them
	got, err := r.ensureRevision(t.Context(), s, engine)
	if err != nil || got.object.Name != renamed.Name {
		t.Errorf("revision %v (%v), want the one that holds this engine", got.object, err)
	}
}

// A tenant makes the deployment so large that no status of it can be stored, or writes it again and
// again: it must go nevertheless, or its namespace never does.
func TestADeploymentGoesWhoseStatusCannotBeWritten(t *testing.T) {
	c := terminating(t, false)
	key := client.ObjectKey{Namespace: "ns", Name: "d"}
	var d v1alpha1.ModelDeployment
	if err := c.Get(t.Context(), key, &d); err != nil {
		t.Fatal(err)
	}
	d.Finalizers = []string{"example.com/other", v1alpha1.FinalizerReplicas}
	if err := c.Update(t.Context(), &d); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), &d); err != nil {
		t.Fatal(err)
	}
	busy := interceptor.NewClient(c, interceptor.Funcs{
		SubResourceApply: func(context.Context, client.Client, string, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
			if err := c.Patch(t.Context(), d.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))); err != nil {
				t.Fatal(err)
			}
			return errors.New("etcdserver: request is too large")
		},
	})
	r := &Reconciler{Client: busy, Clock: clocktesting.NewFakePassiveClock(now)}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err == nil {
		t.Error("the status could not be written, and there is no error")
	}
	if err := c.Get(t.Context(), key, &d); err != nil || len(d.Finalizers) != 1 || d.Finalizers[0] != "example.com/other" || d.Annotations["a"] != "b" {
		t.Errorf("finalizers %v, annotations %v, %v", d.Finalizers, d.Annotations, err)
	}
}

// The cache has the whole spec again only with a write of the object.
func TestASpecForWhichThereWasNoRoomIsReadAgain(t *testing.T) {
	c, key := terminating(t, false), client.ObjectKey{Namespace: "ns", Name: "d"}
	pass := func(room int) (time.Duration, string, string) {
		t.Helper()
		var d v1alpha1.ModelDeployment
		if err := c.Get(t.Context(), key, &d); err != nil {
			t.Fatal(err)
		}
		d.Annotations = map[string]string{"metalfleet.dev/spec-bytes": "5000", "metalfleet.dev/spec-room": strconv.Itoa(room), "metalfleet.dev/spec-crowded": "true"}
		if err := c.Update(t.Context(), &d); err != nil {
			t.Fatal(err)
		}
		r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now)}
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		if err == nil {
			err = c.Get(t.Context(), key, &d)
		}
		if err != nil {
			t.Fatal(err)
		}
		accepted := condition(d.Status.Conditions, v1alpha1.ConditionAccepted)
		return result.RequeueAfter, accepted.Reason, accepted.Message
	}
	if again, reason, message := pass(fleet.SpecsRoom.Namespace + 1); again != repeatInspected || reason != v1alpha1.ReasonSpecTooLarge || !strings.Contains(message, "no room") {
		t.Errorf("without room: %v, %s, %s", again, reason, message)
	}
	if again, reason, message := pass(5000); again != repeatInspected || reason != v1alpha1.ReasonSpecTooLarge || !strings.Contains(message, "room for this spec again") {
		t.Errorf("with room: %v, %s, %s", again, reason, message)
	}
}

// terminating returns a client with a deployment whose source is resolved.
func terminating(t *testing.T, ending bool) client.WithWatch {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	record := fleettest.Model("file://m.gguf", "m", 98_000_000)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	if ending {
		ns.DeletionTimestamp, ns.Finalizers = &metav1.Time{Time: now}, []string{"kubernetes"}
	}
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d"}}
	d.Spec.Model.Source = record.Source
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	mac.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
	mac.Status.Inspections = []v1alpha1.InspectionStatus{{ID: fleet.InspectionID(d), State: v1alpha1.InspectionResolved, Model: &record}}
	b := fake.NewClientBuilder().WithScheme(s).WithObjects(ns, d, mac).
		WithStatusSubresource(&v1alpha1.ModelReplica{}, &v1alpha1.ModelDeployment{}, &v1alpha1.MacNode{})
	if err := fleet.AddIndexes(t.Context(), builderIndexer{b: b}); err != nil {
		t.Fatal(err)
	}
	return b.Build()
}
