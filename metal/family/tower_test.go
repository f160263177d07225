//go:build !race

package family_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Kernels that write the scores of an image out would take gigabytes that no reservation
// contains.
func TestAttackAnImageWritesNoScoresOnMetal(t *testing.T) {
	metal, heads := footprint.KernelsOf(footprint.MLX), 2
	for _, size := range []int{4, 16, 64, 72, 80, 88, 96, 128} {
		config := seeing(t, "qwen3_vl")
		config["vision_config"].(map[string]any)["hidden_size"] = json.Number(fmt.Sprint(heads * size))
		d, err := family.NewConfig(config).Dimensions()
		if err != nil || d.Tower == nil {
			t.Fatalf("heads of %d: %v, %v", size, err, d.TowerFault)
		}
		if n := d.Tower.AttendedSize(); n < size || !metal.Fused(int64(n), 8192, 1) {
			t.Errorf("heads of %d are attended as %d, which writes scores", size, n)
		}
	}
	config := seeing(t, "qwen3_vl")
	config["vision_config"].(map[string]any)["hidden_size"] = json.Number(fmt.Sprint(heads * 136))
	if d, err := family.NewConfig(config).Dimensions(); err != nil || !errors.Is(d.TowerFault, family.ErrUnsupported) {
		t.Errorf("heads of 136: %v, %v, want that the model is for text alone", err, d.TowerFault)
	}
}

// Patches that are wider than the layers are counted twice: as they are cut, and in the back end.
func TestWidePatchesAreCountedTwice(t *testing.T) {
	for _, kind := range []string{"qwen3_vl", "gemma4"} {
		config := seeing(t, kind)
		config["vision_config"].(map[string]any)["patch_size"] = json.Number("64")
		d, err := family.NewConfig(config).Dimensions()
		if err != nil || d.Tower == nil {
			t.Fatalf("%s: %v, %v", kind, err, d.TowerFault)
		}
		if n := d.Tower.Elements(); n < 2*d.Tower.PatchWidth()+d.Tower.Hidden {
			t.Errorf("%s: %d values per patch of %d", kind, n, d.Tower.PatchWidth())
		}
	}
}

// Large Gemma 4 models let images look ahead: their text is the same with and without a tower.
func TestGemma4ReadsWhatImagesSee(t *testing.T) {
	for value, want := range map[any]bool{nil: false, false: false, "vision": true} {
		config := seeing(t, "gemma4")
		config["text_config"].(map[string]any)["use_bidirectional_attention"] = value
		d, err := family.NewConfig(config).Dimensions()
		if err != nil || d.Tower == nil || d.Tower.Mutual != want || !d.Tower.Windowed {
			t.Errorf("%v: %v, %v; tokens of an image see one another: %+v, want %v under the window", value, err, d.TowerFault, d.Tower, want)
		}
		delete(config, "vision_config")
		if d, err := family.NewConfig(config).Dimensions(); err != nil || d.Tower != nil {
			t.Errorf("%v, without a tower: %v, %v", value, d.Tower, err)
		}
	}
}

// The pairs of a decoder's heads turn by time, row and column in sections: those of the file,
// which may be longer than all pairs, or those that transformers takes in their place
// (Qwen3VLTextRotaryEmbedding, Qwen3_5TextRotaryEmbedding).
func TestSectionsOfARotation(t *testing.T) {
	for name, c := range map[string]struct {
		model    string
		size     int // of what is rotated, in elements
		sections any
		want     [3]int // pairs by time, row and column
	}{
		"those of Qwen3-VL":           {model: "qwen3_vl", size: 128, want: [3]int{24, 20, 20}},
		"all pairs of a smaller head": {model: "qwen3_vl", size: 28, want: [3]int{5, 5, 4}},
		"those of Qwen3.5":            {model: "qwen3_5", size: 64, want: [3]int{11, 11, 10}},
		"those of the file":           {model: "qwen3_vl", size: 32, sections: []any{json.Number("12"), json.Number("3"), json.Number("1")}, want: [3]int{12, 3, 1}},
		"more than all pairs":         {model: "qwen3_vl", size: 28, sections: []any{json.Number("24"), json.Number("20"), json.Number("3")}, want: [3]int{6, 5, 3}},
	} {
		config := seeing(t, c.model)
		text := config["text_config"].(map[string]any)
		text["head_dim"] = json.Number(fmt.Sprint(c.size))
		for _, key := range []string{"rope_scaling", "rope_parameters"} {
			if p, ok := text[key].(map[string]any); ok {
				p["mrope_section"] = c.sections
				if p["partial_rotary_factor"] != nil {
					p["partial_rotary_factor"] = json.Number("1.0")
				}
			}
		}
		d, err := family.NewConfig(config).Dimensions()
		if err != nil || d.Tower == nil {
			t.Errorf("%s: %v, %v", name, err, d.TowerFault)
			continue
		}
		var got [3]int
		for _, axis := range d.Tower.Axes {
			got[axis]++
		}
		if got != c.want {
			t.Errorf("%s: %v pairs by time, row and column, want %v", name, got, c.want)
		}
	}
}
