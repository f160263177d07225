package family

import (
	"fmt"
	"slices"
)

// granite is Granite 3 and 4 without recurrent layers: Llama's block with
// multipliers of embeddings, scores, residuals and logits.
func granite() Family {
	return Family{
		Name: "granite", Models: "Granite 3 dense", Types: []string{"granite"}, Theta: 10000,
		Read: readGranite, Block: preNorm,
	}
}

// graniteMoE is Granite 3 with a mixture of experts in every layer.
func graniteMoE() Family {
	return Family{
		Name: "granitemoe", Models: "Granite 3, mixture of experts", Types: []string{"granitemoe"}, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			readGranite(c, d)
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

// graniteHybrid is Granite 4: Granite's block, in which layers may be state spaces
// (Mamba-2) in place of attention, with a dense feed-forward or a mixture next to an
// expert that every token uses. Where the file has no time_step_limit mlx-lm bounds steps
// to 0.001 and 100; the model was trained, and transformers computes, without bounds.
func graniteHybrid() Family {
	return Family{
		Name: "granitemoehybrid", Models: "Granite 4", Types: []string{"granitemoehybrid"}, Theta: 10000,
		Read: readGraniteHybrid,
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			if d.Hybrid.Recurs(i) {
				b.Attention, b.Recurrent = nil, &d.Hybrid
			}
			if b.Feed != nil {
				b.Feed.Path = "mlp.shared_experts"
			}
			return b
		},
		Layout: Layout{
			Kernels: []string{".conv1d.weight"},
			Rename: []string{
				".shared_mlp.input_linear", ".mlp.shared_experts.gate_up_proj", ".shared_mlp.output_linear", ".mlp.shared_experts.down_proj",
				".mlp.gate_proj", ".mlp.shared_experts.gate_proj", ".mlp.up_proj", ".mlp.shared_experts.up_proj", ".mlp.down_proj", ".mlp.shared_experts.down_proj",
				".block_sparse_moe.router.layer", ".mlp.gate", ".block_sparse_moe.input_linear.weight", ".mlp.experts.gate_up_proj",
				".block_sparse_moe.output_linear.weight", ".mlp.experts.down_proj", ".block_sparse_moe.", ".mlp.",
			},
			Fused: []Fused{{"mlp.shared_experts.gate_up_proj", func(d Dimensions, _ int) []Part {
				n := max(d.Experts.Shared, 1)
				if d.Experts.Count == 0 {
					n = d.FeedForward
				}
				return []Part{{"mlp.shared_experts.gate_proj", n}, {"mlp.shared_experts.up_proj", n}}
			}}},
		},
	}
}

func readGraniteHybrid(c *Config, d *Dimensions) {
	readGranite(c, d)
	kinds := c.kinds(d.Layers, "attention", "mamba")
	recurring := make([]bool, d.Layers)
	for i := range kinds {
		recurring[i] = kinds[i] == "mamba"
	}
	if slices.Contains(recurring, true) {
		d.Hybrid = c.mamba2(Hybrid{Path: "mamba", Recurring: recurring, Bias: c.flag("mamba_proj_bias"), ConvolutionBias: c.flagOr(true, "mamba_conv_bias")},
			[5]string{"mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"})
		if !slices.Contains(recurring, false) {
			c.fail(Invalidf("%slayer_types has no layer that attends", c.inside))
		}
	}
	shared := c.integerOr(d.FeedForward, 1, 1<<22, "shared_intermediate_size")
	if n := c.integerOr(0, 0, 1<<12, "num_local_experts"); n > 0 {
		d.Experts = Experts{Count: n, PerToken: c.integer(1, 1<<12, "num_experts_per_tok"), FeedForward: d.FeedForward, Normalized: true, Step: 1, Shared: shared, SharedWhole: true}
	} else if shared != d.FeedForward { // transformers reads the one, mlx-lm the other
		c.fail(Invalidf("%sshared_intermediate_size is %d and intermediate_size %d, want equal ones", c.inside, shared, d.FeedForward))
	}
	switch v := c.value("position_embedding_type"); v {
	case nil, "rope":
	case "nope":
		d.Still = everyLayer(d.Layers, 1)
	default:
		c.fail(fmt.Errorf("%sposition_embedding_type: %w", c.inside, &UnsupportedError{"positions", Shown(v), []string{"nope", "rope"}}))
	}
}

// granite reads the multipliers, which are required.
func readGranite(c *Config, d *Dimensions) {
	d.Bias = c.flag("attention_bias")
	d.OutBias, d.FeedBias = d.Bias, c.flag("mlp_bias")
	d.EmbedScale = c.number(1e-9, 1e9, "embedding_multiplier")
	d.Scale = c.number(1e-9, 1e9, "attention_multiplier")
	d.Residual = c.number(1e-9, 1e9, "residual_multiplier")
	if by := c.number(1e-9, 1e9, "logits_scaling"); by > 0 {
		d.LogitScale = 1 / by
	}
}
