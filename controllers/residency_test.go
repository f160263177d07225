//go:build !race

package controllers_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// summary waits for the columns of a replica and its deployment.
func summary(w *world, name, progress, memory, freed string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s shows %q, %s, freed %s", name, progress, memory, freed), func() error {
		rs, d := w.replicas(name), w.get(name)
		if len(rs) != 1 {
			return fmt.Errorf("%d replicas", len(rs))
		}
		if s := rs[0].Status.Summary; s.Progress != progress || s.Memory != memory || s.Freed != freed {
			return fmt.Errorf("the replica shows %+v", s)
		}
		if s := d.Status.Summary; s.Ready != "1/1" || s.Memory != memory || s.Freed != freed {
			return fmt.Errorf("the deployment shows %+v", s)
		}
		return nil
	})
}

func TestOnDemandModelLoadsAndUnloads(t *testing.T) {
	w := newWorld(t)
	mac := w.mac("mac-1", holding(60*gib))
	w.deploy("small", onDemand)
	d := w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonOnDemand)
	wantContains(t, "Ready", message(d.Status.Conditions, v1alpha1.ConditionReady), "1 of 1 replicas are ready, none is loaded")
	if err := wantReason(d.Status.Conditions, v1alpha1.ConditionProgressing, v1alpha1.ReasonStable); err != nil {
		t.Error(err)
	}
	summary(w, "small", "On demand, not loaded", "0", "0")

	r := w.replicas("small")[0]
	want := v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: 60, EvictionPriority: 2}
	node := w.assigned("mac-1")
	if r.Spec.Residency != want || len(node.Assignments) != 1 || node.Assignments[0].Residency != want {
		t.Errorf("replica %+v, orders %+v", r.Spec.Residency, node.Assignments)
	}

	asked := func(yes bool) func(*fleettest.Script) {
		return func(s *fleettest.Script) { s.Asked = func(v1alpha1.Assignment) bool { return yes } }
	}
	w.play(mac, asked(true))
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	summary(w, "small", "Serving", "152.3 MiB", "0")
	w.play(mac, asked(false))
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonOnDemand)
	summary(w, "small", "On demand, not loaded", "0", "152.3 MiB")
	w.wantReclaimEvents(1)
	var events corev1.EventList
	w.must(w.c.List(w.ctx, &events, client.InNamespace(w.ns)))
	i := slices.IndexFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "Reclaimed" })
	wantContains(t, "event", events.Items[i].Message, "reason Idle", "the next request loads it again")
}

func TestResidencyReachesARunningReplicaWhereItIs(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("small", nil)
	d := w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	before, revision := uids(w.replicas("small")), d.Status.CurrentRevision
	follows := func(want v1alpha1.Residency) {
		t.Helper()
		w.eventually(fmt.Sprintf("the Mac is assigned %+v", want), func() error {
			node := w.assigned("mac-1")
			if len(node.Assignments) != 1 || node.Assignments[0].Residency != want {
				return fmt.Errorf("orders %+v", node.Assignments)
			}
			return nil
		})
		if after := uids(w.replicas("small")); !slices.Equal(before, after) || w.get("small").Status.CurrentRevision != revision {
			t.Errorf("replicas %v became %v", before, after)
		}
	}
	follows(v1alpha1.Residency{Policy: v1alpha1.ResidencyAlways})
	w.edit("small", onDemand)
	follows(v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: 60, EvictionPriority: 2})
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Residency = v1alpha1.ResidencySpec{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: ptr.To[int32](0)}
	})
	follows(v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand})
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Residency = v1alpha1.ResidencySpec{} })
	follows(v1alpha1.Residency{Policy: v1alpha1.ResidencyAlways})
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}

