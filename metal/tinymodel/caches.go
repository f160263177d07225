package tinymodel

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
)

// latentMixture is the part of a configuration that DeepSeek-V3 and V3.2 share.
const latentMixture = `, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "moe_intermediate_size": 64,
	"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1`

// Growing returns models whose caches grow with every token, one for each kind of cache, with
// 4*periods layers; periods is at least 1. Their weights are small, so that the caches
// determine the memory of a model, and in float32, which is fast enough on a processor for
// long contexts.
func Growing(periods int) []Described {
	attending := layersOf(periods, 0, func(at int) bool { return at%4 == 3 })
	return caches(periods, [][2]string{
		{"full-attention-float32", `"model_type": "llama"`},
		{"windows-of-256-float32", `"model_type": "olmo3", "sliding_window": 256`},
		{"latents-of-512-float32", `"model_type": "deepseek_v3"` + latentMixture},
		{"indexed-latents-of-512-float32", `"model_type": "deepseek_v32", "index_n_heads": 4, "index_head_dim": 128, "index_topk": 256` + latentMixture},
		{"short-convolutions-float32", `"model_type": "lfm2", "conv_L_cache": 4, "conv_bias": false, "block_auto_adjust_ff_dim": false, "norm_eps": 1e-5,
			"full_attn_idxs": [` + attending + `]`},
	})
}

// Constant returns models like those of Growing that keep states of a constant size in three
// of four layers, one for each rule.
func Constant(periods int) []Described {
	recurring := layersOf(periods, 1, func(at int) bool { return at%4 != 3 })
	return caches(periods, [][2]string{
		{"gated-delta-states-float32", `"model_type": "qwen3_5", "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
			"linear_num_key_heads": 4, "linear_key_head_dim": 128, "linear_num_value_heads": 8, "linear_value_head_dim": 128`},
		{"channel-delta-states-float32", `"model_type": "kimi_linear", "kv_lora_rank": 128, "qk_rope_head_dim": 32, "mla_use_nope": true, "num_experts": 4,
			"num_experts_per_token": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1, "linear_attn_config": {"num_heads": 8, "head_dim": 128, "kda_layers": [` + recurring + `]}`},
		{"mamba-2-states-float32", `"model_type": "nemotron_h", "hybrid_override_pattern": "` + strings.Repeat("MMM*", periods) + `", "mamba_num_heads": 16, "mamba_head_dim": 64,
			"ssm_state_size": 128, "n_groups": 2, "conv_kernel": 4, "layer_norm_epsilon": 1e-5`},
	})
}

// layersOf lists the layers for which has is true; the first layer has the number first.
func layersOf(periods, first int, has func(at int) bool) string {
	var out []string
	for at := range 4 * periods {
		if has(at) {
			out = append(out, fmt.Sprint(at+first))
		}
	}
	return strings.Join(out, ", ")
}

// caches returns models with these names and configurations.
func caches(periods int, texts [][2]string) []Described {
	var out []Described
	for _, text := range texts {
		config := map[string]any{
			"vocab_size": 4096, "max_position_embeddings": 4096, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4,
			"head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": false, "attention_bias": false,
		}
		var own map[string]any
		if err := json.Unmarshal([]byte("{"+text[1]+"}"), &own); err != nil {
			panic(text[0] + ": " + err.Error())
		}
		maps.Copy(config, own)
		config["num_hidden_layers"] = 4 * periods
		out = append(out, Described{Name: text[0], Seed: 1, Matrices: quant.DenseOf(quant.Float32), Config: config})
	}
	return out
}
