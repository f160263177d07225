package controllers_test

import (
	"fmt"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// The address is known at once, and the features once a Mac has inspected the source.
func TestADeploymentStatesItsAddressAndFeatures(t *testing.T) {
	w := newWorld(t)
	w.deploy("chat", nil)
	const address = "http://metalfleet-gateway." + system + ".svc/v1"
	is := func(features ...v1alpha1.Feature) func() error {
		return func() error {
			if s := w.get("chat").Status; s.URL != address || s.PublicURL != "" || !slices.Equal(s.Features, features) {
				return fmt.Errorf("URL %q and %q, features %q, want %q and %q", s.URL, s.PublicURL, s.Features, address, features)
			}
			return nil
		}
	}
	w.eventually("it has an address", is())
	seeing := small
	seeing.Facts.VisionPatches, seeing.Facts.VisionPatchElements, seeing.Facts.VisionHeads, seeing.Facts.VisionElements = 64, 64, 4, 64
	w.mac("mac-1", fleettest.Script{Capacity: 60 * gib, Sources: map[string]fleettest.Source{source: {Model: &seeing}}})
	w.eventually("it has features", is(v1alpha1.FeatureGenerate, v1alpha1.FeatureVision))
}

func TestFeaturesFollowTheTask(t *testing.T) {
	for task, want := range map[model.Task]v1alpha1.Feature{
		"": v1alpha1.FeatureGenerate, model.Generate: v1alpha1.FeatureGenerate, model.Embed: v1alpha1.FeatureEmbeddings, model.Rerank: v1alpha1.FeatureRerank,
	} {
		if got := v1alpha1.FeaturesOf(model.Facts{Task: task}); len(got) != 1 || got[0] != want {
			t.Errorf("task %q: %q, want %q", task, got, want)
		}
	}
}
