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
