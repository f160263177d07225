//go:build !race

package controllers_test

import (
	"strings"
	"testing"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// The lower one drains with a reason, waits for memory, and returns.
func TestAReplicaOfAHigherPriorityTakesTheRoomOfALowerOne(t *testing.T) {
	w := newWorld(t)
	busy := holding(40 * gib)
	busy.Behave = func(a v1alpha1.Assignment) fleettest.Behaviour {
		if strings.HasPrefix(a.Name, "low-") {
			return fleettest.KeepsBusy
		}
		return fleettest.Serve
	}
	mac := w.mac("mac-1", busy)
	thirty := func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("30Gi") }
	w.deploy("low", thirty)
	w.deployment("low", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	victim := w.replicas("low")[0].Name

	class := "high-" + w.ns
	w.deploy("high", func(s *v1alpha1.ModelDeploymentSpec) {
		thirty(s)
		s.PriorityClassName = class
	})
	d := w.deployment("high", v1alpha1.ConditionAccepted, v1alpha1.ReasonPriorityClassNotFound)
	wantContains(t, "Accepted", message(d.Status.Conditions, v1alpha1.ConditionAccepted), "PriorityClass "+class, "kubectl get priorityclass")
	w.createForTest(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Value: 1000})

	d = w.deployment("high", v1alpha1.ConditionPlaced, v1alpha1.ReasonPreempting)
	wantContains(t, "Placed", message(d.Status.Conditions, v1alpha1.ConditionPlaced), "a lower priority than 1000", "on mac-1")
	w.eventually("the victim has the reason", func() error {
		var r v1alpha1.ModelReplica
		w.must(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.ns, Name: victim}, &r))
		return wantReason(r.Status.Conditions, v1alpha1.ConditionPlaced, v1alpha1.ReasonPreempted)
	})
	for _, r := range w.replicas("high") {
		if r.Spec.NodeName != "" || r.Spec.Priority.Value != 1000 {
			t.Errorf("%s is on %q with priority %d before its room is free", r.Name, r.Spec.NodeName, r.Spec.Priority.Value)
		}
	}
	w.must(mac.Edit(w.ctx, func(s *fleettest.Script) { s.Behave = nil }))
	w.deployment("high", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.deployment("low", v1alpha1.ConditionPlaced, v1alpha1.ReasonNoRoom)
	w.must(w.c.Delete(w.ctx, w.get("high")))
	w.deployment("low", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}

// Its Mac starts sooner, and no status write makes the binding, which is locked, fail.
func TestAReplicaIsBoundBeforeAnythingIsSaidOfIt(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"mac-1", "mac-2", "mac-3"} {
		w.mac(name, holding(64*gib))
	}
	events, err := w.c.Watch(w.ctx, &v1alpha1.ModelReplicaList{}, client.InNamespace(w.ns))
	w.must(err)
	defer events.Stop()
	const replicas = 8
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](replicas) })
	for bound := map[string]bool{}; len(bound) < replicas; {
		e := <-events.ResultChan()
		r, is := e.Object.(*v1alpha1.ModelReplica)
		switch {
		case !is:
			t.Fatalf("%v after %d bindings", e, len(bound))
		case r.Spec.NodeName != "":
			bound[r.Name] = true
		case e.Type == watch.Modified:
			t.Fatalf("%s has no Mac, but a status: %+v", r.Name, r.Status)
		}
	}
	w.deployment("chat", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}
