package weights

import (
	"fmt"
	"strings"
)

// Hybrid are the numbers of a family of which most layers are recurrent (gated
// delta nets); the zero value is a family that attends in every layer.
type Hybrid struct {
	// Interval: every so-manieth layer attends, the others recur.
	Interval int
	// KeyHeads of KeySize each; as many consecutive ones of the ValueHeads, of
	// ValueSize each, share one.
	KeyHeads, KeySize, ValueHeads, ValueSize int
	// Taps is how many latest rows the convolution sees, the newest included.
	Taps int
	// Joined says that queries, keys, values and the output's gate are one
	// matrix, each key head's together, and both other gates are another.
	Joined bool
}

// Recurs says whether a layer keeps a state instead of keys and values.
func (h Hybrid) Recurs(layer int) bool { return h.Interval > 0 && (layer+1)%h.Interval != 0 }

// Layers counts the recurrent ones among so many.
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

// StateBytes is what one recurrent layer keeps for one sequence, in float32
// whatever the weights are: rows that the convolution saw, and a matrix for
// each value head.
func (h Hybrid) StateBytes() int64 {
	return 4 * (int64(h.Taps-1)*int64(h.Channels()) + int64(h.ValueWidth())*int64(h.KeySize))
}

// hybrid reads what a Qwen3-Next or Qwen3.5 has beside other decoders, as
// mlx-lm 0.32.2 (models/qwen3_next.py, models/qwen3_5.py) and transformers 5 do.
func (c *config) hybrid(d *Dimensions) {
	h := Hybrid{
		Interval: c.integerOr(4, 1, 1<<12, "full_attention_interval"), Joined: d.Architecture == familyQwen3Next,
		KeyHeads: c.integer(1, 1<<10, "linear_num_key_heads"), KeySize: c.integer(1, 1<<10, "linear_key_head_dim"),
		ValueHeads: c.integer(1, 1<<10, "linear_num_value_heads"), ValueSize: c.integer(1, 1<<10, "linear_value_head_dim"),
		Taps: c.integer(2, 64, "linear_conv_kernel_dim"),
	}
	if h.KeyHeads > 0 && h.ValueHeads%h.KeyHeads != 0 {
		c.fail(invalidf("%slinear_num_value_heads is %d, want a multiple of the %d linear_num_key_heads", c.inside, h.ValueHeads, h.KeyHeads))
	}
	c.hybridLayers(h, d.Layers)
	if v := c.text["attn_output_gate"]; v != nil && v != true {
		c.fail(fmt.Errorf("%sattn_output_gate: %w", c.inside, &UnsupportedError{"value", shown(v), []string{"true"}}))
	}
	d.Hybrid = h
	d.Experts = c.hybridExperts(d)
}

// hybridLayers wants at least one layer to attend, and layer_types, where they
// are given, to say what the interval says: mlx-lm reads the one, transformers
// the other.
func (c *config) hybridLayers(h Hybrid, layers int) {
	if h.Interval > layers {
		c.fail(invalidf("%sfull_attention_interval is %d, want at most the %d layers", c.inside, h.Interval, layers))
	}
	types := c.text["layer_types"]
	if types == nil {
		return
	}
	list, ok := types.([]any)
	if !ok || len(list) != layers {
		c.fail(invalidf("%slayer_types is not a list of %d names", c.inside, layers))
		return
	}
	for i, v := range list {
		if v != "full_attention" && v != "linear_attention" {
			c.fail(fmt.Errorf("%slayer_types: %w", c.inside, &UnsupportedError{"attention", shown(v), []string{"full_attention", "linear_attention"}}))
			return
		}
		if h.Recurs(i) != (v == "linear_attention") {
			c.fail(invalidf("%slayer_types and full_attention_interval (%d) contradict each other for layer %d", c.inside, h.Interval, i))
			return
		}
	}
}

// hybridExperts reads the mixture, if there is one. That of a Qwen3.5 is in
// every layer, and its shares are normed, whatever the file says: what it says
// otherwise is refused.
func (c *config) hybridExperts(d *Dimensions) Experts {
	if c.integerOr(0, 0, 1<<12, "num_experts") == 0 {
		c.dense()
		return Experts{}
	}
	if d.Architecture == familyQwen3Next {
		e := c.experts(d.Layers)
		e.Shared = c.integer(1, 1<<22, "shared_expert_intermediate_size")
		return e
	}
	if v := c.text["norm_topk_prob"]; v != nil && v != true {
		c.fail(fmt.Errorf("%snorm_topk_prob: %w", c.inside, &UnsupportedError{"value", shown(v), []string{"true"}}))
	}
	c.integerOr(1, 1, 1, "decoder_sparse_step")
	if list, ok := c.text["mlp_only_layers"].([]any); c.text["mlp_only_layers"] != nil && (!ok || len(list) > 0) {
		c.fail(fmt.Errorf("%smlp_only_layers: %w", c.inside, &UnsupportedError{"value", shown(c.text["mlp_only_layers"]), []string{"none"}}))
	}
	e := Experts{
		Count: c.integer(1, 1<<12, "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"), Step: 1, Normalized: true,
		FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"), Shared: c.integer(1, 1<<22, "shared_expert_intermediate_size"),
	}
	return e
}

