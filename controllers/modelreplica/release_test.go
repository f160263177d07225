//go:build !race

package modelreplica

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// The complete scenarios run against a real API server in package controllers; these tests
// cover single guards that a race would hide there.

func world(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ModelReplica{}, &v1alpha1.ModelDeployment{}, &v1alpha1.MacNode{}).Build()
}

// leaving returns a replica that its Mac has released, and its owner.
func leaving(accounted ...string) (*v1alpha1.ModelReplica, *v1alpha1.ModelDeployment) {
	r := bound()
	r.Namespace, r.Generation, r.Finalizers = "ns", 3, []string{v1alpha1.FinalizerRelease}
	r.DeletionTimestamp = &metav1.Time{Time: now}
	r.Spec.Desired = v1alpha1.DesiredDrained
	r.Spec.DeploymentRef = v1alpha1.DeploymentReference{Name: "d", UID: "owner"}
	r.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReleased, "True", v1alpha1.ReasonReleased)}
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "owner"}}
	d.Status.Accounted = accounted
	return r, d
}

func TestAReplicaGoesOnlyOnceItIsAccounted(t *testing.T) {
	other := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "another of that name"}}
	for name, tc := range map[string]struct {
		accounted []string
		owner     bool
		other     bool
		goes      bool
	}{
		"not accounted":               {owner: true},
		"another is accounted":        {owner: true, accounted: []string{"x"}},
		"accounted":                   {owner: true, accounted: []string{"u"}, goes: true},
		"the owner is gone":           {goes: true},
		"the owner is another by now": {other: true, goes: true},
	} {
		t.Run(name, func(t *testing.T) {
			replica, owner := leaving(tc.accounted...)
			objects := []client.Object{replica}
			if tc.owner {
				objects = append(objects, owner)
			}
			if tc.other {
				objects = append(objects, other.DeepCopy())
			}
			c := world(t, objects...)
			r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now)}
			if _, err := r.release(t.Context(), replica); err != nil {
				t.Fatal(err)
			}
			err := c.Get(t.Context(), client.ObjectKeyFromObject(replica), &v1alpha1.ModelReplica{})
			if gone := apierrors.IsNotFound(err); gone != tc.goes {
				t.Errorf("gone %v (%v), want %v", gone, err, tc.goes)
			}
		})
	}
}

// A tenant makes a deployment so large that no status of it can be stored: that must not keep its
// replicas, and with them their places on Macs, for ever.
func TestAReplicaWhoseDeploymentCannotAccountGoesInTime(t *testing.T) {
	replica, owner := leaving()
	c, clock := world(t, replica, owner), clocktesting.NewFakePassiveClock(now)
	r := &Reconciler{Client: c, Clock: clock}
	pass := func() (time.Duration, bool) {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(replica)})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter, apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(replica), &v1alpha1.ModelReplica{}))
	}
	if again, gone := pass(); gone || again != accountWithin {
		t.Fatalf("gone %v, again in %v", gone, again)
	}
	clock.SetTime(now.Add(accountWithin - time.Second))
	if again, gone := pass(); gone || again != time.Second {
		t.Fatalf("gone %v, again in %v", gone, again)
	}
	clock.SetTime(now.Add(accountWithin))
	if _, gone := pass(); !gone {
		t.Error("the replica is still there")
	}
	if pass(); len(r.waits.since) != 0 {
		t.Errorf("%v is kept of it", r.waits.since)
	}
}

// A person who may evict replicas writes one all the time: it must go nevertheless. One that was bound
// meanwhile stays: its Mac has not released it.
func TestAReplicaGoesWhateverIsWrittenBesideItsSpec(t *testing.T) {
	for name, tc := range map[string]struct {
		written string
		goes    bool
	}{
		"an annotation": {written: `{"metadata":{"annotations":{"metalfleet.dev/evict":"1"}}}`, goes: true},
		"a binding":     {written: `{"metadata":{"generation":4},"spec":{"nodeName":"other"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			replica, owner := leaving("u")
			c := world(t, replica, owner)
			key := client.ObjectKeyFromObject(replica)
			err := c.Get(t.Context(), key, replica)
			if err == nil {
				err = c.Patch(t.Context(), replica.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(tc.written)))
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = (&Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now)}).release(t.Context(), replica)
			if gone := apierrors.IsNotFound(c.Get(t.Context(), key, replica)); gone != tc.goes || (err == nil) != tc.goes {
				t.Errorf("gone %v (%v), want %v", gone, err, tc.goes)
			}
		})
	}
}

// A tenant may remove the finalizers of a deployment and delete it without its replicas. A replica
// whose deployment is not in the cache yet, or cannot be read, stays.
func TestAReplicaWithoutADeploymentIsDeleted(t *testing.T) {
	for name, tc := range map[string]struct {
		cached, live types.UID // of the deployment; empty if there is none
		broken, goes bool
	}{
		"there":                   {cached: "owner", live: "owner"},
		"not in the cache yet":    {live: "owner"},
		"cannot be read":          {broken: true},
		"gone":                    {goes: true},
		"another one of its name": {cached: "another", live: "another", goes: true},
	} {
		t.Run(name, func(t *testing.T) {
			replica, _ := leaving()
			replica.DeletionTimestamp = nil
			with := func(uid types.UID, more ...client.Object) client.WithWatch {
				if uid != "" {
					more = append(more, &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: uid}})
				}
				return world(t, more...)
			}
			c := with(tc.cached, replica)
			live := interceptor.NewClient(with(tc.live), interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if tc.broken {
					return errors.New("the API server has a bad moment")
				}
				return c.Get(ctx, key, o, opts...)
			}})
			r := &Reconciler{Client: c, Live: live, Clock: clocktesting.NewFakePassiveClock(now)}
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(replica)})
			if (err != nil) != tc.broken {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(replica), replica); err != nil || replica.DeletionTimestamp.IsZero() == tc.goes {
				t.Errorf("deleted at %v (%v)", replica.DeletionTimestamp, err)
			}
		})
	}
}

// Elsewhere a transient read error was mistaken for the object's deletion, and a running
// model was removed.
func TestAnErrorIsNotADeletion(t *testing.T) {
	replica, owner := leaving("u")
	replica.Status.Conditions = nil
	owner.Status.Accounted = nil
	broken := errors.New("the API server has a bad moment")
	c := interceptor.NewClient(world(t, replica, owner), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, is := o.(*v1alpha1.MacNode); is {
				return broken
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now)}
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(replica)})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the read", err)
	}
	var after v1alpha1.ModelReplica
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(replica), &after); err != nil || len(after.Status.Conditions) != 0 {
		t.Errorf("status %+v (%v) was written without knowing the Mac", after.Status, err)
	}
}
