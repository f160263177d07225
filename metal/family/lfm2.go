package family

// lfm2 is LFM2: most layers are short convolutions, the others attend, with heads that
// are normed.
func lfm2() Family {
	return Family{
		Name: "lfm2", Models: "LFM2", Types: []string{"lfm2"}, Context: 1 << 17, Theta: 1e6, Eps: "norm_eps", Widths: []string{"block_ff_dim"},
		Read: func(c *Config, d *Dimensions) {
			c.convolutions(d)
			c.adjusted(d)
		},
		Block: convolutionBlock, Layout: lfm2Layout(),
	}
}

// lfm2MoE is LFM2 with a mixture in all layers but the first. transformers and mlx-lm add
// 1e-6 to the sum that shares are divided by.
func lfm2MoE() Family {
	return Family{
		Name: "lfm2_moe", Models: "LFM2, mixture of experts", Types: []string{"lfm2_moe"}, Context: 1 << 17, Theta: 1e6, Eps: "norm_eps",
		Read: func(c *Config, d *Dimensions) {
			c.convolutions(d)
			d.Experts = Experts{
				Count: c.integer(1, 1<<12, "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"), FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"),
				Normalized: c.must("norm_topk_prob"), Step: 1, Dense: denseFirst(d.Layers, c.integer(0, 1<<12, "num_dense_layers")),
				Router: Router{Sigmoid: true, Least: 1e-6, Scale: c.numberOr(1, 1e-9, 1e9, "routed_scaling_factor")},
			}
			if c.must("use_expert_bias") {
				d.Experts.Router.Bias = "expert_bias"
			}
		},
		Block: convolutionBlock, Layout: lfm2Layout(),
	}
}

func lfm2Layout() Layout {
	return Layout{
		Kernels: []string{".conv.conv.weight"},
		Rename: []string{
			".operator_norm", ".input_layernorm", ".ffn_norm", ".post_attention_layernorm", "model.embedding_norm", "model.norm", ".feed_forward", ".mlp",
			".w1", ".gate_proj", ".w2", ".down_proj", ".w3", ".up_proj", ".q_layernorm", ".q_norm", ".k_layernorm", ".k_norm", ".self_attn.out_proj", ".self_attn.o_proj",
		},
	}
}

func convolutionBlock(d Dimensions, i int) Block {
	b := preNorm(d, i)
	if d.Hybrid.Recurs(i) {
		b.Attention, b.Recurrent = nil, &d.Hybrid
	} else {
		b.Attention.HeadNorm = EachHead
	}
	return b
}

// convolutions reads which layers convolve: those of layer_types, or all but those that
// full_attn_idxs lists.
func (c *Config) convolutions(d *Dimensions) {
	h := Hybrid{Rule: ShortConvolution, Path: "conv", ValueHeads: 1, ValueSize: d.Hidden, Taps: c.integer(2, 64, "conv_L_cache"), Bias: c.must("conv_bias"), Recurring: make([]bool, d.Layers)}
	kinds := c.kinds(d.Layers, "conv", "full_attention")
	for i := range h.Recurring {
		h.Recurring[i] = kinds == nil || kinds[i] == "conv"
	}
	attending := d.Layers
	for _, v := range c.list("full_attn_idxs") {
		n, ok := WholeNumber(v)
		if !ok || n < 0 || n >= int64(d.Layers) || kinds != nil && kinds[n] == "conv" {
			c.fail(Invalidf("%sfull_attn_idxs contains %s, which is no layer that attends", c.inside, Shown(v)))
			return
		}
		h.Recurring[n] = false
	}
	for _, recurs := range h.Recurring {
		if recurs {
			attending--
		}
	}
	if attending == 0 {
		c.fail(Invalidf("%slayer_types has no layer that attends", c.inside))
	}
	d.Hybrid = h
}

// adjusted reads the width of the feed-forward: two thirds of block_ff_dim, times a
// factor, rounded up, where the file wants that.
func (c *Config) adjusted(d *Dimensions) {
	n := c.integerOr(d.FeedForward, 1, 1<<22, "block_ff_dim")
	if c.must("block_auto_adjust_ff_dim") {
		n = int(c.numberOr(1, 1e-3, 1e3, "block_ffn_dim_multiplier") * float64(2*n/3))
		of := c.integer(1, 1<<16, "block_multiple_of")
		n = of * ((n + of - 1) / max(1, of))
	}
	d.FeedForward = max(1, n)
}
