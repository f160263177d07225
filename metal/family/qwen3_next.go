package family

import "fmt"

// qwen3Next is the Qwen3-Next family: most layers are recurrent (a gated delta
// net), the others attend, with a gate on what their heads read; the
// feed-forward is dense or a mixture with one expert that every token uses.
func qwen3Next() Family {
	return Family{
		Name: "qwen3_next", Models: "Qwen3-Next", Types: []string{"qwen3_next"}, Context: 1 << 15, Partial: 0.25,
		Read: (*Config).hybrid, Block: hybridBlock, Layout: hybridLayout(),
	}
}

// qwen35 is Qwen3.5, with or without experts and a vision encoder, of which the
// text part alone is read. It differs from Qwen3-Next in how a recurrent layer's
// projections are joined.
func qwen35() Family {
	return Family{
		Name: "qwen3_5", Models: "Qwen3.5, text only", Types: []string{"qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"}, Context: 1 << 15, Partial: 0.25,
		Widths: []string{"moe_intermediate_size"}, // of a model of experts alone
		Read:   (*Config).hybrid, Block: hybridBlock, Layout: hybridLayout(),
	}
}

// hybridLayout ignores vision encoders, and heads that draft several tokens (mlx-lm's models/qwen3_5.py, sanitize).
func hybridLayout() Layout {
	return Layout{Unwrap: true, NormsLessOneInHF: true, Kernels: []string{"linear_attn.conv1d.weight"}, Ignored: []string{"model.visual.", "mtp.", "language_model.mtp."}}
}

func hybridBlock(d Dimensions, i int) Block {
	b := preNorm(d, i)
	if d.Hybrid.Recurs(i) {
		b.Attention, b.Recurrent = nil, &d.Hybrid
	} else {
		b.Attention.HeadNorm, b.Attention.Gated = EachHead, true
	}
	return b
}

// Hybrid are the numbers of a family of which most layers are recurrent (gated
// delta nets); the zero value is a family that attends in every layer.
type Hybrid struct {
	// Interval: every n-th layer attends, the others recur.
	Interval int
	// KeyHeads of KeySize each; as many consecutive ones of the ValueHeads, of
	// ValueSize each, share one.
	KeyHeads, KeySize, ValueHeads, ValueSize int
	// Taps is how many latest rows the convolution sees, the newest included.
	Taps int
	// Joined is set where queries, keys, values and the output's gate are one
	// matrix, each key head's together, and both other gates are another.
	Joined bool
}

// Recurs says whether a layer keeps a state instead of keys and values.
func (h Hybrid) Recurs(layer int) bool { return h.Interval > 0 && (layer+1)%h.Interval != 0 }

// Layers counts the recurrent ones among the first n layers.
func (h Hybrid) Layers(n int) int {
	recurrent := 0
	for i := range n {
		if h.Recurs(i) {
			recurrent++
		}
	}
	return recurrent
}

// KeyWidth is that of all heads.
func (h Hybrid) KeyWidth() int { return h.KeyHeads * h.KeySize }

// ValueWidth is that of all heads.
func (h Hybrid) ValueWidth() int { return h.ValueHeads * h.ValueSize }

// Channels is the width of what the convolution sees: queries, keys, values.
func (h Hybrid) Channels() int { return 2*h.KeyWidth() + h.ValueWidth() }

// StateBytes is what one recurrent layer keeps for one sequence, always in
// float32: rows that the convolution saw, and a matrix for
// each value head.
func (h Hybrid) StateBytes() int64 {
	return 4 * (int64(h.Taps-1)*int64(h.Channels()) + int64(h.ValueWidth())*int64(h.KeySize))
}

// hybrid reads what a Qwen3-Next or Qwen3.5 has besides other decoders, as
// mlx-lm 0.32.2 (models/qwen3_next.py, models/qwen3_5.py) and transformers 5 do.
func (c *Config) hybrid(d *Dimensions) {
	h := Hybrid{
		Interval: c.integerOr(4, 1, 1<<12, "full_attention_interval"), Joined: d.Architecture == "qwen3_next",
		KeyHeads: c.integer(1, 1<<10, "linear_num_key_heads"), KeySize: c.integer(1, 1<<10, "linear_key_head_dim"),
		ValueHeads: c.integer(1, 1<<10, "linear_num_value_heads"), ValueSize: c.integer(1, 1<<10, "linear_value_head_dim"),
		Taps: c.integer(2, 64, "linear_conv_kernel_dim"),
	}
	if h.KeyHeads > 0 && h.ValueHeads%h.KeyHeads != 0 {
		c.fail(Invalidf("%slinear_num_value_heads is %d, want a multiple of the %d linear_num_key_heads", c.inside, h.ValueHeads, h.KeyHeads))
	}
	c.hybridLayers(h, d.Layers)
	if v := c.value("attn_output_gate"); v != nil && v != true {
		c.fail(fmt.Errorf("%sattn_output_gate: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"true"}}))
	}
	d.Hybrid = h
	d.Experts = c.hybridExperts(d)
}

// hybridLayers wants at least one layer to attend, and layer_types, where they
// are given, to agree with the interval: mlx-lm reads the one, transformers
// the other.
func (c *Config) hybridLayers(h Hybrid, layers int) {
	if h.Interval > layers {
		c.fail(Invalidf("%sfull_attention_interval is %d, want at most the %d layers", c.inside, h.Interval, layers))
	}
	for i, v := range c.kinds(layers, "full_attention", "linear_attention") {
		if h.Recurs(i) != (v == "linear_attention") {
			c.fail(Invalidf("%slayer_types and full_attention_interval (%d) contradict each other for layer %d", c.inside, h.Interval, i))
			return
		}
	}
}

// hybridExperts reads the mixture, if there is one. That of a Qwen3.5 is in
// every layer, and its shares are always normed: a file that
// asks for something else is refused.
func (c *Config) hybridExperts(d *Dimensions) Experts {
	if c.integerOr(0, 0, 1<<12, "num_experts") == 0 {
		c.dense()
		return Experts{}
	}
	if d.Architecture == "qwen3_next" {
		e := c.experts(d.Layers)
		e.Shared = c.integer(1, 1<<22, "shared_expert_intermediate_size")
		return e
	}
	if v := c.value("norm_topk_prob"); v != nil && v != true {
		c.fail(fmt.Errorf("%snorm_topk_prob: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"true"}}))
	}
	c.integerOr(1, 1, 1, "decoder_sparse_step")
	if list, ok := c.value("mlp_only_layers").([]any); c.value("mlp_only_layers") != nil && (!ok || len(list) > 0) {
		c.fail(fmt.Errorf("%smlp_only_layers: %w", c.inside, &UnsupportedError{"value", Shown(c.value("mlp_only_layers")), []string{"none"}}))
	}
	e := Experts{
		Count: c.integer(1, 1<<12, "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"), Step: 1, Normalized: true,
		FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"), Shared: c.integer(1, 1<<22, "shared_expert_intermediate_size"),
	}
	return e
}
