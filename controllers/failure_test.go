package controllers_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
	"metalfleet.dev/metalfleet/test/testenv"
)

func silence(s *fleettest.Script) { s.Silent = true }

func TestReplicaDeletedWhileItsMacIsDeadIsReleasedOnceFenced(t *testing.T) {
	w := newWorld(t)
	mac := w.mac("mac-1", holding(60*gib))
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.play(mac, silence)
	w.pass(60 * time.Second)
	w.eventually("the silence is reported", func() error { return w.macCondition("mac-1", v1alpha1.ReasonMacSilent) })
	d := w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonMacSilent)
	if d.Status.Replicas != 1 || d.Status.ReadyReplicas != 0 {
		t.Errorf("status of a silent Mac's deployment: %+v", d.Status)
	}
	wantContains(t, "stale figures", w.replicas("small")[0].Status.Summary.Memory, "152.3 MiB (stale)")

	w.must(w.c.Delete(w.ctx, d))
	w.eventually("the replica drains", func() error {
		rs := w.replicas("small")
		if len(rs) != 1 || rs[0].Spec.Desired != v1alpha1.DesiredDrained {
			return fmt.Errorf("%d replicas", len(rs))
		}
		return wantReason(rs[0].Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ReasonDraining)
	})
	// It is not released while the Mac may still hold it: 120 s are not enough.
	w.pass(60 * time.Second)
	if rs := w.replicas("small"); len(rs) != 1 || meta.IsStatusConditionTrue(rs[0].Status.Conditions, v1alpha1.ConditionReleased) {
		t.Fatalf("released before the Mac was gone: %d replicas", len(rs))
	}
	last := w.watchReplica(w.replicas("small")[0].Name)
	w.pass(120 * time.Second)
	w.eventually("replica and deployment are gone", func() error {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(d), d); !apierrors.IsNotFound(err) {
			return fmt.Errorf("deployment is there (%w)", err)
		}
		return nil
	})
	r := last()
	if r.Status.Freed.HostCheck != v1alpha1.HostCheckIndeterminate || r.Status.Freed.Bytes != nil {
		t.Errorf("freed of a dead Mac: %+v, want Indeterminate and no figure", r.Status.Freed)
	}
	if err := wantReason(r.Status.Conditions, v1alpha1.ConditionReleased, v1alpha1.ReasonMacGone); err != nil {
		t.Error(err)
	}
}

// TestKubectlWaitSeesAMacsState: kubectl wait skips a condition of an older generation, and an
// administrator may change a Mac's spec while it is silent.
func TestKubectlWaitSeesAMacsState(t *testing.T) {
	w := newWorld(t)
	mac := w.mac("mac-1", holding(60*gib))
	w.eventually("the Mac is ready", func() error { return w.macCondition("mac-1", v1alpha1.ReasonReporting) })
	w.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "mac/mac-1")
	var before v1alpha1.MacNode
	w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &before))
	if c := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady); c.ObservedGeneration != 0 {
		t.Errorf("Ready is of generation %d: each order would cost another write", c.ObservedGeneration)
	}

	w.play(mac, silence)
	w.pass(60 * time.Second)
	w.eventually("the silence is reported", func() error { return w.macCondition("mac-1", v1alpha1.ReasonMacSilent) })
	w.kubectl("wait", "--for=condition=Ready=Unknown", "--timeout=60s", "mac/mac-1")
	w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &before))

	w.kubectl("patch", "mac", "mac-1", "--type=merge", "-p", `{"spec":{"unschedulable":true}}`)
	var now v1alpha1.MacNode
	w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &now))
	if now.Generation == before.Generation {
		t.Fatal("the patch changed no generation")
	}
	w.pass(10 * time.Second)
	w.kubectl("wait", "--for=condition=Ready=Unknown", "--timeout=60s", "mac/mac-1")
}

func TestReplicasOfAGoneMacAreMadeElsewhere(t *testing.T) {
	w := newWorld(t)
	dead := w.mac("mac-1", holding(100*gib))
	w.mac("mac-2", holding(60*gib))
	w.looked()
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	first := w.replicas("small")[0]
	if first.Spec.NodeName != "mac-1" {
		t.Fatalf("placed on %s", first.Spec.NodeName)
	}
	w.play(dead, silence)
	w.pass(100 * time.Second)
	if rs := w.replicas("small"); len(rs) != 1 || rs[0].UID != first.UID || rs[0].DeletionTimestamp != nil {
		t.Fatal("moved while the Mac was only silent")
	}
	w.pass(120 * time.Second)
	w.eventually("served elsewhere", func() error {
		r, err := alone(w.replicas("small"))
		if err == nil && (r.UID == first.UID || r.Spec.NodeName != "mac-2") {
			err = errors.New(brief(r))
		}
		return err
	})
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	if err := w.macCondition("mac-2", v1alpha1.ReasonReporting); err != nil {
		t.Error("the living Mac:", err)
	}
	// The Mac returns with an engine that is no longer assigned: it stops it, and is Ready
	// again.
	w.eventually("it is ordered nothing any more", func() error {
		if n := len(w.assigned("mac-1").Assignments); n != 0 {
			return fmt.Errorf("%d assignments", n)
		}
		return nil
	})
	w.play(dead, func(s *fleettest.Script) { s.Silent = false })
	w.eventually("the Mac is back and has reported what it stopped", func() error {
		var mac v1alpha1.MacNode
		w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &mac))
		if len(mac.Status.Reclaims) != 1 || mac.Status.Reclaims[0].Reason != v1alpha1.ReclaimUnassigned {
			return fmt.Errorf("reclaims %v", mac.Status.Reclaims)
		}
		return w.macCondition("mac-1", v1alpha1.ReasonReporting)
	})
}

