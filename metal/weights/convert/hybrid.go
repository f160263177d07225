package convert

import (
	"maps"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// hybridWords sets the keys that mlx-lm 0.32.2 reads of a hybrid
// (models/qwen3_next.py, models/qwen3_5.py): of a model with a vision encoder
// only the text part, which is all that is converted, and in every folder the
// rotated fraction of a head.
func hybridWords(cfg map[string]any, d family.Dimensions) {
	if d.Hybrid.Interval == 0 {
		return
	}
	if text, ok := cfg["text_config"].(map[string]any); ok {
		kind := cfg["model_type"]
		maps.Copy(cfg, text)
		cfg["model_type"] = kind
		for _, key := range []string{"text_config", "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"} {
			delete(cfg, key)
		}
	}
	params, _ := cfg["rope_parameters"].(map[string]any)
	if params == nil {
		params = map[string]any{"rope_type": "default"}
		if scaling, ok := cfg["rope_scaling"].(map[string]any); ok {
			maps.Copy(params, scaling)
		}
		params["rope_theta"] = cfg["rope_theta"]
	}
	if cfg["partial_rotary_factor"] == nil {
		cfg["partial_rotary_factor"] = params["partial_rotary_factor"]
	}
	if cfg["partial_rotary_factor"] == nil {
		cfg["partial_rotary_factor"] = float64(d.Rope.Size) / float64(d.HeadSize)
	}
	params["partial_rotary_factor"] = cfg["partial_rotary_factor"]
	cfg["full_attention_interval"] = d.Hybrid.Interval
	if !d.Hybrid.Joined { // a Qwen3.5, which reads rope_parameters alone
		cfg["rope_parameters"] = params
		kind, _ := cfg["model_type"].(string)
		cfg["model_type"] = strings.TrimSuffix(kind, "_text")
		return
	}
	x := d.Experts
	dense := append([]int{}, x.Dense...)
	for key, v := range map[string]any{
		"num_experts": x.Count, "num_experts_per_tok": x.PerToken, "decoder_sparse_step": max(1, x.Step), "mlp_only_layers": dense,
		"moe_intermediate_size": x.FeedForward, "shared_expert_intermediate_size": x.Shared, "norm_topk_prob": x.Normalized,
	} {
		cfg[key] = v
	}
}

// namedInMLX is the path that mlx-lm gives a layer in config.json.
func namedInMLX(path string, d family.Dimensions) string {
	if d.Hybrid.Interval > 0 && !d.Hybrid.Joined {
		return "language_model." + path
	}
	return path
}
