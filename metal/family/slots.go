package family

import (
	"fmt"
	"strings"
)

// Slot maps the canonical path of a tensor (its name in the original Hugging
// Face layout) to its GGUF name and its shape.
type Slot struct {
	Path, GGUF string
	Shape      []int64
	Optional   bool
	// Heads is the number of heads whose rows GGUF stores interleaved for its
	// rotary embedding; 0 means rows in order.
	Heads int
	// AnyDims vectors may be stored with dimensions of 1, or as a scalar.
	AnyDims bool
	// GGUFOnly tensors do not exist in model folders.
	GGUFOnly bool
}

// ggufNames maps the paths of a layer's tensors to their GGUF names, without
// suffixes.
func ggufNames() map[string]string {
	return map[string]string{
		"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.rope_freqs": "rope_freqs",
		"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
		"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
		"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.sinks": "attn_sinks",
		"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
		"mlp.gate": "ffn_gate_inp", "mlp.switch_mlp.gate_proj": "ffn_gate_exps", "mlp.switch_mlp.up_proj": "ffn_up_exps", "mlp.switch_mlp.down_proj": "ffn_down_exps",
		"mlp.router": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
	}
}

// inGGUF sets the GGUF name of a slot.
func (s *Slot) inGGUF(f Family) {
	if f.GGUF == nil {
		return
	}
	path, suffix := s.Path, ".weight"
	if cut, ok := strings.CutSuffix(path, ".bias"); ok {
		path, suffix = cut, ".bias"
	}
	path = strings.TrimSuffix(path, ".weight")
	name := f.GGUF.Names[path]
	if name == "" {
		name = ggufNames()[path]
	}
	s.GGUF = name + suffix
}

// slots collects the slots of a network or a layer.
type slots []Slot

func (s *slots) add(path string, shape ...int64) { *s = append(*s, Slot{Path: path, Shape: shape}) }

// linear adds a matrix and, if it has one, its bias.
func (s *slots) linear(path string, rows, columns int, bias bool) {
	s.add(path+".weight", int64(rows), int64(columns))
	if bias {
		s.add(path+".bias", int64(rows))
	}
}

func (s *slots) norm(n Norm, width int) {
	if n.Path == "" {
		return
	}
	s.add(n.Path+".weight", int64(width))
	if n.Bias {
		s.add(n.Path+".bias", int64(width))
	}
}

// globals lists the tensors outside the layers.
func (d Dimensions) globals(f Family) slots {
	var out slots
	out.linear("model.embed_tokens", d.Vocabulary, d.Hidden, false)
	out.norm(d.FinalNorm(), d.Hidden)
	head := Slot{Path: "lm_head.weight", Shape: []int64{int64(d.Vocabulary), int64(d.Hidden)}, Optional: true}
	out = append(out, head)
	if d.LocalRope == nil && f.GGUF != nil { // all layers share one rotary embedding
		out = append(out, Slot{Path: "model.rope_freqs.weight", Shape: []int64{int64(d.Rope.Size / 2)}, Optional: true, GGUFOnly: true})
	}
	return out
}

// FinalNorm is the norm before the head.
func (d Dimensions) FinalNorm() Norm {
	return d.norm("model.norm")
}

// layer lists the tensors of one layer, with paths relative to the layer.
func (d Dimensions) layer(f Family, i int) slots {
	b := d.Block(i)
	var out slots
	for _, n := range []Norm{b.Before, b.After, b.BeforeFeed, b.AfterFeed} {
		out.norm(n, d.Hidden)
	}
	switch {
	case b.Recurrent != nil:
		out.recurrent(*b.Recurrent, d.Hidden)
	case b.Latent != nil:
		out.latent(d, *b.Latent, b.Attention.Prefix()+".")
	case b.Attention != nil:
		out.attention(d, f, *b.Attention)
	}
	switch {
	case b.Experts != nil && b.Experts.Clamped:
		out.clamped(*b.Experts, d.Hidden)
	case b.Experts != nil:
		out.experts(*b.Experts, d.Hidden)
	case b.Feed != nil:
		out.feed(*b.Feed, d.Hidden)
	}
	return out
}

func (s *slots) attention(d Dimensions, f Family, a Attention) {
	path := a.Prefix() + "."
	queries, keyValues := d.QueryHeads*d.HeadSize, d.KVHeads*d.HeadSize
	wide := queries
	if a.Gated { // a gate after each head
		wide *= 2
	}
	first := len(*s)
	s.linear(path+"q_proj", wide, d.Hidden, a.Bias)
	s.linear(path+"k_proj", keyValues, d.Hidden, a.Bias)
	if f.GGUF != nil && f.GGUF.Interleaved {
		(*s)[first].Heads, (*s)[first+1].Heads = d.QueryHeads, d.KVHeads
	}
	s.linear(path+"v_proj", keyValues, d.Hidden, a.Bias)
	s.linear(path+"o_proj", d.Hidden, queries, a.OutBias)
	switch a.HeadNorm {
	case EachHead:
		s.add(path+"q_norm.weight", int64(d.HeadSize))
		s.add(path+"k_norm.weight", int64(d.HeadSize))
	case AllHeads:
		s.add(path+"q_norm.weight", int64(queries))
		s.add(path+"k_norm.weight", int64(keyValues))
	}
	if a.Sinks {
		s.add(path+"sinks", int64(d.QueryHeads))
	}
}

