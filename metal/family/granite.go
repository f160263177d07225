package family

// granite is Granite 3 and 4 without recurrent layers: Llama's block, with
// multipliers of embeddings, scores, residuals and logits.
func granite() Family {
	return Family{
		Name: "granite", Models: "Granite 3 dense", Types: []string{"granite"}, Theta: 10000,
		Read: (*Config).granite, Block: preNorm,
	}
}

// graniteMoE is Granite 3 with a mixture in every layer.
func graniteMoE() Family {
	return Family{
		Name: "granitemoe", Models: "Granite 3, mixture of experts", Types: []string{"granitemoe"}, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			c.granite(d)
			d.Experts = Experts{
				Count: c.integer(1, 1<<12, "num_local_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"),
				FeedForward: d.FeedForward, Normalized: true, Step: 1,
			}
		},
		Block: preNorm,
		Layout: Layout{Rename: []string{
			".block_sparse_moe.router.layer.", ".mlp.gate.", ".block_sparse_moe.input_linear.weight", ".mlp.experts.gate_up_proj",
			".block_sparse_moe.output_linear.weight", ".mlp.experts.down_proj", ".block_sparse_moe.", ".mlp.",
		}},
	}
}

// granite reads the multipliers, which a Granite always has.
func (c *Config) granite(d *Dimensions) {
	d.Bias = c.flag("attention_bias")
	d.OutBias, d.FeedBias = d.Bias, c.flag("mlp_bias")
	d.EmbedScale = c.number(1e-9, 1e9, "embedding_multiplier")
	d.Scale = c.number(1e-9, 1e9, "attention_multiplier")
	d.Residual = c.number(1e-9, 1e9, "residual_multiplier")
	if by := c.number(1e-9, 1e9, "logits_scaling"); by > 0 {
		d.LogitScale = 1 / by
	}
}
