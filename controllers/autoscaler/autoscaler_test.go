package autoscaler

import (
	"context"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/controllers/autoscaler/scale"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// objects returns a client of an API server with the index of the replicas of a deployment.
func objects(t *testing.T, all ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.ModelDeployment{}).WithObjects(all...).
		WithIndex(&v1alpha1.ModelReplica{}, fleet.IndexOwner, func(o client.Object) []string {
			return []string{o.(*v1alpha1.ModelReplica).Spec.DeploymentRef.UID}
		}).Build()
}

// Each deployment is looked at every few seconds, and may have a thousand replicas.
func TestReplicasAreMarkedWithoutCopiesOfAll(t *testing.T) {
	replica := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r", UID: "r", Annotations: map[string]string{v1alpha1.AnnotationRetiring: "true"}}}
	replica.Spec.DeploymentRef.UID = "d"
	c := objects(t, replica)
	shared, unchanged := fleettest.Sharing(t, c)
	r := &Reconciler{Client: shared, Namespace: "system"}
	own, err := r.replicas(t.Context(), &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.mark(t.Context(), own, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.gateways(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(replica), replica); err != nil || replica.Annotations[v1alpha1.AnnotationRetiring] != "" {
		t.Errorf("the mark stays: %v, %v", replica.Annotations, err)
	}
	unchanged()
}

// TestADeletedDeploymentIsForgotten: also if its deletion is only noticed when it is gone, and one
// of the same name remembers nothing of it.
func TestADeletedDeploymentIsForgotten(t *testing.T) {
	c := objects(t)
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	r := New(c, clock, "system", demand.NewLedger(clock.Now), nil)
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "one"}}
	d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3}
	pass := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "d"}}); err != nil {
			t.Fatal(err)
		}
	}
	first := d.DeepCopy()
	if err := c.Create(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	pass()
	if len(r.known) != 1 {
		t.Fatalf("%d deployments are remembered, want 1", len(r.known))
	}
	before := r.of(d)
	again := d.DeepCopy()
	if again.UID = "two"; r.of(again) == before {
		t.Error("a deployment remembers what another one of its name did")
	}
	if err := c.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if pass(); len(r.known) != 0 {
		t.Errorf("%d deployments are remembered after the only one is gone", len(r.known))
	}
}

// TestAFieldOfTheStatusThatATenantCoOwns: an entry in managedFields keeps what the operator leaves out. It is not written in
// each evaluation for that.
func TestAFieldOfTheStatusThatATenantCoOwns(t *testing.T) {
	now, writes := time.Unix(1_800_000_000, 0), 0
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d"}}
	d.Status.Autoscaling = &v1alpha1.AutoscalingStatus{DesiredReplicas: 1, LowSince: &metav1.Time{Time: now}}
	c := interceptor.NewClient(objects(t, d), interceptor.Funcs{
		SubResourceApply: func(context.Context, client.Client, string, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
			writes++
			return nil
		}})
	r, k := &Reconciler{Client: c}, &known{}
	for i := range 60 {
		if err := r.write(t.Context(), d, k, scale.Decision{Memory: scale.Memory{Desired: 1}}, now.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if writes != 2 {
		t.Errorf("%d writes in a minute, want 2", writes)
	}
	if err := r.write(t.Context(), d, k, scale.Decision{Memory: scale.Memory{Desired: 1}, Remove: []string{"r"}}, now.Add(59*time.Second)); err != nil || writes != 3 {
		t.Errorf("%d writes, %v; another decision is written at once", writes, err)
	}
}
