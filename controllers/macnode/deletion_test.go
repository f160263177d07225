package macnode

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestADrainEndsAlthoughTheClockWasSlow: the operator's clock is a day slow when the MacNode is
// deleted, and corrected a little later.
func TestADrainEndsAlthoughTheClockWasSlow(t *testing.T) {
	mac := aMac()
	mac.Finalizers, mac.DeletionTimestamp = []string{v1alpha1.FinalizerDrain}, &metav1.Time{Time: start}
	mac.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
	replica := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r", UID: "r", Finalizers: []string{v1alpha1.FinalizerRelease}}}
	replica.Spec.NodeName, replica.Spec.DrainSeconds = mac.Name, 30
	clock := clocktesting.NewFakeClock(start.Add(-24 * time.Hour))
	c := objects(t, mac, replica)
	r := &Deletion{Client: c, Clock: clock}
	looks := 0
	for end := start.Add(10 * time.Minute); clock.Now().Before(end); looks++ {
		res, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(mac)})
		if err != nil {
			t.Fatal(err)
		}
		if res.RequeueAfter == 0 {
			break
		}
		if looks == 0 {
			clock.Step(24 * time.Hour) // corrected
		}
		clock.Step(res.RequeueAfter)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(mac), mac); !apierrors.IsNotFound(err) {
		t.Errorf("the MacNode is there after %d looks, at %s: %v", looks, clock.Since(start), err)
	}
}

// TestAMacThatWritesItsStatusAllTheTimeIsDeleted: a stolen Mac keeps its account until it is drained.
func TestAMacThatWritesItsStatusAllTheTimeIsDeleted(t *testing.T) {
	mac := aMac()
	mac.Finalizers, mac.DeletionTimestamp = []string{v1alpha1.FinalizerIdentity, v1alpha1.FinalizerDrain}, &metav1.Time{Time: start}
	c := objects(t, mac, &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: mac.Name}})
	busy := interceptor.NewClient(c, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
		if err := c.Status().Patch(ctx, aMac(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"bootID":"b"}}`))); err != nil {
			t.Fatal(err)
		}
		return c.Delete(ctx, o, opts...)
	}})
	r := &Deletion{Client: busy, Clock: clocktesting.NewFakePassiveClock(start)}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(mac)}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(mac), mac); err != nil || len(mac.Finalizers) != 1 || mac.Status.BootID != "b" {
		t.Errorf("finalizers %v, status %+v, %v", mac.Finalizers, mac.Status, err)
	}
}

// TestAFinalizerThatStaysIsTriedAgain: the API server may refuse its removal.
func TestAFinalizerThatStaysIsTriedAgain(t *testing.T) {
	mac := aMac()
	mac.Finalizers, mac.DeletionTimestamp = []string{v1alpha1.FinalizerDrain}, &metav1.Time{Time: start}
	refused := errors.New("refused")
	r := &Deletion{Clock: clocktesting.NewFakePassiveClock(start), Client: interceptor.NewClient(objects(t, mac), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return refused
		}})}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(mac)}); !errors.Is(err, refused) {
		t.Errorf("a removal that was refused ends with %v", err)
	}
}
