//go:build !race

package modeldeployment

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// TestRevisionsWithoutAnOwner: a deployment that is deleted with --cascade=orphan, perhaps without its finalizers, leaves its
// revisions without an owner. They count in the room of all namespaces.
func TestRevisionsWithoutAnOwner(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := fake.NewClientBuilder().WithScheme(scheme)
	if err := fleet.AddIndexes(t.Context(), builderIndexer{b: b}); err != nil {
		t.Fatal(err)
	}
	add := func(name, deployment string, owner types.UID) {
		r := &appsv1.ControllerRevision{}
		r.Namespace, r.Name, r.Labels = "ns", name, map[string]string{v1alpha1.LabelDeployment: deployment}
		if owner != "" {
			d := &v1alpha1.ModelDeployment{}
			d.Name, d.UID = deployment, owner
			r.OwnerReferences = append(r.OwnerReferences, ownerReference(d))
		}
		b.WithObjects(r)
	}
	add("orphan", "gone", "")
	add("owned", "gone", "uid")
	add("other", "lives", "other")
	add("another", "lives", "")
	r := &Reconciler{Client: b.Build(), Clock: clocktesting.NewFakePassiveClock(now)}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "gone"}}); err != nil {
		t.Fatal(err)
	}
	var list appsv1.ControllerRevisionList
	if err := r.Client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, one := range list.Items {
		left = append(left, one.Name)
	}
	if want := []string{"another", "other", "owned"}; !slices.Equal(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
}
