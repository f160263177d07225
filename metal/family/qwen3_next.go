package family

import (
	"cmp"
	"fmt"
)

// qwen3Next is the Qwen3-Next family: most layers are recurrent (gated delta
// nets), the others use gated attention; the feed-forward is dense or a mixture
// of experts with a gated shared expert.
func qwen3Next() Family {
	return Family{
		Name: "qwen3_next", Models: "Qwen3-Next", Types: []string{"qwen3_next"}, Context: 1 << 15, Partial: 0.25,
		Read: readHybrid, Block: hybridBlock, Layout: hybridLayout(),
	}
}

// qwen35 is Qwen3.5, dense or with experts. It differs from Qwen3-Next in how the
// projections of recurrent layers are fused.
func qwen35() Family {
	return Family{
		Name: "qwen3_5", Models: "Qwen3.5, text only", Types: []string{"qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"}, Context: 1 << 15, Partial: 0.25,
		Widths: []string{"moe_intermediate_size"}, // of a model of experts alone
		Read:   readHybrid, Block: hybridBlock, Draft: hybridDraft, Layout: hybridLayout(),
	}
}

// hybridDraft is a layer with attention.
func hybridDraft(d Dimensions) Block { return hybridBlock(d, d.Hybrid.Interval-1) }

// hybridLayout ignores what is read apart: vision encoders and draft heads. mlx-lm drops
// both (models/qwen3_5.py, sanitize).
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

// Hybrid describes a family whose layers are mostly recurrent (gated delta
// nets); the zero value means attention in every layer.
type Hybrid struct {
	// Interval: every n-th layer attends, the others recur; or Recurring lists those
	// that do.
	Interval  int
	Recurring []bool
	// Rule is how the state changes, Path where its tensors lie in a layer; empty means
	// linear_attn.
	Rule RecurrentRule
	Path string
	// Bias is added to the projections, ConvolutionBias to the convolution.
	Bias, ConvolutionBias bool
	// NormGroups is how many parts of what is read are normed by themselves, and Low
	// and High bound the steps (Mamba-2).
	NormGroups int
	Low, High  float64
	// There are KeyHeads of KeySize elements and ValueHeads of ValueSize
	// elements. Consecutive value heads share one key head.
	KeyHeads, KeySize, ValueHeads, ValueSize int
	// Taps is the number of latest rows that the convolution reads, including
	// the newest.
	Taps int
	// Joined means that queries, keys, values and the output gate are one
	// matrix, interleaved by key head, and the other two gates a second matrix.
	Joined bool
}

// RecurrentRule is how the state of a recurrent layer changes.
type RecurrentRule int

// The rules: a gated delta net, Mamba-2, a short convolution, and Kimi's delta net,
// whose states are forgotten channel by channel.
const (
	GatedDelta RecurrentRule = iota
	Mamba2
	ShortConvolution
	KimiDelta
)

// Prefix is where the tensors of a recurrent layer lie.
func (h Hybrid) Prefix() string { return cmp.Or(h.Path, "linear_attn") }

// Any reports whether any layer recurs.
func (h Hybrid) Any() bool { return h.Interval > 0 || len(h.Recurring) > 0 }

// Recurs reports whether a layer keeps a state instead of keys and values.
func (h Hybrid) Recurs(layer int) bool {
	if h.Interval == 0 {
		return layer < len(h.Recurring) && h.Recurring[layer]
	}
	return (layer+1)%h.Interval != 0
}

// Layers counts the recurrent layers among the first n.
func (h Hybrid) Layers(n int) int {
	recurrent := 0
	for i := range n {
		if h.Recurs(i) {
			recurrent++
		}
	}
	return recurrent
}

// KeyWidth is the total width of all key heads.
func (h Hybrid) KeyWidth() int { return h.KeyHeads * h.KeySize }

// ValueWidth is the total width of all value heads.
func (h Hybrid) ValueWidth() int { return h.ValueHeads * h.ValueSize }

// Channels is the input width of the convolution: queries, keys, values.
func (h Hybrid) Channels() int { return 2*h.KeyWidth() + h.ValueWidth() }

// Width is that of what a layer computes for a token: what the convolution sees, and
// the output's gate; of a convolution alone the three parts of its projection besides.
func (h Hybrid) Width() int {
	if h.Rule == ShortConvolution {
		return 4 * h.ValueWidth()
	}
	return h.Channels() + h.ValueWidth()
}

// StateBytes is the size in bytes of one recurrent layer's state for one
// sequence, always in float32: the latest rows of the convolution, and a matrix
// for each value head.
func (h Hybrid) StateBytes() int64 {
	return 4 * (int64(h.Taps-1)*int64(h.Channels()) + int64(h.ValueWidth())*int64(h.KeySize))
}

// hybrid reads the options of a Qwen3-Next or Qwen3.5 as mlx-lm 0.32.2
// (models/qwen3_next.py, models/qwen3_5.py) and transformers 5 do.
func readHybrid(c *Config, d *Dimensions) {
	h := Hybrid{
		Interval: c.integerOr(4, 1, 1<<12, "full_attention_interval"), Joined: d.Architecture == "qwen3_next",
		KeyHeads: c.integer(1, 1<<10, "linear_num_key_heads"), KeySize: c.integer(1, 1<<10, "linear_key_head_dim"),
		ValueHeads: c.integer(1, 1<<10, "linear_num_value_heads"), ValueSize: c.integer(1, 1<<10, "linear_value_head_dim"),
		Taps: c.integer(2, 64, "linear_conv_kernel_dim"),
	}
	if h.KeyHeads > 0 && h.ValueHeads%h.KeyHeads != 0 {
		c.fail(Invalidf("%slinear_num_value_heads is %d, want a multiple of the %d linear_num_key_heads", c.inside, h.ValueHeads, h.KeyHeads))
	}
	hybridLayers(c, h, d.Layers)
	if v := c.value("attn_output_gate"); v != nil && v != true {
		c.fail(fmt.Errorf("%sattn_output_gate: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"true"}}))
	}
	d.Hybrid = h
	d.Experts = hybridExperts(c, d)
	c.tower(d, qwenTower, []int{11, 11, 10})
}

// hybridLayers requires at least one attention layer, and a layer_types that
// agrees with the interval if present: mlx-lm reads the interval, transformers
// layer_types.
func hybridLayers(c *Config, h Hybrid, layers int) {
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

// hybridExperts reads the mixture of experts, if there is one. In Qwen3.5 every
// layer is a mixture with normalized weights; a file that asks for something
// else is refused.
func hybridExperts(c *Config, d *Dimensions) Experts {
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
