//go:build !race

package uninstall

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// TestTheGuardExistsWhileModelDeploymentsExist: and a ConfigMap that Helm left is taken over,
// but not deleted.
func TestTheGuardExistsWhileModelDeploymentsExist(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, unchanged := fleettest.Sharing(t, fake.NewClientBuilder().WithScheme(scheme).Build())
	defer unchanged()
	r := &Reconciler{Client: c, Namespace: "system"}
	key := client.ObjectKey{Namespace: "system", Name: Name}
	want := func(list string) {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		var have corev1.ConfigMap
		err := c.Get(t.Context(), key, &have)
		if list == "" && !apierrors.IsNotFound(err) || list != "" && have.Data[Key] != list {
			t.Errorf("the guard has %v (%v), want %q", have.Data, err, list)
		}
	}
	model := func(i int) *v1alpha1.ModelDeployment {
		return &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("m%d", i)}}
	}
	want("")
	for i := range 7 {
		if err := c.Create(t.Context(), model(i)); err != nil {
			t.Fatal(err)
		}
	}
	want("team/m0, team/m1, team/m2, team/m3, team/m4, and 2 more")
	for i := range 6 {
		if err := c.Delete(t.Context(), model(i)); err != nil {
			t.Fatal(err)
		}
	}
	want("team/m6")
	if err := c.Delete(t.Context(), model(6)); err != nil {
		t.Fatal(err)
	}
	want("")
	left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: Name}}
	if err := c.Create(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), key, left); err != nil {
		t.Errorf("the ConfigMap of Helm: %v", err)
	}
	if err := c.Create(t.Context(), model(8)); err != nil {
		t.Fatal(err)
	}
	want("team/m8")
}

// TestEditsOfATenantCostNothing: only the creation and the deletion of a ModelDeployment matter.
func TestEditsOfATenantCostNothing(t *testing.T) {
	old := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "m", Generation: 1}}
	now := old.DeepCopy()
	now.Generation = 2
	p := existence()
	if p.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: now}) {
		t.Error("an edit makes the operator list all ModelDeployments")
	}
	if !p.Create(event.CreateEvent{Object: old}) || !p.Delete(event.DeleteEvent{Object: old}) {
		t.Error("a creation or a deletion is not noticed")
	}
}
