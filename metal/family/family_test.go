package family_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
)

// configOf is the first configuration that the goldens of a family have.
func configOf(t *testing.T, name string) map[string]any {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "arch", "testdata", "families", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var r struct {
		Cases []struct{ Config map[string]any }
	}
	if err := d.Decode(&r); err != nil {
		t.Fatal(err)
	}
	return r.Cases[0].Config
}

func TestWhatAFamilyDoesNotComputeIsRefusedByName(t *testing.T) {
	for _, c := range []struct {
		family, key string
		value       any
		want        error
	}{
		{"apertus", "qk_norm", false, family.ErrUnsupported},
		{"bailing_moe", "norm_head", true, family.ErrUnsupported},
		{"cohere", "use_qk_norm", true, family.ErrUnsupported},
		{"deepseek_v2", "norm_topk_prob", true, family.ErrUnsupported},
		{"deepseek_v3", "scoring_func", "softmax", family.ErrUnsupported},
		{"deepseek_v3", "kv_lora_rank", nil, family.ErrMissing},
		{"dots1", "moe_layer_freq", json.Number("2"), family.ErrUnsupported},
		{"ernie4_5_moe", "moe_gate_act", "sigmoid", family.ErrUnsupported},
		{"exaone4", "layer_types", []any{"full_attention"}, family.ErrInvalid},
		{"gemma2", "rope_pct", json.Number("0.5"), family.ErrUnsupported},
		{"gemma2", "query_pre_attn_scalar", nil, family.ErrMissing},
		{"glm4", "attention_bias", nil, family.ErrMissing},
		{"glm4_moe", "topk_method", "greedy", family.ErrUnsupported},
		{"granite", "residual_multiplier", nil, family.ErrMissing},
		{"granitemoehybrid", "layer_types", []any{"mamba", "attention"}, family.ErrUnsupported},
		{"internlm3", "qkv_bias", true, family.ErrUnsupported},
		{"minimax_m2", "attn_type_list", []any{json.Number("1"), json.Number("0")}, family.ErrUnsupported},
		{"mixtral", "sliding_window", json.Number("4096"), family.ErrUnsupported},
		{"olmoe", "clip_qkv", json.Number("8"), family.ErrUnsupported},
		{"phi3", "rope_scaling", map[string]any{"type": "longrope", "long_factor": []any{}}, family.ErrInvalid},
		{"qwen2_moe", "use_sliding_window", true, family.ErrUnsupported},
		{"seed_oss", "logits_scaling", json.Number("2"), family.ErrUnsupported},
		{"smollm3", "no_rope_layers", []any{json.Number("1")}, family.ErrInvalid},
		{"stablelm", "qk_layernorm", true, family.ErrUnsupported},
		{"starcoder2", "hidden_act", "gelu", family.ErrUnsupported},
	} {
		values := configOf(t, c.family)
		if _, err := family.NewConfig(values).Dimensions(); err != nil {
			t.Errorf("%s: %v", c.family, err)
		}
		values[c.key] = c.value
		_, err := family.NewConfig(values).Dimensions()
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.key) {
			t.Errorf("%s with %s = %v: error %v, want %v naming it", c.family, c.key, c.value, err, c.want)
		}
	}
}

// Names and shapes of a model's tensors follow from its blocks; a header cannot ask
// for more layers than there are tensors.
func TestLayersWithoutTensorsAreRefused(t *testing.T) {
	for _, name := range family.Names(false) {
		if slices.Contains([]string{"gemma3_text", "gpt_oss", "llama", "qwen2", "qwen3", "qwen3_5", "qwen3_moe", "qwen3_next"}, name) {
			continue // whose configurations are in package weights
		}
		d, err := family.NewConfig(configOf(t, name)).Dimensions()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all, err := d.Slots(1 << 20)
		if err != nil || len(all) < 8*d.Layers {
			t.Errorf("%s has %d tensors in %d layers: %v", name, len(all), d.Layers, err)
		}
		if _, err := d.Slots(len(all) / 2); !errors.Is(err, family.ErrInvalid) {
			t.Errorf("%s with half of its tensors: error %v, want ErrInvalid", name, err)
		}
		d.Layers = 1 << 12
		if _, err := d.Slots(100); !errors.Is(err, family.ErrInvalid) {
			t.Errorf("%s with 4096 layers of 100 tensors: error %v, want ErrInvalid", name, err)
		}
	}
}
