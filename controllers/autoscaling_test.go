package controllers_test

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/scale"
)

// wantScaled waits until a deployment has that many replicas, all ready, and its autoscaler
// that number and reason; no reason: no autoscaling status.
func wantScaled(w *world, name string, n int32, reason string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s has %d replicas, %s", name, n, reason), func() error {
		d := w.get(name)
		a := d.Status.Autoscaling
		switch {
		case int(d.Status.ReadyReplicas) != int(n) || len(w.replicas(name)) != int(n):
			return fmt.Errorf("%d ready of %d", d.Status.ReadyReplicas, len(w.replicas(name)))
		case reason == "" && a == nil:
			return nil
		case a == nil || reason == "" || a.DesiredReplicas != n:
			return fmt.Errorf("status.autoscaling is %+v", a)
		}
		var events corev1.EventList
		w.must(w.c.List(w.ctx, &events, client.InNamespace(w.ns)))
		for _, e := range events.Items {
			if e.Reason == "Scaled" && e.InvolvedObject.Name == name && contains(e.Message, fmt.Sprintf("to %d replicas (%s)", n, reason)) {
				return nil
			}
		}
		return errors.New("no Event says so")
	})
}

// It stays within its bounds, also over a restart of the operator; without reports of a
// gateway nothing is removed. Without spec.autoscaling nothing of the autoscaler is left.
func TestADeploymentScalesItself(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		w.mac(fmt.Sprintf("mac-%d", i), holding(60*gib))
	}
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3}
	})
	w.deployment("chat", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Autoscaling.MinReplicas = ptr.To[int32](2) })
	wantScaled(w, "chat", 2, scale.Bounds)
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Autoscaling.MinReplicas = ptr.To[int32](3) })
	wantScaled(w, "chat", 3, scale.Bounds)
	w.stop()
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Autoscaling.MinReplicas, s.Autoscaling.MaxReplicas = ptr.To[int32](0), 1
	})
	w.startOperator()
	w.eventually("no reports, and nothing is removed", func() error {
		d := w.get("chat")
		if a := d.Status.Autoscaling; a.Reason != scale.Unheard || a.DesiredReplicas != 3 || len(w.replicas("chat")) != 3 {
			return fmt.Errorf("%d replicas; %+v", len(w.replicas("chat")), a)
		}
		if d.Status.ObservedGeneration != d.Generation {
			return errors.New("the deployment was not looked at yet")
		}
		return nil
	})
	w.stop() // including the annotations for gateways
	for _, r := range w.replicas("chat") {
		w.must(w.c.Patch(w.ctx, &r, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationRetiring+`":"true"}}}`))))
	}
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Autoscaling, s.Replicas = nil, ptr.To[int32](1) })
	w.startOperator()
	wantScaled(w, "chat", 1, "")
	if r := w.replicas("chat")[0]; r.Annotations[v1alpha1.AnnotationRetiring] != "" {
		t.Error("the replica that stays is still the last that gateways choose")
	}
}
