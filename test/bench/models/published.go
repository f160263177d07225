package models

import (
	"encoding/json"
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// published are the numbers of published models, from their config.json.
func published() map[string]string {
	return map[string]string{
		"gemma4-26b-a4b": `{"model_type": "gemma4_text", "hidden_size": 2816, "num_hidden_layers": 30, "intermediate_size": 2112, "num_attention_heads": 16,
			"num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": true, "sliding_window": 1024,
			"layer_types": [` + strings.Repeat(strings.Repeat(`"sliding_attention", `, 5)+`"full_attention", `, 4) + strings.Repeat(`"sliding_attention", `, 5) + `"full_attention"],
			"rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
				"sliding_attention": {"rope_type": "default", "rope_theta": 10000}},
			"enable_moe_block": true, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "final_logit_softcapping": 30,
			"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "use_double_wide_mlp": false, "hidden_activation": "gelu_pytorch_tanh",
			"vocab_size": 262144, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "tie_word_embeddings": true}`,
		"glm-4.7-flash": `{"model_type": "glm4_moe_lite", "hidden_size": 2048, "num_hidden_layers": 47, "intermediate_size": 10240, "num_attention_heads": 20,
			"num_key_value_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
			"n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "first_k_dense_replace": 1,
			"norm_topk_prob": true, "routed_scaling_factor": 1.8, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "attention_bias": false,
			"rope_theta": 1e6, "rope_scaling": null, "partial_rotary_factor": 1.0,
			"vocab_size": 154880, "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "tie_word_embeddings": false}`,
		"nemotron-3-nano": `{"model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52, "intermediate_size": 1856, "num_attention_heads": 32,
			"num_key_value_heads": 2, "head_dim": 128, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
			"mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "time_step_limit": [0.0, 1e9],
			"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
			"moe_shared_expert_intermediate_size": 3712, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
			"attention_bias": false, "mlp_bias": false, "use_bias": false, "mamba_proj_bias": false, "use_conv_bias": true, "mlp_hidden_act": "relu2",
			"vocab_size": 131072, "max_position_embeddings": 262144, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false}`,
	}
}

// describe returns a published model; ok is false if name is not one of those.
func describe(name string) (m tinymodel.Described, ok bool, err error) {
	text, ok := published()[name]
	if !ok {
		return m, false, nil
	}
	m = tinymodel.Described{Name: name, Matrices: Packed().Matrices, Seed: 1, Renamed: map[string][]string{
		"gemma4-26b-a4b": {
			".mlp.switch_mlp.", ".experts.switch_glu.", ".mlp.gate.", ".router.proj.", ".mlp.router_scale", ".router.scale", ".mlp.per_expert_scale", ".router.per_expert_scale",
		},
		"nemotron-3-nano": {
			"model.layers.", "backbone.layers.", "model.embed_tokens.", "backbone.embeddings.", "model.norm.", "backbone.norm_f.", ".switch_mlp.up_proj.", ".switch_mlp.fc1.",
			".switch_mlp.down_proj.", ".switch_mlp.fc2.",
		},
	}[name]}
	if err := json.Unmarshal([]byte(text), &m.Config); err != nil {
		return m, true, fmt.Errorf("the configuration of %s: %w", name, err)
	}
	return m, true, nil
}
