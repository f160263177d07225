package weights

import (
	"fmt"
	"slices"
	"strings"
)

// gptossLimit is where the gates of a GPT-OSS end, and gptossAlpha what sharpens
// them: mlx-lm 0.32.2 holds both as constants (swiglu_oai), so no other is computed.
const gptossLimit, gptossAlpha = 7, 1.702

// gptoss reads what a GPT-OSS has beside other decoders, as transformers
// (GptOssConfig, version 5) and mlx-lm 0.32.2 (models/gpt_oss.py) do.
func (c *config) gptoss(d *Dimensions) {
	d.Window = c.integer(1, 1<<30, "sliding_window")
	d.Everywhere = c.gptossLayers(d.Layers)
	d.Experts = Experts{
		Count:       c.integer(1, 1<<12, "num_local_experts", "num_experts"),
		PerToken:    c.integer(1, 1<<12, "num_experts_per_tok", "experts_per_token"),
		FeedForward: d.FeedForward, Normalized: true, Step: 1,
	}
	if c.text["rope_scaling"] == nil && c.text["rope_parameters"] == nil { // the references take different ones then
		c.fail(fmt.Errorf("%srope_scaling: %w", c.inside, ErrMissing))
	}
	if v := c.text["attention_bias"]; v != nil && v != true {
		c.fail(fmt.Errorf("%sattention_bias: %w", c.inside, &UnsupportedError{"value", shown(v), []string{"true"}}))
	}
	c.only("swiglu_limit", gptossLimit)
	c.only("swiglu_alpha", gptossAlpha)
}

// gptoss reads a GPT-OSS in GGUF as llama.cpp does: every second layer, from the
// first on, sees a window, and shares are the softmax of those that were chosen.
// Edges of yarn's band are rounded there, whatever the model was trained with.
func (r *keyReader) gptoss(d *Dimensions) {
	d.Window = r.integer("attention.sliding_window", 1, 1<<30)
	d.Everywhere = everyLayer(d.Layers, 2)
	if kind, _ := r.h.Text(r.prefix + "rope.scaling.type"); kind != "yarn" {
		r.fail(&UnsupportedError{"rope scaling", kind, []string{"yarn"}})
	}
	d.Experts = r.experts()
}

// only refuses any other number.
func (c *config) only(name string, want float64) {
	v := c.text[name]
	if f, ok := floatNumber(v); v != nil && (!ok || f != want) {
		c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"value", shown(v), []string{fmt.Sprint(want)}}))
	}
}

// gptossLayers says which layers see everything: layer_types where there are
// any, else every second.
func (c *config) gptossLayers(layers int) []bool {
	types := c.text["layer_types"]
	if types == nil {
		return everyLayer(layers, 2)
	}
	out := make([]bool, layers)
	list, ok := types.([]any)
	if !ok || len(list) != layers {
		c.fail(invalidf("%slayer_types is not a list of %d names", c.inside, layers))
		return out
	}
	for i, v := range list {
		if v != "full_attention" && v != "sliding_attention" {
			c.fail(fmt.Errorf("%slayer_types: %w", c.inside, &UnsupportedError{"attention", shown(v), []string{"full_attention", "sliding_attention"}}))
			return out
		}
		out[i] = v == "full_attention"
	}
	return out
}

// gptossLayer are the tensors of one layer beside those of every decoder, but
// for the experts.
func (d Dimensions) gptossLayer() []slot {
	queries, keyValues := int64(d.QueryHeads*d.HeadSize), int64(d.KVHeads*d.HeadSize)
	return []slot{
		{path: "self_attn.q_proj.bias", gguf: "attn_q.bias", shape: []int64{queries}}, {path: "self_attn.k_proj.bias", gguf: "attn_k.bias", shape: []int64{keyValues}},
		{path: "self_attn.v_proj.bias", gguf: "attn_v.bias", shape: []int64{keyValues}}, {path: "self_attn.o_proj.bias", gguf: "attn_output.bias", shape: []int64{int64(d.Hidden)}},
		{path: "self_attn.sinks", gguf: "attn_sinks.weight", shape: []int64{int64(d.QueryHeads)}},
	}
}

// gptossExperts are the tensors of a mixture in the names of mlx-lm.
func (d Dimensions) gptossExperts() []slot {
	hidden, count, inner := int64(d.Hidden), int64(d.Experts.Count), int64(d.Experts.FeedForward)
	out := []slot{
		{path: "mlp.router.weight", gguf: "ffn_gate_inp.weight", shape: []int64{count, hidden}},
		{path: "mlp.router.bias", gguf: "ffn_gate_inp.bias", shape: []int64{count}},
	}
	for _, m := range []struct {
		name, gguf    string
		rows, columns int64
	}{{gatePart, "ffn_gate_exps", inner, hidden}, {upPart, "ffn_up_exps", inner, hidden}, {"down_proj", "ffn_down_exps", hidden, inner}} {
		out = append(out,
			slot{path: "mlp.experts." + m.name + ".weight", gguf: m.gguf + ".weight", shape: []int64{count, m.rows, m.columns}},
			slot{path: "mlp.experts." + m.name + ".bias", gguf: m.gguf + ".bias", shape: []int64{count, m.rows}})
	}
	return out
}

const gatePart, upPart, bothParts = "gate_proj", "up_proj", "gate_up_proj"

// published names the tensors of a GPT-OSS as OpenAI published it in the words
// of mlx-lm: blocks of 16 bytes are words of mxfp4. It reports whether the gate
// and up of experts are one tensor, in which their rows take turns.
func (c *collection) published(d Dimensions) (together bool, err error) {
	if d.Architecture != familyGPTOSS {
		return false, nil
	}
	named := make(map[string]shardTensor, len(c.tensors))
	for _, name := range sortedKeys(c.tensors) {
		t := c.tensors[name]
		layer, is := strings.CutSuffix(name, "_blocks")
		switch {
		case !strings.Contains(name, ".mlp.experts."):
		case is:
			last := len(t.shape) - 1
			if t.kind.name != "U8" || last < 1 || t.shape[last] != 16 {
				return false, invalidf("tensor %s has type %s and shape %v, want bytes in blocks of 16", quoted(name), t.kind.name, t.shape)
			}
			t.kind, t.shape = element{"U32", 4}, append(slices.Clone(t.shape[:last-1]), t.shape[last-1]*4)
			name, together = layer+".weight", true
		case strings.HasSuffix(name, "_scales"):
			name = strings.TrimSuffix(name, "_scales") + ".scales"
		case strings.HasSuffix(name, "_bias"):
			name = strings.TrimSuffix(name, "_bias") + ".bias"
		case strings.HasSuffix(name, bothParts):
			return false, fmt.Errorf("tensor %s: %w", quoted(name), &UnsupportedError{"layout of experts", "floats in columns", []string{"mxfp4 blocks", "mlx-lm's"}})
		}
		if _, twice := named[name]; twice {
			return false, invalidf("tensor %s exists in two layouts", quoted(name))
		}
		named[name] = t
	}
	c.tensors = named
	return together, nil
}

// paired are the slots where gate and up of experts are one tensor.
func paired(slots []slot) []slot {
	var out []slot
	for _, s := range slots {
		if strings.Contains(s.path, ".mlp.experts."+upPart) {
			continue
		}
		if strings.Contains(s.path, ".mlp.experts."+gatePart) {
			s.path, s.shape = strings.Replace(s.path, gatePart, bothParts, 1), slices.Clone(s.shape)
			s.shape[1] *= 2
		}
		out = append(out, s)
	}
	return out
}
