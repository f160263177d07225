package family

import "fmt"

// laguna is Laguna: layers differ in their number of heads, and those with a
// window in their rotary embedding; the softplus of a gate per head multiplies
// what attention returns. transformers multiplies by a gate for each element if
// gating is false, mlx-lm by nothing; the key's name says the latter. Biases of
// queries, keys and values have a key of their own in mlx-lm only.
func laguna() Family {
	return Family{
		Name: "laguna", Models: "Laguna", Types: []string{"laguna"}, Context: 1 << 18, Partial: 1, Nested: true,
		Read: readLaguna,
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			b.Attention.HeadNorm, b.Attention.HeadGate = EachHead, d.HeadGate
			return b
		},
		Layout: Layout{
			Unwrap: true,
			Rename: []string{".mlp.gate.proj", ".mlp.gate", ".mlp.shared_expert.", ".mlp.shared_experts.", ".mlp.experts.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
		},
	}
}

func readLaguna(c *Config, d *Dimensions) {
	d.OutBias, d.Bias = c.flag("attention_bias"), c.flag("qkv_bias")
	if d.OutBias != d.Bias {
		c.fail(fmt.Errorf("%sattention_bias: %w", c.inside, &UnsupportedError{"value other than qkv_bias", fmt.Sprint(d.OutBias), []string{fmt.Sprint(d.Bias)}}))
	}
	switch v := c.value("gating"); v {
	case nil, true, "per-head":
		d.HeadGate = SoftplusGate
	case false:
	default:
		c.fail(fmt.Errorf("%sgating: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"true", "false", "per-head"}}))
	}
	d.Everywhere = everyLayer(d.Layers, 1)
	if kinds := c.kinds(d.Layers, "full_attention", "sliding_attention"); kinds != nil {
		for i, kind := range kinds {
			if d.Everywhere[i] = kind == "full_attention"; !d.Everywhere[i] {
				d.Window = c.integer(1, 1<<30, "sliding_window")
			}
		}
	}
	if d.Window > 0 {
		f, _ := ofType(c.kind)
		params, key := c.rotation("sliding_attention")
		local := c.ropeOf(f, *d, params, key)
		if d.LocalRope = &local; local.Size < 2 || local.Size%2 != 0 {
			c.fail(Invalidf("%s%s: %d elements of a head are rotated, want an even number", c.inside, key, local.Size))
		}
	}
	for i, v := range c.list("num_attention_heads_per_layer") {
		n, ok := WholeNumber(v)
		if !ok || n < 1 || n > 1<<12 || n%int64(d.KVHeads) != 0 || i >= d.Layers {
			c.fail(Invalidf("%snum_attention_heads_per_layer is not a list of %d multiples of %d", c.inside, d.Layers, d.KVHeads))
			return
		}
		d.LayerHeads = append(d.LayerHeads, int(n))
	}
	if n := len(d.LayerHeads); n > 0 && n < d.Layers {
		c.fail(Invalidf("%snum_attention_heads_per_layer has %d numbers, want %d", c.inside, n, d.Layers))
	}
	lagunaExperts(c, d)
}

func lagunaExperts(c *Config, d *Dimensions) {
	if v := c.value("moe_router_score_func"); v != nil && v != "sigmoid" {
		c.fail(fmt.Errorf("%smoe_router_score_func: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"sigmoid"}}))
	}
	if c.flag("moe_apply_router_weight_on_input") {
		c.fail(fmt.Errorf("%smoe_apply_router_weight_on_input: %w", c.inside, &UnsupportedError{"value", "true", []string{"false"}}))
	}
	d.Experts = Experts{
		Count: c.integer(1, 1<<12, "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"), FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"),
		Normalized: true, Step: 1, Dense: denseFirst(d.Layers, 1), Shared: c.integer(1, 1<<22, "shared_expert_intermediate_size"), SharedWhole: true,
		Router: Router{
			Sigmoid: true, Bias: "gate.e_score_correction_bias", Scale: c.numberOr(1, 1e-9, 1e9, "moe_routed_scaling_factor"),
			Cap: c.numberOr(0, 0, 1e9, "moe_router_logit_softcapping"),
		},
	}
	if dense, ok := c.denseLayers(d.Layers); ok {
		d.Experts.Dense = dense
	}
}
