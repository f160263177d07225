//go:build !race

package controllers_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// TestNothingThatIsReplacedOrRestoredUnloadsAMac: the MacNode is replaced by a file that
// names only the Mac, its MacAssignment is deleted, and an empty copy of it comes from a
// backup. The engine runs on, and the Mac is assigned the same replica.
func TestNothingThatIsReplacedOrRestoredUnloadsAMac(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	replica := w.replicas("small")[0]
	unchanged := func(what string) {
		t.Helper()
		w.eventually(what, func() error {
			if a := w.assigned("mac-1").Assignments; len(a) != 1 || a[0].ReplicaUID != string(replica.UID) || a[0].Desired != v1alpha1.DesiredRunning {
				return fmt.Errorf("assigned: %+v", a)
			}
			return nil
		})
		var mac v1alpha1.MacNode
		w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &mac))
		if len(mac.Status.Reclaims) > 0 {
			t.Errorf("%s: engines ended: %+v", what, mac.Status.Reclaims)
		}
	}

	w.eventually("the MacNode is replaced", func() error {
		var mac v1alpha1.MacNode
		if err := w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &mac); err != nil {
			return err
		}
		mac.ObjectMeta = metav1.ObjectMeta{Name: mac.Name, ResourceVersion: mac.ResourceVersion}
		mac.Spec = v1alpha1.MacNodeSpec{}
		return w.c.Update(w.ctx, &mac)
	})
	unchanged("after a replacement of the MacNode")
	w.must(w.c.Delete(w.ctx, &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}))
	unchanged("after the deletion of its MacAssignment")

	// A copy takes the rights of the operator: policies refuse it to others.
	c, err := client.New(asOperator(), client.Options{Scheme: controllers.Scheme()})
	w.must(err)
	w.stop()
	w.must(w.c.Delete(w.ctx, &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}))
	w.must(c.Create(w.ctx, &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}))
	w.startOperator() // which takes longer than the Mac needs to read the copy
	unchanged("after a restored copy")
}

// TestADeletedMacNodeIsDrainedFirst: it stays while requests run, gets no new replica, and
// its replica is created on the other Mac.
func TestADeletedMacNodeIsDrainedFirst(t *testing.T) {
	w := newWorld(t)
	busy := holding(60 * gib)
	busy.Behave = func(v1alpha1.Assignment) fleettest.Behaviour { return fleettest.KeepsBusy }
	first := w.mac("mac-1", busy)
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	old := w.replicas("small")[0]
	w.mac("mac-2", holding(50*gib))
	w.deleteMacNode("mac-1")
	w.eventually("it drains, and another Mac serves", func() error {
		a := w.assigned("mac-1").Assignments
		if len(a) != 1 || a[0].ReplicaUID != string(old.UID) || a[0].Desired != v1alpha1.DesiredDrained {
			return fmt.Errorf("assigned: %+v", a)
		}
		for _, r := range w.replicas("small") {
			if r.UID != old.UID && r.Spec.NodeName == "mac-2" {
				return nil
			}
		}
		return errors.New("no successor on mac-2")
	})
	var mac v1alpha1.MacNode
	if err := w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &mac); err != nil || len(mac.Status.Reclaims) != 0 {
		t.Fatalf("before its requests have ended: %v, reclaims %+v", err, mac.Status.Reclaims)
	}
	w.play(first, func(s *fleettest.Script) { s.Behave = nil })
	w.macGone("mac-1")
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	if freed := w.get("small").Status.FreedBytesTotal; freed == 0 {
		t.Error("what the drained engine freed is not counted")
	}
}

// TestADeletedMacNodeIsNotDrainedForEver: a stolen Mac could keep its identity by never
// releasing a replica.
func TestADeletedMacNodeIsNotDrainedForEver(t *testing.T) {
	w := newWorld(t)
	busy := holding(60 * gib)
	busy.Behave = func(v1alpha1.Assignment) fleettest.Behaviour { return fleettest.KeepsBusy }
	w.mac("mac-1", busy)
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.deleteMacNode("mac-1")
	w.settled(time.Second)
	if err := w.macCondition("mac-1", v1alpha1.ReasonReporting); err != nil {
		t.Fatal("before its time is over:", err)
	}
	w.pass(6 * time.Minute)
	again := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationLost+`":"no"}}}`)) // the operator looks again
	w.must(client.IgnoreNotFound(w.c.Patch(w.ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}, again)))
	w.macGone("mac-1")
}

// TestADeletedMacNodeThatIsLostIsNotWaitedFor: an annotation releases it.
func TestADeletedMacNodeThatIsLostIsNotWaitedFor(t *testing.T) {
	w := newWorld(t)
	busy := holding(60 * gib)
	busy.Behave = func(v1alpha1.Assignment) fleettest.Behaviour { return fleettest.KeepsBusy }
	w.mac("mac-1", busy)
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.deleteMacNode("mac-1")
	w.settled(time.Second)
	w.must(w.declareLost("mac-1"))
	w.macGone("mac-1")
	w.eventually("its replica is gone", func() error {
		for _, r := range w.replicas("small") {
			if r.Spec.NodeName == "mac-1" {
				return fmt.Errorf("%s", brief(&r))
			}
		}
		return nil
	})
}
