package family

// phimoe is Phi-3.5-MoE, and Phi-mini-MoE and Phi-tiny-MoE, which were cut from it: a mixture
// of experts in every layer, of which SparseMixer chooses, LayerNorm, and biases in attention
// and at the head. longrope uses the long factors at every length, as Phi-3's
// does. transformers uses the short ones at every length, and always two experts; mlx-lm
// always wants the biases, and ignores a window.
func phimoe() Family {
	return Family{
		Name: "phimoe", Models: "Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE", Types: []string{"phimoe"}, Context: 1 << 17,
		Read: func(c *Config, d *Dimensions) {
			d.MeanNorm, d.NormBias = true, true
			d.Bias = c.flagOr(true, "attention_bias") // no published model leaves either out
			d.OutBias, d.HeadBias = d.Bias, c.flagOr(true, "lm_head_bias")
			if window := c.integerOr(0, 1, 1<<30, "sliding_window"); window < d.Context {
				d.Window = window // one as long as the context hides nothing
			}
			d.Experts = Experts{
				Count: c.integerOr(16, 1, 1<<12, "num_local_experts"), PerToken: c.integerOr(2, 1, 1<<12, "num_experts_per_tok"),
				FeedForward: d.FeedForward, Step: 1, Router: Router{Jitter: c.numberOr(0.01, 1e-6, 1e6, "router_jitter_noise")},
			}
		},
		Block:  preNorm,
		Layout: Layout{Headed: true, Rename: []string{".block_sparse_moe.", ".mlp.", ".router.", ".gate.", ".w1.", ".gate_proj.", ".w2.", ".down_proj.", ".w3.", ".up_proj."}},
	}
}
