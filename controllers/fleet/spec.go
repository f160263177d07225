package fleet

import (
	"encoding/json"
	"fmt"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Spec is the part of a deployment's spec that makes its engine, as the user
// wrote it. A revision keeps it beside the engine, so that an undo writes back
// what was written and not what became of it.
type Spec struct {
	Model   v1alpha1.ModelSource `json:"model"`
	Context v1alpha1.ContextSpec `json:"context,omitzero"`
	Memory  v1alpha1.MemorySpec  `json:"memory,omitzero"`
	Cache   v1alpha1.CacheSpec   `json:"cache,omitzero"`
}

// SpecOf is that part of a spec.
func SpecOf(s *v1alpha1.ModelDeploymentSpec) Spec {
	return Spec{Model: s.Model, Context: s.Context, Memory: s.Memory, Cache: s.Cache}
}

// WriteTo puts it into a spec.
func (s Spec) WriteTo(to *v1alpha1.ModelDeploymentSpec) {
	to.Model, to.Context, to.Memory, to.Cache = s.Model, s.Context, s.Memory, s.Cache
}

// Encode writes it as a revision keeps it.
func (s Spec) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode spec of a revision: %w", err)
	}
	return b, nil
}

// DecodeSpec reads what Encode wrote.
func DecodeSpec(text string) (Spec, error) {
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("decode spec of a revision: %w", err)
	}
	return s, nil
}
