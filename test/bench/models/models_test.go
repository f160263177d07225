//go:build !race

package models

import (
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

func TestAModelIsWrittenOnceAndNamedByItsSize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bench")
	first, err := Sized(dir, 1, 256)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	if files, err := filepath.Glob(filepath.Join(first, "*.safetensors")); err != nil || len(files) != 1 {
		t.Errorf("files %v, %v", files, err)
	}
	again, err := Sized(dir, 1, 256)
	if err != nil || again != first {
		t.Fatal(again, err)
	}
	if after, err := os.Stat(again); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("written twice, or %v", err)
	}
	if c := tinymodel.Sized(4e9, perWeight); c.Layers < 100 {
		t.Errorf("4 GB are %d layers", c.Layers)
	}
}

func TestUnknownModels(t *testing.T) {
	if _, err := Shape(t.TempDir(), "no-such-shape"); err == nil {
		t.Error("an unknown shape was written")
	}
	if _, err := Fetch(t.Context(), "no-such-model"); err == nil {
		t.Error("an unknown model was fetched")
	}
}

func TestPublishedShapesAreRead(t *testing.T) {
	for name := range published() {
		m, _, err := describe(name)
		if err != nil {
			t.Fatal(err)
		}
		for key, v := range map[string]any{"num_hidden_layers": 6, "vocab_size": 512, "num_experts": 8, "n_routed_experts": 8, "hybrid_override_pattern": "MEM*EM"} {
			if m.Config[key] != nil {
				m.Config[key] = v
			}
		}
		if types, ok := m.Config["layer_types"].([]any); ok {
			m.Config["layer_types"] = types[:6]
		}
		path := filepath.Join(t.TempDir(), name)
		if err := m.Write(path); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f, err := weights.Open(path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if f.Dim.Experts.Count != 8 || f.Dim.Layers != 6 {
			t.Errorf("%s: %+v", name, f.Dim.Experts)
		}
		f.Close()
	}
}
