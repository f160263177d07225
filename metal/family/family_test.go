//go:build !race

package family_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
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
	return casesOf(t, b)[0].Config
}

// golden is a case of a file of goldens.
type golden struct {
	Name   string
	Config map[string]any
}

func casesOf(t *testing.T, file []byte) []golden {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(file))
	d.UseNumber()
	var r struct{ Cases []golden }
	if err := d.Decode(&r); err != nil {
		t.Fatal(err)
	}
	return r.Cases
}

func TestWhatAFamilyDoesNotComputeIsRefusedByName(t *testing.T) {
	for _, c := range []struct {
		family, key string
		value       any
		want        error
	}{
		{family: "apertus", key: "qk_norm", value: false, want: family.ErrUnsupported},
		{family: "bailing_moe", key: "norm_head", value: true, want: family.ErrUnsupported},
		{family: "cohere", key: "rope_theta", want: family.ErrMissing},
		{family: "cohere2", key: "rope_theta", want: family.ErrMissing},
		{family: "cohere", key: "use_qk_norm", value: true, want: family.ErrUnsupported},
		{family: "deepseek_v2", key: "norm_topk_prob", value: true, want: family.ErrUnsupported},
		{family: "deepseek_v3", key: "scoring_func", value: "softmax", want: family.ErrUnsupported},
		{family: "deepseek_v3", key: "kv_lora_rank", want: family.ErrMissing},
		{family: "dots1", key: "moe_layer_freq", value: json.Number("2"), want: family.ErrUnsupported},
		{family: "ernie4_5_moe", key: "moe_gate_act", value: "sigmoid", want: family.ErrUnsupported},
		{family: "exaone4", key: "layer_types", value: []any{"full_attention"}, want: family.ErrInvalid},
		{family: "gemma2", key: "rope_pct", value: json.Number("0.5"), want: family.ErrUnsupported},
		{family: "gemma2", key: "query_pre_attn_scalar", want: family.ErrMissing},
		{family: "gemma3n_text", key: "activation_sparsity_pattern", want: family.ErrInvalid},
		{family: "gemma3n_text", key: "altup_active_idx", value: json.Number("4"), want: family.ErrInvalid},
		{family: "gemma3n_text", key: "num_kv_shared_layers", value: json.Number("6"), want: family.ErrInvalid},
		{family: "gemma3n_text", key: "attention_bias", value: true, want: family.ErrUnsupported},
		{family: "gemma3n_text", key: "intermediate_size", value: []any{json.Number("64")}, want: family.ErrInvalid},
		{family: "gemma4", key: "num_kv_shared_layers", want: family.ErrMissing},
		{family: "gemma4", key: "num_kv_shared_layers", value: json.Number("6"), want: family.ErrInvalid},
		{family: "glm4_moe", key: "num_experts_per_tok", value: json.Number("7"), want: family.ErrInvalid},
		{family: "gemma4", key: "use_bidirectional_attention", value: "all", want: family.ErrUnsupported},
		{family: "glm4", key: "attention_bias", want: family.ErrMissing},
		{family: "glm4_moe", key: "topk_method", value: "greedy", want: family.ErrUnsupported},
		{family: "glm4_moe_lite", key: "rope_theta", want: family.ErrMissing},
		{family: "granite", key: "residual_multiplier", want: family.ErrMissing},
		{family: "granitemoehybrid", key: "layer_types", value: []any{"attention", "conv"}, want: family.ErrUnsupported},
		{family: "granitemoehybrid", key: "position_embedding_type", value: "alibi", want: family.ErrUnsupported},
		{family: "internlm3", key: "qkv_bias", value: true, want: family.ErrUnsupported},
		{family: "kimi_linear", key: "mla_use_nope", value: false, want: family.ErrUnsupported},
		{family: "lfm2", key: "full_attn_idxs", value: []any{json.Number("0")}, want: family.ErrInvalid},
		{family: "lfm2_moe", key: "use_expert_bias", want: family.ErrMissing},
		{family: "llama4_text", key: "num_experts_per_tok", value: json.Number("2"), want: family.ErrUnsupported},
		{family: "llama4_text", key: "head_dim", want: family.ErrMissing},
		{family: "llama4_text", key: "no_rope_layers", value: []any{json.Number("1")}, want: family.ErrInvalid},
		{family: "llama4_text", key: "moe_layers", value: []any{json.Number("5")}, want: family.ErrInvalid},
		{family: "llama4_text", key: "layer_types", value: []any{"full_attention", "sliding_attention", "full_attention", "full_attention", "full_attention"}, want: family.ErrUnsupported},
		{family: "mimo_v2_flash", key: "hybrid_layer_pattern", value: []any{json.Number("1")}, want: family.ErrInvalid},
		{family: "minicpm", key: "rope_scaling", value: map[string]any{"type": "longrope", "original_max_position_embeddings": json.Number("256"), "short_factor": []any{}, "long_factor": slices.Repeat([]any{json.Number("2")}, 16)}, want: family.ErrUnsupported},
		{family: "minimax_m2", key: "attn_type_list", value: []any{json.Number("1"), json.Number("0")}, want: family.ErrUnsupported},
		{family: "mixtral", key: "sliding_window", value: json.Number("4096"), want: family.ErrUnsupported},
		{family: "nemotron_h", key: "norm_topk_prob", want: family.ErrMissing},
		{family: "nemotron_h", key: "use_bias", value: true, want: family.ErrInvalid},
		{family: "olmoe", key: "clip_qkv", value: json.Number("8"), want: family.ErrUnsupported},
		{family: "phi3", key: "rope_scaling", value: map[string]any{"type": "longrope", "long_factor": []any{}}, want: family.ErrInvalid},
		{family: "phi3", key: "rope_scaling", value: map[string]any{"type": "longrope", "long_mscale": json.Number("1.2")}, want: family.ErrUnsupported},
		{family: "phimoe", key: "rope_scaling", value: map[string]any{"type": "longrope", "long_factor": []any{json.Number("1"), json.Number("1"), json.Number("1"), json.Number("1"), json.Number("1"), json.Number("1"), json.Number("1"), json.Number("1")}}, want: family.ErrMissing},
		{family: "qwen2_moe", key: "rope_theta", want: family.ErrMissing},
		{family: "smollm3", key: "rope_theta", want: family.ErrMissing},
		{family: "qwen2_moe", key: "use_sliding_window", value: true, want: family.ErrUnsupported},
		{family: "seed_oss", key: "logits_scaling", value: json.Number("2"), want: family.ErrUnsupported},
		{family: "smollm3", key: "no_rope_layers", value: []any{json.Number("1")}, want: family.ErrInvalid},
		{family: "stablelm", key: "qk_layernorm", value: true, want: family.ErrUnsupported},
		{family: "starcoder2", key: "hidden_act", value: "gelu", want: family.ErrUnsupported},
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

// Where both references have a default, a file without the key means that one.
func TestAKeyThatAFileLeavesOutMeansTheDefaultOfBothReferences(t *testing.T) {
	gone := "" // deletes the key
	for _, c := range []struct {
		family, key string
		value       any
		of          func(d family.Dimensions) float64
		want        float64
	}{
		{family: "gemma2", key: "attn_logit_softcapping", value: gone, of: func(d family.Dimensions) float64 { return d.ScoreCap }, want: 50},
		{family: "gemma2", key: "attn_logit_softcapping", of: func(d family.Dimensions) float64 { return d.ScoreCap }},
		{family: "gemma2", key: "final_logit_softcapping", value: gone, of: func(d family.Dimensions) float64 { return d.LogitCap }, want: 30},
		{family: "gemma3n_text", key: "final_logit_softcapping", value: gone, of: func(d family.Dimensions) float64 { return d.LogitCap }, want: 30},
		{family: "gemma3n_text", key: "final_logit_softcapping", of: func(d family.Dimensions) float64 { return d.LogitCap }},
		{family: "gemma4", key: "final_logit_softcapping", of: func(d family.Dimensions) float64 { return d.LogitCap }},
		{family: "gemma4", key: "rope_parameters", value: gone, of: func(d family.Dimensions) float64 { return d.LocalRope.Theta }, want: 10000},
		{family: "gemma4", key: "rope_parameters", value: gone, of: func(d family.Dimensions) float64 { return d.Rope.Theta }, want: 1e6},
		{family: "gemma4", key: "rope_parameters", value: gone, of: func(d family.Dimensions) float64 { return float64(d.Rope.Factors[d.HeadSize/8-1]) }, want: 1},
		{family: "gemma4", key: "rope_parameters", value: gone, of: func(d family.Dimensions) float64 { return float64(d.Rope.Factors[d.HeadSize/8]) }, want: math.Inf(1)},
		{family: "glm4_moe_lite", key: "routed_scaling_factor", value: gone, of: func(d family.Dimensions) float64 { return d.Experts.Router.Scale }, want: 1.8},
	} {
		values := configOf(t, c.family)
		if values[c.key] = c.value; c.value == gone {
			delete(values, c.key)
		}
		d, err := family.NewConfig(values).Dimensions()
		if err != nil {
			t.Errorf("%s with %s = %v: %v", c.family, c.key, c.value, err)
			continue
		}
		if got := c.of(d); got != c.want {
			t.Errorf("%s with %s = %v: %v, want %v", c.family, c.key, c.value, got, c.want)
		}
	}
	values := configOf(t, "gemma4")
	delete(values, "final_logit_softcapping")
	if _, err := family.NewConfig(values).Dimensions(); !errors.Is(err, family.ErrMissing) {
		t.Errorf("a Gemma 4 that does not say whether it caps logits: error %v, want ErrMissing", err)
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
		if err != nil || len(all) < 5*d.Layers {
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

// A value that a message quotes already is not quoted again.
func TestUnsupportedValuesAreQuotedOnce(t *testing.T) {
	for value, want := range map[string]string{"dynamic": `"dynamic"`, family.Quoted("dynamic"): `"dynamic"`, "1": `"1"`, "`a\nb`": "\"`a\\nb`\""} {
		err := &family.UnsupportedError{Subject: "value", Value: value, Supported: []string{"none"}}
		if got := err.Error(); got != "value "+want+" is not supported (supported: none)" {
			t.Errorf("%s: %s", value, got)
		}
	}
}
