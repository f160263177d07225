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

// The address is known at once, and the features once a Mac has inspected the source.
func TestADeploymentStatesItsAddressAndFeatures(t *testing.T) {
	w := newWorld(t)
	w.deploy("chat", nil)
	w.deploy("other", func(s *v1alpha1.ModelDeploymentSpec) { s.ChatTemplate = "{{ messages[0].content }}" })
	const address = "http://metalfleet-gateway." + system + ".svc/v1"
	is := func(name string, features ...v1alpha1.Feature) func() error {
		return func() error {
			if s := w.get(name).Status; s.URL != address || s.PublicURL != "" || !slices.Equal(s.Features, features) {
				return fmt.Errorf("URL %q and %q, features %q, want %q and %q", s.URL, s.PublicURL, s.Features, address, features)
			}
			return nil
		}
	}
	w.eventually("it has an address", is("chat"))
	seeing := small
	seeing.Facts.VisionPatches, seeing.Facts.VisionPatchElements, seeing.Facts.VisionHeads, seeing.Facts.VisionElements = 64, 64, 4, 64
	seeing.Features = []model.Feature{model.Chat, model.Tools}
	w.mac("mac-1", fleettest.Script{Capacity: 60 * gib, Sources: map[string]fleettest.Source{source: {Model: &seeing}}})
	w.eventually("it has features", is("chat", v1alpha1.FeatureGenerate, v1alpha1.FeatureChat, v1alpha1.FeatureTools, v1alpha1.FeatureVision))
	w.eventually("so has the one with another template, whose tools are not known", is("other", v1alpha1.FeatureGenerate, v1alpha1.FeatureChat, v1alpha1.FeatureVision))
}

func TestFeaturesFollowTheTaskAndTheTemplate(t *testing.T) {
	for task, want := range map[model.Task]v1alpha1.Feature{
		"": v1alpha1.FeatureGenerate, model.Generate: v1alpha1.FeatureGenerate, model.Embed: v1alpha1.FeatureEmbeddings, model.Rerank: v1alpha1.FeatureRerank,
	} {
		if got := v1alpha1.FeaturesOf(model.Record{Facts: model.Facts{Task: task}}, ""); len(got) != 1 || got[0] != want {
			t.Errorf("task %q: %q, want %q", task, got, want)
		}
		// An embedding model may have the template of the model that it was made of.
		if got := v1alpha1.FeaturesOf(model.Record{Facts: model.Facts{Task: task}, Features: []model.Feature{model.Chat, model.Tools}}, ""); want != v1alpha1.FeatureGenerate && (len(got) != 1 || got[0] != want) {
			t.Errorf("task %q with a template: %q, want %q", task, got, want)
		}
	}
}
