package identity

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestAStolenMacLosesItsIdentity: it writes its status all the time, and its replicas may still be there.
func TestAStolenMacLosesItsIdentity(t *testing.T) {
	const other = "example.com/other"
	for name, tc := range map[string]struct {
		lost       string
		finalizers []string
		keeps      bool
	}{
		"drained":              {finalizers: []string{other, v1alpha1.FinalizerIdentity}},
		"lost and not drained": {lost: "true", finalizers: []string{v1alpha1.FinalizerDrain, v1alpha1.FinalizerIdentity}},
		"not drained":          {finalizers: []string{v1alpha1.FinalizerDrain, v1alpha1.FinalizerIdentity}, keeps: true},
		"not lost":             {lost: "false", finalizers: []string{v1alpha1.FinalizerDrain, v1alpha1.FinalizerIdentity}, keeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newDrama(t).api
			mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "stolen", UID: "u", Finalizers: tc.finalizers, Annotations: map[string]string{v1alpha1.AnnotationLost: tc.lost}}}
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: v1alpha1.AgentObjectName(mac.Name)}}
			for _, err := range []error{c.Create(t.Context(), account), c.Create(t.Context(), mac), c.Delete(t.Context(), mac)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			busy := interceptor.NewClient(c, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				written := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac.Name}}
				if err := c.Status().Patch(ctx, written, client.RawPatch(types.MergePatchType, []byte(`{"status":{"bootID":"`+o.GetName()+`"}}`))); err != nil {
					t.Fatal(err)
				}
				return c.Delete(ctx, o, opts...)
			}})
			clock := clocktesting.NewFakePassiveClock(now)
			r := &Macs{Client: busy, Issuer: &Issuer{Client: c, Namespace: "ns", Clock: clock}}
			for wait := time.Duration(1); wait > 0; clock.SetTime(clock.Now().Add(wait)) {
				done, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(mac)})
				if err != nil {
					t.Fatal(err)
				}
				wait = done.RequeueAfter
			}
			if want := now.Add(remembered); !tc.keeps && clock.Now().Before(want) {
				t.Errorf("the name is free at %s, want %s: API servers remember tokens", clock.Now(), want)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(mac), mac); err != nil || slices.Contains(mac.Finalizers, v1alpha1.FinalizerIdentity) != tc.keeps {
				t.Errorf("finalizers %v (%v)", mac.Finalizers, err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(account), account); (err == nil) != tc.keeps {
				t.Errorf("its account: %v", err)
			}
		})
	}
}

func TestADeclarationThatAMacIsLostIsNoticed(t *testing.T) {
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: now}}}
	lost := mac.DeepCopy()
	lost.Annotations = map[string]string{v1alpha1.AnnotationLost: "true"}
	if p := comesOrGoes(); !p.Update(event.UpdateEvent{ObjectOld: mac, ObjectNew: lost}) || p.Update(event.UpdateEvent{ObjectOld: mac, ObjectNew: mac}) {
		t.Error("want a pass for the declaration alone")
	}
}