// TestTheBreakerMovesNothing: three of four Macs fall silent at once and stay silent;
// nothing is moved except what an administrator gives up, until they return.
func TestTheBreakerMovesNothing(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-4", holding(20*gib))
	var dead []*fleettest.Agent
	for _, name := range []string{"mac-1", "mac-2", "mac-3"} {
		dead = append(dead, w.mac(name, holding(60*gib)))
	}
	w.deploy("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Placement.NodeSelector = map[string]string{"name": "mac-1"} })
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	first := w.replicas("small")[0]
	for _, a := range dead {
		w.must(a.Edit(w.ctx, silence))
	}
	w.pass(240 * time.Second)
	held := func(names ...string) {
		t.Helper()
		for _, name := range names {
			w.eventually(name+" is held by the circuit breaker", func() error { return w.macCondition(name, v1alpha1.ReasonBreakerOpen) })
		}
	}
	held("mac-1", "mac-2", "mac-3")
	if rs := w.replicas("small"); len(rs) != 1 || rs[0].UID != first.UID || rs[0].DeletionTimestamp != nil {
		t.Fatalf("%d replicas: moved while the breaker holds", len(rs))
	}

	lost := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
	w.must(w.c.Patch(w.ctx, lost, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationLost+`":"true"}}}`))))
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Placement = v1alpha1.PlacementSpec{} })
	w.pass(20 * time.Second)
	w.eventually("what was given up is served elsewhere", func() error {
		rs := w.replicas("small")
		if len(rs) != 1 || rs[0].Spec.NodeName != "mac-4" {
			return fmt.Errorf("%d replicas, the first on %s", len(rs), rs[0].Spec.NodeName)
		}
		return w.macCondition("mac-1", v1alpha1.ReasonMacGone)
	})
	held("mac-2", "mac-3")

	w.must(dead[1].Edit(w.ctx, func(s *fleettest.Script) { s.Silent = false }))
	w.eventually("mac-2 is back", func() error { return w.macCondition("mac-2", v1alpha1.ReasonReporting) })
	w.pass(20 * time.Second)
	held("mac-3") // mac-2 is just back
	w.pass(60 * time.Second)
	w.eventually("half are heard, and the breaker lets mac-3 go", func() error { return w.macCondition("mac-3", v1alpha1.ReasonMacGone) })
}

func TestReplicasOfADeletedMacAreMadeElsewhere(t *testing.T) {
	w := newWorld(t)
	first := w.mac("mac-1", holding(100*gib))
	w.mac("mac-2", holding(60*gib))
	w.looked()
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.deleteMac(first)
	w.macs = w.macs[1:]
	w.eventually("served on the other Mac", func() error {
		rs := w.replicas("small")
		if len(rs) != 1 || rs[0].Spec.NodeName != "mac-2" || w.get("small").Status.ReadyReplicas != 1 {
			return fmt.Errorf("%d replicas", len(rs))
		}
		return nil
	})
}

func TestNamespaceDeletionFinishes(t *testing.T) {
	if !testenv.HasControllers() {
		t.Fatal("this test needs kube-controller-manager among the assets: run `make kube`")
	}
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	dead := w.mac("mac-2", holding(60*gib))
	w.deploy("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) })
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.play(dead, silence)
	w.pass(200 * time.Second)
	ns := &corev1.Namespace{}
	ns.Name = w.ns
	w.must(w.c.Delete(w.ctx, ns))
	w.eventually("the namespace is gone", func() error {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(ns), ns); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v (%w)", ns.Status.Conditions, err)
		}
		return nil
	})
}

func TestIdleFleetAndRestartWriteNothing(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.mac("mac-2", holding(60*gib))
	w.deploy("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) })
	w.deploy("never", func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("100Gi") })
	w.deploy("gone", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.deployment("gone", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.deployment("never", v1alpha1.ConditionFits, v1alpha1.ReasonTooLarge)
	// One reclaim with its Events is part of the initial state.
	gone := w.get("gone")
	w.must(w.c.Delete(w.ctx, gone))
	w.eventually("a deployment is gone", func() error { return w.gone(gone) })
	w.wantReclaimEvents(1)
	before := w.settled(stillness)
	w.pass(60 * time.Second)
	w.wantUnchanged(before, "an idle minute")
	w.stop()
	w.startOperator()
	w.pass(60 * time.Second)
	w.wantUnchanged(before, "a restart of the operator")
}

func TestAPIServerPauseMovesNothing(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	before := w.settled(stillness)
	w.must(env.StopAPIServer())
	// Time passes while no Mac can renew. The watchdog notices at its own pace.
	for range 20 {
		w.clock.jump(10 * time.Second)
		w.waitTicks(3)
	}
	w.must(env.StartAPIServer(w.ctx))
	w.eventually("the agent renews again", func() error {
		n := w.macs[0].Renewals()
		return w.within(5*time.Second, func() error {
			if w.macs[0].Renewals() <= n {
				return errors.New("it does not")
			}
			return nil
		})
	})
	w.pass(20 * time.Second)
	w.wantUnchanged(before, "a pause of the API server")
	// The operator still works.
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) })
	w.eventually("a second replica is ready", func() error {
		if n := w.get("small").Status.ReadyReplicas; n != 2 {
			return fmt.Errorf("%d are ready", n)
		}
		return nil
	})
}
