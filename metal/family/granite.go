package family

import "fmt"

// granite is Granite 3 and 4 without recurrent layers: Llama's block with
// multipliers of embeddings, scores, residuals and logits.
func granite() Family {
	return Family{
		Name: "granite", Models: "Granite 3 dense", Types: []string{"granite"}, Theta: 10000,
		Read: (*Config).granite, Block: preNorm,
	}
}

// graniteMoE is Granite 3 with a mixture of experts in every layer.
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

// graniteHybrid is Granite 4 without recurrent layers (Micro, 1B and 350M;
// models whose names begin with H have some): Granite's block with a fused
// feed-forward.
func graniteHybrid() Family {
	return Family{
		Name: "granitemoehybrid", Models: "Granite 4 dense, without recurrent layers", Types: []string{"granitemoehybrid"}, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			c.granite(d)
			c.kinds(d.Layers, "attention")
			if n := c.integerOr(d.FeedForward, 1, 1<<22, "shared_intermediate_size"); n != d.FeedForward {
				c.fail(Invalidf("%sshared_intermediate_size is %d and intermediate_size %d, want equal ones", c.inside, n, d.FeedForward))
			}
			switch v := c.value("position_embedding_type"); v {
			case nil, "rope":
			case "nope":
				d.Still = everyLayer(d.Layers, 1)
			default:
				c.fail(fmt.Errorf("%sposition_embedding_type: %w", c.inside, &UnsupportedError{"positions", Shown(v), []string{"nope", "rope"}}))
			}
		},
		Block: preNorm,
		Layout: Layout{
			Rename: []string{".shared_mlp.input_linear.", ".mlp.gate_up_proj.", ".shared_mlp.output_linear.", ".mlp.down_proj."},
			Fused:  []Fused{fusedGate()},
		},
	}
}

// granite reads the multipliers, which are required.
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
