//go:build !race

package hubtoken

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/hubsecret"
)

// TestACredentialThatTheMacLacksIsReadFirst: only one more may be read of the namespace now. The other one
// stays as it is.
func TestACredentialThatTheMacLacksIsReadFirst(t *testing.T) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	source := func(i int) string { return fmt.Sprintf("s3://b/m?endpoint=https://e%d.example", i) }
	for _, has := range []int{0, 1} {
		theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "hub", UID: "s"},
			Data: map[string][]byte{"AWS_ACCESS_KEY_ID": []byte("id"), "AWS_SECRET_ACCESS_KEY": []byte("key")}}
		mine := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "metalfleet-system", Name: v1alpha1.AgentObjectName("m1")}, Data: map[string][]byte{}}
		assigned := &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}
		build := fake.NewClientBuilder().WithScheme(s).WithObjects(theirs)
		var refs []string
		for i := range 2 {
			d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("d", i)}}
			d.Status.SecretUID, d.Spec.Model.SecretRef, d.Spec.Model.Source = "s", &v1alpha1.SecretReference{Name: "hub"}, source(i)
			refs = append(refs, v1alpha1.HubTokenKeyPrefix+fleet.TokenRef(d))
			assigned.Spec.Inspections = append(assigned.Spec.Inspections, v1alpha1.Inspection{ID: d.Name, Source: source(i), TokenRef: fleet.TokenRef(d)})
			build = build.WithObjects(d)
		}
		mine.Data[refs[has]] = []byte("earlier")
		c := build.WithObjects(mine, assigned).
			WithIndex(&v1alpha1.ModelDeployment{}, fleet.IndexTokenRef, func(o client.Object) []string { return []string{fleet.TokenRef(o.(*v1alpha1.ModelDeployment))} }).Build()
		secrets := &hubsecret.Reader{Live: c, Clock: clocktesting.NewFakePassiveClock(metav1.Now().Time)}
		for i := range 129 { // all but one of those that may be read at once
			_, refusal, err := secrets.Check(t.Context(), client.ObjectKeyFromObject(theirs), source(i))
			if i >= 2 && err == nil {
				_, _, err = secrets.Read(t.Context(), client.ObjectKeyFromObject(theirs), source(i))
			}
			if refusal != nil || err != nil {
				t.Fatal(refusal, err)
			}
		}
		r := New(c, secrets, "metalfleet-system")
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "m1"}})
		if err != nil || result.RequeueAfter != hubsecret.AgainGood {
			t.Errorf("%v, %v", result, err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(mine), mine); err != nil {
			t.Fatal(err)
		}
		if had, lacked := string(mine.Data[refs[has]]), string(mine.Data[refs[1-has]]); had != "earlier" || lacked != "s3:id:key" {
			t.Errorf("the Mac with the credential %d has %q of it, and %q of the other", has, had, lacked)
		}
	}
}