// Prefix is the path of the attention's tensors, relative to the layer.
func (a Attention) Prefix() string {
	if a.Path == "" {
		return "self_attn"
	}
	return a.Path
}

// Prefix is the path of the feed-forward's tensors, relative to the layer.
func (f Feed) Prefix() string {
	if f.Path == "" {
		return "mlp"
	}
	return f.Path
}

func (s *slots) feed(f Feed, hidden int) {
	path := f.Prefix() + "."
	if !f.Plain {
		s.linear(path+"gate_proj", f.Width, hidden, f.Bias)
	}
	s.linear(path+"up_proj", f.Width, hidden, f.Bias)
	s.linear(path+"down_proj", hidden, f.Width, f.Bias)
	if f.Activation == XIELU {
		for _, name := range xieluNames() {
			*s = append(*s, Slot{Path: path + name, Shape: []int64{1}, AnyDims: true, Optional: name != "act_fn.alpha_p" && name != "act_fn.alpha_n"})
		}
	}
}

// experts lists the tensors of a mixture with mlx-lm's names: the experts of a
// layer are stacked into one tensor.
func (s *slots) experts(e Experts, hidden int) {
	if e.Shared > 0 {
		s.feed(Feed{Path: "mlp." + e.SharedName(), Width: e.Shared}, hidden)
		if !e.SharedWhole {
			s.add("mlp."+e.SharedName()+"_gate.weight", 1, int64(hidden))
		}
	}
	s.linear("mlp.gate", e.Count, hidden, false)
	if e.Router.Bias != "" {
		*s = append(*s, Slot{Path: "mlp." + e.Router.Bias, Shape: []int64{int64(e.Count)}, Optional: e.Router.MayLack, AnyDims: true})
	}
	n, inner, width := int64(e.Count), int64(e.FeedForward), int64(hidden)
	s.add("mlp.switch_mlp.gate_proj.weight", n, inner, width)
	s.add("mlp.switch_mlp.up_proj.weight", n, inner, width)
	s.add("mlp.switch_mlp.down_proj.weight", n, width, inner)
}

// clamped lists the router and the experts of GPT-OSS with mlx-lm's names.
func (s *slots) clamped(e Experts, hidden int) {
	n, inner, width := int64(e.Count), int64(e.FeedForward), int64(hidden)
	s.linear("mlp.router", e.Count, hidden, true)
	for _, m := range []struct {
		name          string
		rows, columns int64
	}{{"gate_proj", inner, width}, {"up_proj", inner, width}, {"down_proj", width, inner}} {
		s.add("mlp.experts."+m.name+".weight", n, m.rows, m.columns)
		s.add("mlp.experts."+m.name+".bias", n, m.rows)
	}
}

// recurrent lists the tensors of a gated delta net.
func (s *slots) recurrent(h Hybrid, hidden int) {
	const path = "linear_attn."
	heads := int64(h.ValueHeads)
	if h.Joined {
		s.linear(path+"in_proj_qkvz", 2*h.KeyWidth()+2*h.ValueWidth(), hidden, false)
		s.linear(path+"in_proj_ba", 2*h.ValueHeads, hidden, false)
	} else {
		s.linear(path+"in_proj_qkv", 2*h.KeyWidth()+h.ValueWidth(), hidden, false)
		s.linear(path+"in_proj_z", h.ValueWidth(), hidden, false)
		s.linear(path+"in_proj_b", h.ValueHeads, hidden, false)
		s.linear(path+"in_proj_a", h.ValueHeads, hidden, false)
	}
	s.add(path+"conv1d.weight", int64(h.Channels()), int64(h.Taps))
	s.add(path+"dt_bias", heads)
	s.add(path+"A_log", heads)
	s.add(path+"norm.weight", int64(h.ValueSize))
	s.linear(path+"out_proj", hidden, h.ValueWidth(), false)
}

// Slots lists every tensor of the family. have is the number of tensors in the
// file; it bounds the layers that a header can claim.
func (d Dimensions) Slots(have int) ([]Slot, error) {
	if d.Encoder != nil {
		return d.encoderSlots(have)
	}
	f := d.family()
	if d.Layers > have {
		return nil, Invalidf("%d layers need %d tensors at least, the model has %d", d.Layers, d.Layers, have)
	}
	out := []Slot(d.globals(f))
	for i := range out {
		out[i].inGGUF(f)
	}
	need := 0
	for i := range d.Layers {
		for _, s := range d.layer(f, i) {
			s.inGGUF(f)
			s.Path, s.GGUF = fmt.Sprintf("model.layers.%d.%s", i, s.Path), fmt.Sprintf("blk.%d.%s", i, s.GGUF)
			out = append(out, s)
			need++
		}
	}
	if need > have {
		return nil, Invalidf("%d layers need %d tensors, the model has %d", d.Layers, need, have)
	}
	return out, nil
}
