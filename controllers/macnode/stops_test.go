package macnode

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// napping is a Mac that renews its Lease each second, and announces stops as it likes.
type napping struct {
	*testing.T
	heartbeat *Heartbeat
	clock     *clocktesting.FakeClock
	lease     *coordinationv1.Lease
}

func newNapping(t *testing.T) *napping {
	clock := clocktesting.NewFakeClock(start)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: v1alpha1.AgentObjectName(request.Name)}}
	c := objects(t, aMac(), lease)
	n := &napping{t, &Heartbeat{Client: c, Live: c, Namespace: "system", Clock: clock}, clock, lease}
	n.second(true)
	return n
}

// second passes one, in which the Mac renews its Lease, and accepts assignments or announces a
// stop. It returns whether the Mac is ready.
func (n *napping) second(accepts bool) bool {
	n.Helper()
	n.clock.Step(time.Second)
	return n.writes(&metav1.MicroTime{Time: n.clock.Now()}, accepts)
}

// writes has the Mac write its Lease and its condition Accepting. It returns whether it is ready.
func (n *napping) writes(renewed *metav1.MicroTime, accepts bool) bool {
	n.Helper()
	n.lease.Spec.RenewTime = renewed
	var mac v1alpha1.MacNode
	c := n.heartbeat.Client
	err := c.Update(n.Context(), n.lease)
	if err == nil {
		err = c.Get(n.Context(), request.NamespacedName, &mac)
	}
	meta.RemoveStatusCondition(&mac.Status.Conditions, v1alpha1.ConditionAccepting)
	if !accepts {
		mac.Status.Conditions = append(mac.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepting, Status: metav1.ConditionFalse,
			Reason: v1alpha1.ReasonMacSleeps, Message: "the Mac is about to sleep", LastTransitionTime: metav1.NewTime(n.clock.Now())})
	}
	if err == nil {
		err = c.Status().Update(n.Context(), &mac)
	}
	if err == nil {
		_, err = n.heartbeat.Reconcile(n.Context(), request)
	}
	if err == nil {
		err = c.Get(n.Context(), request.NamespacedName, &mac)
	}
	if err != nil {
		n.Fatal(err)
	}
	return meta.IsStatusConditionTrue(mac.Status.Conditions, v1alpha1.ConditionReady)
}

// TestAttackAMacThatStopsAllTheTime: it announces a stop and accepts again each second.
func TestAttackAMacThatStopsAllTheTime(t *testing.T) {
	n := newNapping(t)
	was, changes := true, 0
	for i := range 1200 {
		if is := n.second(i%2 == 0); is != was {
			was, changes = is, changes+1
		}
	}
	if changes < 4 || changes > 12 {
		t.Errorf("it came and went %d times in 20 minutes, want a few times", changes)
	}
}

// TestAttackAMacThatEmptiesItsLease: it does so every second second, and renews it between.
func TestAttackAMacThatEmptiesItsLease(t *testing.T) {
	n := newNapping(t)
	for i := range 1200 {
		n.clock.Step(time.Second)
		renewed := &metav1.MicroTime{Time: n.clock.Now()}
		if i%2 == 0 {
			renewed = nil
		}
		if !n.writes(renewed, true) {
			t.Fatalf("second %d: it is gone at once", i)
		}
	}
	for i := 1; i <= 30; i++ {
		n.clock.Step(time.Second)
		if ready := n.writes(nil, true); ready != (i < 30) {
			t.Fatalf("%d s after the last renewal: ready %v", i, ready)
		}
	}
}

func TestAMacThatSleepsSeldomIsBackAtOnce(t *testing.T) {
	n := newNapping(t)
	for i := range 5 {
		if n.second(false) || !n.second(true) {
			t.Fatalf("stop %d: it is ready while it sleeps, or gone although it is awake", i)
		}
		if n.clock.Step(repeatWithin); !n.second(true) {
			t.Fatalf("stop %d: it is gone although it is awake", i)
		}
	}
	n.second(false)
	n.second(true)
	n.second(false) // again soon
	gone := 0
	for range 200 {
		if !n.second(true) {
			gone++
		}
	}
	if gone < 50 || gone > 61 {
		t.Errorf("it is gone for %d s after the second of two stops, want a minute", gone)
	}
}
