//go:build !race

package controllers_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// No time has to pass, and its replicas are fenced. Awake again it is a regular Mac.
func TestAMacThatSaysItSleepsIsReplacedAtOnce(t *testing.T) {
	w := newWorld(t)
	macs := map[string]*fleettest.Agent{"mac-1": w.mac("mac-1", holding(60*gib)), "mac-2": w.mac("mac-2", holding(60*gib))}
	w.looked()
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	first := w.replicas("small")[0]
	sleeper := first.Spec.NodeName
	w.play(macs[sleeper], func(s *fleettest.Script) {
		s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccepting, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMacSleeps,
			Message: "the Mac is about to sleep", LastTransitionTime: metav1.Now()}}
	})
	w.eventually("the model is served elsewhere", func() error {
		for _, r := range w.replicas("small") {
			if r.Spec.NodeName != "" && r.Spec.NodeName != sleeper && fleet.ReplicaReady(&r) {
				return nil
			}
		}
		return fmt.Errorf("%+v", w.get("small").Status)
	})
	if err := w.macCondition(sleeper, v1alpha1.ReasonMacGone); err != nil {
		t.Error(err)
	}
	w.eventually("the sleeper's replica is gone", func() error {
		for _, r := range w.replicas("small") {
			if r.UID == first.UID {
				return fmt.Errorf("%+v", r.Status.Conditions)
			}
		}
		return nil
	})
	w.play(macs[sleeper], func(s *fleettest.Script) { s.Conditions = nil })
	w.eventually("it is awake", func() error { return w.macCondition(sleeper, v1alpha1.ReasonReporting) })
}