func TestAnOnDemandReplicaThatIsRefusedWaitsWhereItIs(t *testing.T) {
	w := newWorld(t)
	refuse := holding(100 * gib)
	refuse.Behave = func(v1alpha1.Assignment) fleettest.Behaviour { return fleettest.Refuse }
	first := w.mac("mac-1", refuse)
	w.deploy("small", onDemand)
	d := w.deployment("small", v1alpha1.ConditionDegraded, v1alpha1.ReasonInsufficientRoom)
	wantContains(t, "Degraded", message(d.Status.Conditions, v1alpha1.ConditionDegraded), "scale down an Always model on that Mac")
	w.mac("mac-2", holding(60*gib)) // not before: the first Mac with the weights gets the replica
	before := uids(w.replicas("small"))
	w.pass(time.Minute)
	if r, err := alone(w.replicas("small")); err != nil || string(r.UID) != before[0] || r.Spec.NodeName != "mac-1" || r.Spec.Epoch != 1 {
		t.Errorf("%v (%v)", r, err)
	}
	// There is room: the same replica continues.
	w.play(first, func(s *fleettest.Script) { s.Behave = nil })
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonOnDemand)
	if after := uids(w.replicas("small")); !slices.Equal(before, after) {
		t.Errorf("replicas %v became %v", before, after)
	}
}

// Five on-demand models of 36 GiB share a Mac of 64 GiB; one always-resident
// model gets a reservation there, a second does not.
func TestOnDemandModelsShareUnreservedMemory(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(64*gib))
	for i := range 5 {
		w.deploy(fmt.Sprintf("shared-%d", i), func(s *v1alpha1.ModelDeploymentSpec) {
			onDemand(s)
			s.Memory.Limit = quantity("36Gi")
		})
	}
	for i := range 5 {
		w.deployment(fmt.Sprintf("shared-%d", i), v1alpha1.ConditionReady, v1alpha1.ReasonOnDemand)
	}
	keep := func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("20Gi") }
	w.deploy("kept", keep)
	w.deployment("kept", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.deploy("too-much", func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("50Gi") })
	d := w.deployment("too-much", v1alpha1.ConditionPlaced, v1alpha1.ReasonNoRoom)
	wantContains(t, "Placed", message(d.Status.Conditions, v1alpha1.ConditionPlaced), "1 short of memory (need 50.0 GiB, largest free 44.0 GiB)", "residency.policy")
}

func TestMacWithStrandedMemoryIsSkippedAndReported(t *testing.T) {
	w := newWorld(t)
	stranded := holding(60 * gib)
	stranded.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionWiredStranded, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonWiredUnowned,
		Message: "21.3 GiB are wired and no process owns them; reboot this Mac", LastTransitionTime: metav1.Now()}}
	mac := w.mac("mac-1", stranded)
	w.deploy("small", nil)
	d := w.deployment("small", v1alpha1.ConditionPlaced, v1alpha1.ReasonNoCandidates)
	wantContains(t, "Placed", message(d.Status.Conditions, v1alpha1.ConditionPlaced), "1 with stranded memory", "reboot")
	w.eventually("one Event about the Mac", func() error {
		var node v1alpha1.MacNode
		w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &node))
		var events corev1.EventList
		w.must(w.c.List(w.ctx, &events, client.InNamespace("default")))
		n := 0
		for _, e := range events.Items {
			if e.InvolvedObject.UID == node.UID && e.Reason == v1alpha1.ConditionWiredStranded {
				n++
				wantContains(t, "event", e.Message, "WiredUnowned: 21.3 GiB are wired", "reboot")
			}
		}
		if n != 1 {
			return fmt.Errorf("%d Events", n)
		}
		return nil
	})
	// It was rebooted.
	w.play(mac, func(s *fleettest.Script) {
		s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionWiredStranded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNothingWired,
			Message: "nothing", LastTransitionTime: metav1.Now()}}
	})
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.eventually("the operator's other conditions stay", func() error {
		var node v1alpha1.MacNode
		w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &node))
		for _, c := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAgentCurrent} {
			if meta.FindStatusCondition(node.Status.Conditions, c) == nil {
				return errors.New(told(node.Status.Conditions))
			}
		}
		return nil
	})
}
