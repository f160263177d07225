package fleet

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Spec is the part of a deployment's spec that determines its engine, as the user wrote it.
// A revision stores it next to the engine, so that an undo restores what was written and
// not the resolved values.
type Spec struct {
	Model       v1alpha1.ModelSource     `json:"model"`
	Adapters    []v1alpha1.AdapterSpec   `json:"adapters,omitempty"`
	Context     v1alpha1.ContextSpec     `json:"context,omitzero"`
	Memory      v1alpha1.MemorySpec      `json:"memory,omitzero"`
	PrefixCache v1alpha1.PrefixCacheSpec `json:"prefixCache,omitzero"`
	Sampling    v1alpha1.SamplingSpec    `json:"sampling,omitzero"`
	Template    string                   `json:"chatTemplate,omitempty"`
	RestartedAt *metav1.Time             `json:"restartedAt,omitempty"`
	// ProfileName is the profile that the spec named, and Profile what it held at that time.
	ProfileName string                     `json:"profileName,omitempty"`
	Profile     *v1alpha1.ModelProfileSpec `json:"profile,omitempty"`
}

// SpecOf returns that part of a spec; profile is the ModelProfile that it names, nil if it
// names none.
func SpecOf(s *v1alpha1.ModelDeploymentSpec, profile *v1alpha1.ModelProfile) Spec {
	out := Spec{Model: s.Model, Adapters: s.Adapters, Context: s.Context, Memory: s.Memory, PrefixCache: s.PrefixCache, Sampling: s.Sampling, Template: s.ChatTemplate, RestartedAt: s.Rollout.RestartedAt,
		ProfileName: s.ProfileName}
	if profile != nil && s.ProfileName != "" {
		out.Profile = &profile.Spec
	}
	return out
}

// Pinned returns the spec with the settings that its profile had, instead of the profile.
func (s Spec) Pinned() Spec {
	if s.Profile == nil {
		return s
	}
	var spec v1alpha1.ModelDeploymentSpec
	s.WriteTo(&spec)
	fillFrom(&spec, s.Profile)
	spec.ProfileName = ""
	return SpecOf(&spec, nil)
}

// WriteTo copies it into a spec.
func (s Spec) WriteTo(to *v1alpha1.ModelDeploymentSpec) {
	to.ProfileName = s.ProfileName
	to.Adapters = s.Adapters
	to.Model, to.Context, to.Memory, to.PrefixCache = s.Model, s.Context, s.Memory, s.PrefixCache
	to.Sampling, to.ChatTemplate = s.Sampling, s.Template
	to.Rollout.RestartedAt = s.RestartedAt
}

// Encode returns it as a revision stores it.
func (s Spec) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode spec of a revision: %w", err)
	}
	return b, nil
}

// DecodeSpec parses the output of Encode.
func DecodeSpec(text string) (Spec, error) {
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("decode spec of a revision: %w", err)
	}
	return s, nil
}
