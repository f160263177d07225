package family

import "fmt"

// bailingMoE is Ling and Ring: Llama's block with a fused QKV matrix and a
// mixture of experts with shared experts. Tests compare it with mlx-lm only,
// because transformers does not implement it.
func bailingMoE() Family {
	return Family{
		Name: "bailing_moe", Models: "Ling, Ring", Types: []string{"bailing_moe"}, Context: 1 << 14, Theta: 10000, Partial: 1,
		Read:  readBailing,
		Block: preNorm,
		Layout: Layout{
			Drafts: true,
			Rename: []string{
				"model.word_embeddings.", "model.embed_tokens.", ".attention.dense.", ".self_attn.o_proj.", ".attention.query_layernorm.", ".self_attn.q_norm.",
				".attention.key_layernorm.", ".self_attn.k_norm.", ".attention.", ".self_attn.", ".mlp.gate.gate_proj.", ".mlp.gate.",
			},
			Fused: []Fused{{"self_attn.query_key_value", func(d Dimensions, _ int) []Part {
				q, kv := d.QueryHeads*d.HeadSize, d.KVHeads*d.HeadSize
				return []Part{{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}}
			}}},
		},
	}
}

func readBailing(c *Config, d *Dimensions) {
	d.Bias, d.OutBias = c.flag("use_qkv_bias"), c.flag("use_bias")
	if c.flag("use_qk_norm") {
		d.HeadNorm = EachHead
	}
	for _, name := range []string{"norm_head", "norm_softmax", "use_bias"} {
		if c.flag(name) {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"value", "true", []string{"false"}}))
		}
	}
	e := Experts{
		Count: c.integer(1, 1<<12, "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"),
		FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"), Normalized: c.must("norm_topk_prob"), Step: 1,
		Dense: denseFirst(d.Layers, c.integer(0, 1<<12, "first_k_dense_replace")), SharedWhole: true,
		Router: Router{
			Pairs: true, Least: leastSum, Groups: c.integerOr(1, 1, 1<<10, "n_group"), TopGroups: c.integerOr(1, 1, 1<<10, "topk_group"),
			Scale: c.numberOr(1, 1e-9, 1e9, "routed_scaling_factor"),
		},
	}
	if e.Router.Groups == 1 {
		e.Router.TopGroups = 1
	}
	e.Normalized = e.Normalized && e.PerToken > 1 // as in noAux
	if c.flag("moe_router_enable_expert_bias") {
		e.Router.Bias = "gate.expert_bias"
	}
	switch v := c.value("score_function"); v {
	case nil, "softmax":
	case "sigmoid":
		e.Router.Sigmoid = true
	default:
		c.fail(fmt.Errorf("%sscore_function: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"sigmoid", "softmax"}}))
	}
	if c.flagOr(true, "moe_router_enable_shared_expert") {
		e.Shared = c.integerOr(e.FeedForward, 1, 1<<22, "moe_shared_expert_intermediate_size") * c.integerOr(0, 0, 1<<10, "num_shared_experts")
	}
	d.Experts = e
}
