//go:build !race

package macclass

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

func TestAPassCopiesNoObjects(t *testing.T) {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m"}}
	assigned := &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "a"}}
	class := &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultMacClass, UID: "c", Generation: 3}}
	inner := fake.NewClientBuilder().WithScheme(s).WithObjects(mac, assigned, class).WithStatusSubresource(mac, class).Build()
	c, unchanged := fleettest.Sharing(t, inner)
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC))}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	unchanged()
	if err := inner.Get(t.Context(), client.ObjectKey{Name: "m"}, assigned); err != nil || assigned.Spec.Class == nil || assigned.Spec.Class.Generation != 3 {
		t.Errorf("the Mac's class is %+v (%v)", assigned.Spec.Class, err)
	}
}

// TestAMacThatReportsOtherSettingsAllTheTimeIsJudgedSeldom: each judgement stores its whole MacNode again.
func TestAMacThatReportsOtherSettingsAllTheTimeIsJudgedSeldom(t *testing.T) {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m"}}
	class := &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultMacClass, UID: "c", Generation: 3}}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(mac, class).WithStatusSubresource(mac, class).Build()
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC))
	r := &Reconciler{Client: c, Clock: clock}
	r.limits.Burst, r.limits.Every = reportBurst, reportEvery
	judged := map[string]bool{}
	look := func(message string) string {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKey{Name: "m"}, mac); err != nil {
			t.Fatal(err)
		}
		mac.Status.Settings = v1alpha1.SettingsInForce{Class: class.Name, ClassGeneration: 3, Message: message}
		if err := c.Status().Update(t.Context(), mac); err != nil {
			t.Fatal(err)
		}
		res, err := r.Reconcile(t.Context(), reconcile.Request{})
		if err != nil || len(judged) == reportBurst && clock.Now().Second() == 0 && res.RequeueAfter != reportEvery {
			t.Errorf("%+v, %v", res, err)
		}
		if err := c.Get(t.Context(), client.ObjectKey{Name: "m"}, mac); err != nil {
			t.Fatal(err)
		}
		return meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionClassApplied).Message
	}
	for i := range 10 * reportBurst {
		judged[look(fmt.Sprint("refused ", i))] = true
	}
	if len(judged) != reportBurst {
		t.Errorf("judged %d times at once, want %d", len(judged), reportBurst)
	}
	clock.SetTime(clock.Now().Add(reportEvery))
	if m := look("later"); judged[m] {
		t.Errorf("the last settings are not judged %s later: %s", reportEvery, m)
	}
}
