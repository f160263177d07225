package family

// qwen2MoE is Qwen1.5-MoE and Qwen2-57B-A14B: Qwen2's block with a mixture of
// experts and a gated shared expert. norm_topk_prob, decoder_sparse_step and
// mlp_only_layers are read, as in transformers and in training; mlx-lm assumes
// their defaults.
func qwen2MoE() Family {
	return Family{
		Name: "qwen2_moe", Models: "Qwen1.5-MoE, Qwen2-57B-A14B", Types: []string{"qwen2_moe"}, Context: 1 << 15,
		Read: func(c *Config, d *Dimensions) {
			d.Window = readWindow(c, *d)
			d.Bias = c.flagOr(true, "qkv_bias")
			d.Experts = c.experts(d.Layers)
			d.Experts.Shared = c.integer(1, 1<<22, "shared_expert_intermediate_size")
		},
		Block:  preNorm,
		Layout: Layout{Headed: true},
	}
}
