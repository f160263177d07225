//go:build !race

package controllers_test

import (
	"fmt"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// Adapters are inspected with their model, served as NAME:ADAPTER, counted in the
// reservation and sent to the Mac; adding or removing one is a rollout.
func TestAdaptersReachTheMac(t *testing.T) {
	w := newWorld(t)
	const folder = "file://models/folder"
	record := fleettest.Model(folder, "folder", 98_000_000)
	record.Format = model.FormatSafetensors
	w.mac("mac-1", fleettest.Script{Capacity: 60 * gib, Sources: map[string]fleettest.Source{folder: {Model: &record}}})
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = folder })
	d := w.deployment("chat", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	alone := d.Status.ReservedBytesPerReplica
	rolled := func(adapters ...string) *v1alpha1.ModelDeployment {
		t.Helper()
		first := w.get("chat").Status.UpdateRevision
		w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) {
			s.Adapters = nil
			for _, a := range adapters {
				s.Adapters = append(s.Adapters, v1alpha1.AdapterSpec{Name: a, Source: "file://adapters/" + a})
			}
		})
		w.eventually("the new revision serves alone", func() error {
			d = w.get("chat")
			if d.Status.CurrentRevision == first || d.Status.CurrentRevision != d.Status.UpdateRevision || d.Status.Replicas != 1 || d.Status.ReadyReplicas != 1 {
				return fmt.Errorf("revision %s of %s with %d replicas: %+v", d.Status.CurrentRevision, d.Status.UpdateRevision, d.Status.Replicas, d.Status.Conditions)
			}
			return nil
		})
		var names []string
		for _, a := range adapters {
			names = append(names, "chat:"+a, w.ns+"/chat:"+a)
		}
		if want := slices.Concat([]string{"chat"}, names, []string{w.ns + "/chat"}); !slices.Equal(d.Status.ServedNames, want) || !slices.Equal(d.Status.Adapters, adapters) {
			t.Errorf("served as %q with adapters %q, want %q", d.Status.ServedNames, d.Status.Adapters, want)
		}
		w.eventually("its Mac runs this alone", func() error {
			for _, a := range w.assigned("mac-1").Assignments {
				var has []string
				for _, adapter := range a.Model.Adapters {
					has = append(has, adapter.Name)
				}
				if a.Desired == v1alpha1.DesiredRunning && (!slices.Equal(has, adapters) || !slices.Equal(a.ServedNames, d.Status.ServedNames)) {
					return fmt.Errorf("adapters %q under %q", has, a.ServedNames)
				}
			}
			return nil
		})
		return d
	}
	one := rolled("one").Status.ReservedBytesPerReplica
	two := rolled("one", "two").Status.ReservedBytesPerReplica
	if one < alone+1<<20 || two < one+1<<20 {
		t.Errorf("reserved %d bytes alone, %d with one adapter and %d with two", alone, one, two)
	}
	if got := rolled().Status.ReservedBytesPerReplica; got != alone {
		t.Errorf("without adapters again %d bytes are reserved, want %d", got, alone)
	}
}
