package family

import (
	"fmt"
	"math"
)

// kimiLinear is Kimi Linear: most layers are delta nets whose states are forgotten
// channel by channel, the others attend to a latent vector, and no layer rotates heads.
// It is compared with mlx-lm alone: transformers has no code for it.
func kimiLinear() Family {
	return Family{
		Name: "kimi_linear", Models: "Kimi Linear", Types: []string{"kimi_linear"}, Context: 1 << 20, Theta: 10000, Rotary: "qk_rope_head_dim",
		Read: readKimiLinear,
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			if d.Hybrid.Recurs(i) {
				b.Attention, b.Latent, b.Recurrent = nil, nil, &d.Hybrid
			} else {
				b.Attention.Rope = nil
			}
			return b
		},
		Layout: Layout{
			Ignored: []string{"model.mtp"}, Kernels: []string{"_conv1d.weight", "_conv.conv.weight"},
			Rename: []string{
				".block_sparse_moe.gate.e_score_correction_bias", ".mlp.e_score_correction_bias", ".block_sparse_moe", ".mlp", ".w1", ".gate_proj", ".w2", ".down_proj", ".w3", ".up_proj",
				".q_conv1d", ".q_conv.conv", ".k_conv1d", ".k_conv.conv", ".v_conv1d", ".v_conv.conv",
			},
		},
	}
}

func readKimiLinear(c *Config, d *Dimensions) {
	d.Latent = &Latent{
		Rank: c.integer(1, 1<<16, "kv_lora_rank"), Plain: c.integerOr(d.HeadSize, 1, 1<<12, "qk_nope_head_dim"),
		Rotated: c.integer(2, 1<<12, "qk_rope_head_dim"), Value: c.integerOr(d.HeadSize, 1, 1<<12, "v_head_dim"), Eps: d.NormEps,
	}
	if v := c.value("q_lora_rank"); v != nil {
		c.fail(fmt.Errorf("%sq_lora_rank: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"null"}}))
	}
	if !c.must("mla_use_nope") { // mlx-lm never rotates
		c.fail(fmt.Errorf("%smla_use_nope: %w", c.inside, &UnsupportedError{"value", "false", []string{"true"}}))
	}
	d.KVHeads, d.HeadSize, d.Scale = 1, d.Latent.Rank+d.Latent.Rotated, 1/math.Sqrt(float64(d.Latent.Plain+d.Latent.Rotated))
	inner, _ := c.value("linear_attn_config").(map[string]any)
	if inner == nil {
		c.fail(fmt.Errorf("%slinear_attn_config: %w", c.inside, ErrMissing))
		return
	}
	within := newSection(inner, c.inside+"linear_attn_config.")
	h := Hybrid{Rule: KimiDelta, Path: "self_attn", Recurring: make([]bool, d.Layers), KeyHeads: within.integer(1, 1<<10, "num_heads"), KeySize: within.integer(1, 1<<10, "head_dim"), Taps: within.integerOr(4, 2, 64, "short_conv_kernel_size")}
	h.ValueHeads, h.ValueSize = h.KeyHeads, h.KeySize
	attending := d.Layers
	for _, v := range within.list("kda_layers") { // counted from 1
		n, ok := WholeNumber(v)
		if !ok || n < 1 || n > int64(d.Layers) || h.Recurring[n-1] {
			within.fail(Invalidf("%skda_layers contains %s, want layers from 1 to %d", within.inside, Shown(v), d.Layers))
			break
		}
		h.Recurring[n-1] = true
		attending--
	}
	if attending == 0 {
		within.fail(Invalidf("%skda_layers lists every layer", within.inside))
	}
	if within.err != nil {
		c.fail(within.err)
	}
	d.Hybrid, d.Experts = h, kimiExperts(c, *d)
}

// kimiExperts reads the mixture, which has names of its own.
func kimiExperts(c *Config, d Dimensions) Experts {
	e := Experts{
		Count: c.integer(1, 1<<12, "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_token"), FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"),
		Normalized: c.flagOr(true, "moe_renormalize"), Step: 1, Dense: denseFirst(d.Layers, c.integerOr(0, 0, 1<<12, "first_k_dense_replace")), SharedWhole: true,
		Router: Router{
			Bias: "e_score_correction_bias", Pairs: true, Least: leastSum, Scale: c.numberOr(1, 1e-9, 1e9, "routed_scaling_factor"),
			Groups: c.integerOr(1, 1, 1<<10, "num_expert_group"), TopGroups: c.integerOr(1, 1, 1<<10, "topk_group"),
		},
	}
	e.Normalized = e.Normalized && e.PerToken > 1 // as in noAux
	e.Shared = e.FeedForward * c.integerOr(0, 0, 1<<10, "num_shared_experts")
	c.only("moe_layer_freq", 1)
	switch v := c.value("moe_router_activation_func"); v {
	case nil, "sigmoid":
		e.Router.Sigmoid = true
	case "softmax":
	default:
		c.fail(fmt.Errorf("%smoe_router_activation_func: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"sigmoid", "softmax"}}))
	}
	return e
}