// hybridRotary is how much of a head is turned: a quarter, where the file does
// not say.
func (c *config) hybridRotary(d Dimensions) int {
	where, v := "partial_rotary_factor", c.text["partial_rotary_factor"]
	if params, ok := c.text["rope_parameters"].(map[string]any); ok && params["partial_rotary_factor"] != nil {
		if inside := params["partial_rotary_factor"]; v != nil && v != inside {
			c.fail(invalidf("%spartial_rotary_factor is %s, but %s in rope_parameters", c.inside, shown(v), shown(inside)))
		}
		where, v = "rope_parameters.partial_rotary_factor", params["partial_rotary_factor"]
	}
	factor := 0.25
	if v != nil {
		var ok bool
		if factor, ok = floatNumber(v); !ok || !(factor > 0 && factor <= 1) {
			c.fail(invalidf("%s%s is %s, want a number above 0 and up to 1", c.inside, where, shown(v)))
			return 2
		}
	}
	return int(factor * float64(d.HeadSize))
}

// isHybrid says that most layers of a family are recurrent.
func isHybrid(family string) bool { return family == familyQwen3Next || family == familyQwen35 }

// recurrent are the tensors of a recurrent layer; paths lack their prefix.
func (d Dimensions) recurrent() []slot {
	h, hidden := d.Hybrid, int64(d.Hidden)
	keys, values, heads := int64(h.KeyWidth()), int64(h.ValueWidth()), int64(h.ValueHeads)
	in := []slot{
		{path: "linear_attn.in_proj_qkv.weight", shape: []int64{2*keys + values, hidden}},
		{path: "linear_attn.in_proj_z.weight", shape: []int64{values, hidden}},
		{path: "linear_attn.in_proj_b.weight", shape: []int64{heads, hidden}},
		{path: "linear_attn.in_proj_a.weight", shape: []int64{heads, hidden}},
	}
	if h.Joined {
		in = []slot{
			{path: "linear_attn.in_proj_qkvz.weight", shape: []int64{2*keys + 2*values, hidden}},
			{path: "linear_attn.in_proj_ba.weight", shape: []int64{2 * heads, hidden}},
		}
	}
	return append(in,
		slot{path: kernelPath, shape: []int64{int64(h.Channels()), int64(h.Taps)}},
		slot{path: "linear_attn.dt_bias", shape: []int64{heads}},
		slot{path: "linear_attn.A_log", shape: []int64{heads}},
		slot{path: "linear_attn.norm.weight", shape: []int64{int64(h.ValueSize)}},
		slot{path: "linear_attn.out_proj.weight", shape: []int64{hidden, values}})
}

// kernelPath ends the path of a convolution's taps. Hugging Face stores them as
// [channels, 1, taps], mlx-lm as [channels, taps, 1]; the bytes are the same.
const kernelPath = "linear_attn.conv1d.weight"

// kernels gives the taps of all convolutions the shape [channels, taps], and
// says whether they lay as mlx-lm stores them: where they do not, the norms are
// stored less one (models/qwen3_5.py, sanitize).
func (c *collection) kernels() (asMLX bool, err error) {
	seen := map[bool]string{}
	for _, name := range sortedKeys(c.tensors) {
		t := c.tensors[name]
		if !strings.HasSuffix(name, kernelPath) || len(t.shape) != 3 {
			continue
		}
		mlx := t.shape[2] == 1
		if mlx == (t.shape[1] == 1) {
			return false, invalidf("tensor %s has shape %v, want [channels, 1, taps] or [channels, taps, 1]", quoted(name), t.shape)
		}
		seen[mlx] = name
		t.shape = []int64{t.shape[0], t.shape[1] * t.shape[2]}
		c.tensors[name] = t
	}
	if len(seen) > 1 {
		return false, invalidf("tensor %s has the layout of Hugging Face, but %s has that of mlx-lm", quoted(seen[false]), quoted(seen[true]))
	}
	return seen[true] != "", nil
}

// fusedExperts cuts what transformers 5 stores as one tensor of all experts
// into the stacks of mlx-lm: gates and what they gate, [experts, 2*inner, hidden],
// expert after expert, and what comes back, which is as it should be but for its
// name.
func (c *collection) fusedExperts() error {
	for _, name := range sortedKeys(c.tensors) {
		layer, found := strings.CutSuffix(name, ".experts.gate_up_proj")
		if !found {
			continue
		}
		t, down := c.tensors[name], layer+".experts.down_proj"
		back, ok := c.tensors[down]
		if !ok {
			return fmt.Errorf("tensor %s: %w", down, ErrMissing)
		}
		if len(t.shape) != 3 || t.shape[0] < 1 || t.shape[1]%2 != 0 {
			return invalidf("tensor %s has shape %v, want [experts, twice their width, columns]", quoted(name), t.shape)
		}
		half := t.span.bytes / t.shape[0] / 2
		for i := range t.shape[0] {
			for side, matrix := range []string{"gate_proj", "up_proj"} {
				part := t
				part.shape = []int64{t.shape[1] / 2, t.shape[2]}
				part.span.offset += (2*i + int64(side)) * half
				part.span.bytes = half
				c.tensors[fmt.Sprintf("%s.experts.%d.%s.weight", layer, i, matrix)] = part
			}
		}
		c.tensors[layer+".switch_mlp.down_proj.weight"] = back
		delete(c.tensors, name)
		delete(c.tensors, down)
	}
	return nil
}

// stateless are the entries that no activation is promoted by: a recurrent
// layer's own vectors count in float32 in any case.
func (e Entry) stateless() bool {
	return len(e.Shape) == 1 && strings.Contains(e.Path, ".linear_attn.")
}
