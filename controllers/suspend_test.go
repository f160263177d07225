//go:build !race

package controllers_test

import (
	"errors"
	"testing"

	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Its replicas drain, and everything else stays: names, revision, the number of replicas.
func TestASuspendedDeploymentHasNoReplicas(t *testing.T) {
	w := standings{newWorld(t)}
	w.mac("mac-1", holding(60*gib))
	for name, change := range map[string]func(*v1alpha1.ModelDeploymentSpec){
		"fixed": func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) },
		"scaled": func(s *v1alpha1.ModelDeploymentSpec) {
			s.Autoscaling = &v1alpha1.AutoscalingSpec{MinReplicas: ptr.To[int32](2), MaxReplicas: 3}
		},
		"paused":   func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.Paused = false },
		"ondemand": func(s *v1alpha1.ModelDeploymentSpec) { s.Residency.Policy = v1alpha1.ResidencyOnDemand },
	} {
		w.deploy(name, change)
		w.eventually(name+" serves", func() error {
			if d := w.get(name); d.Status.ReadyReplicas == 0 || tools(d) != kstatus.CurrentStatus {
				return errors.New(brief(d))
			}
			return nil
		})
		before := w.get(name)
		w.edit(name, func(s *v1alpha1.ModelDeploymentSpec) { s.Suspend, s.Rollout.Paused = true, name == "paused" })
		d := w.becomes(name, kstatus.CurrentStatus, v1alpha1.ReasonSuspended, v1alpha1.ReasonSuspended)
		if d.Status.Replicas != 0 || len(w.replicas(name)) != 0 {
			t.Errorf("%s is suspended with %d replicas", name, len(w.replicas(name)))
		}
		if d.Status.CurrentRevision != before.Status.CurrentRevision || len(d.Status.ServedNames) != len(before.Status.ServedNames) {
			t.Errorf("%s: revision %s and names %v, before %s and %v", name, d.Status.CurrentRevision, d.Status.ServedNames, before.Status.CurrentRevision, before.Status.ServedNames)
		}
		w.edit(name, func(s *v1alpha1.ModelDeploymentSpec) { s.Suspend, s.Rollout.Paused = false, false })
		w.eventually(name+" serves again with as many", func() error {
			if d := w.get(name); d.Status.ReadyReplicas != before.Status.ReadyReplicas || d.Status.UpdateRevision != before.Status.UpdateRevision {
				return errors.New(brief(d))
			}
			return nil
		})
	}
}
