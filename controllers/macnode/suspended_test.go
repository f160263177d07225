package macnode

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestASuspendedMacThatOpensAndClosesItsPortIsWrittenSeldom: each write stores its whole MacNode again. That it is silent
// is written at once, and whether it is reachable in the end.
func TestASuspendedMacThatOpensAndClosesItsPortIsWrittenSeldom(t *testing.T) {
	for name, tc := range map[string]struct {
		suspended metav1.ConditionStatus
		least     int
		most      int
	}{
		"suspended":   {metav1.ConditionTrue, 3, 5}, // in 10 minutes
		"may write":   {metav1.ConditionFalse, 60, 65},
		"never wrote": {"", 60, 65},
	} {
		t.Run(name, func(t *testing.T) {
			clock, open := clocktesting.NewFakeClock(start), true
			c := objects(t, aMac(), leaseOf(start))
			h := &Heartbeat{Client: c, Live: c, Namespace: "system", Clock: clock, Reach: func(types.UID) demand.Reach {
				return map[bool]demand.Reach{true: {Known: true, Gateways: 1, By: 1}, false: {Known: true, Gateways: 1}}[open]
			}}
			h.rewrites.Burst, h.rewrites.Every = rewriteBurst, rewriteEvery
			h.suspended.Burst, h.suspended.Every = suspendedBurst, suspendedEvery
			h.pulses.Looked(clock.Now())
			versions := 0
			look := func() (now v1alpha1.MacNode) {
				if err := c.Get(t.Context(), request.NamespacedName, &now); err != nil {
					t.Fatal(err)
				}
				if tc.suspended != "" { // the fake API server replaces all conditions when one is applied
					meta.SetStatusCondition(&now.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionWritesSuspended, Status: tc.suspended})
					if err := c.Status().Update(t.Context(), &now); err != nil {
						t.Fatal(err)
					}
				}
				version := now.ResourceVersion
				if _, err := h.Reconcile(t.Context(), request); err != nil {
					t.Fatal(err)
				}
				if err := c.Get(t.Context(), request.NamespacedName, &now); err != nil {
					t.Fatal(err)
				}
				if now.ResourceVersion != version {
					versions++
				}
				return now
			}
			for range 60 {
				look()
				clock.Step(10 * time.Second)
				h.pulses.Looked(clock.Now())
				open = !open
				want := v1alpha1.ReasonReporting
				if clock.Since(start) >= silentAfter {
					want = v1alpha1.ReasonMacSilent
				}
				now := look()
				if ready := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReady); clock.Since(start) < goneAfter && ready.Reason != want {
					t.Fatalf("%s after its last renewal it is %+v, want %s", clock.Since(start), ready, want)
				}
			}
			if versions < tc.least || versions > tc.most {
				t.Errorf("%d versions, want %d to %d", versions, tc.least, tc.most)
			}
			clock.Step(suspendedEvery)
			open = false
			now := look()
			if !meta.IsStatusConditionFalse(now.Status.Conditions, v1alpha1.ConditionReachable) {
				t.Errorf("%s later it is not unreachable: %+v", suspendedEvery, now.Status.Conditions)
			}
		})
	}
}
