package family

import (
	"cmp"
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
	if all := d.Layers * d.Inner; all > 0 {
		out.linear("model.embed_tokens_per_layer", cmp.Or(d.InnerVocabulary, d.Vocabulary), all, false)
		out.linear("model.per_layer_model_projection", all, d.Hidden, false)
		out.norm(rms("model.per_layer_projection_norm"), d.Inner)
	}
	if d.Streams != nil {
		for i := range d.Streams.Count - 1 {
			out.linear(fmt.Sprintf("model.altup_projections.%d", i), d.Hidden, d.Hidden, false)
			out.linear(fmt.Sprintf("model.altup_unembed_projections.%d", i), d.Hidden, d.Hidden, false)
		}
	}
	out.norm(d.FinalNorm(), d.Hidden)
	head := Slot{Path: "lm_head.weight", Shape: []int64{int64(d.Vocabulary), int64(d.Hidden)}, Optional: true}
	out = append(out, head)
	if d.HeadBias {
		out.add("lm_head.bias", int64(d.Vocabulary))
	}
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
func (d Dimensions) layer(f Family, i int) slots { return d.tensors(f, d.Block(i)) }

// tensors lists those of a block, with paths relative to it.
func (d Dimensions) tensors(f Family, b Block) slots {
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
	if b.Inner > 0 {
		out.linear("per_layer_input_gate", b.Inner, d.Hidden, false)
		out.linear("per_layer_projection", d.Hidden, b.Inner, false)
		out.norm(rms("post_per_layer_input_norm"), d.Hidden)
	}
	if b.Streams != nil {
		out.streams(*b.Streams, d.Hidden)
	}
	if b.Scaled {
		out = append(out, Slot{Path: "layer_scalar", Shape: []int64{1}, AnyDims: true})
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

// streams lists what predicts and corrects the residuals of a layer.
func (s *slots) streams(of Streams, hidden int) {
	n := of.Count
	s.add("altup.correct_output_scale", int64(hidden))
	s.linear("altup.correction_coefs", n, n, false)
	s.linear("altup.prediction_coefs", n*n, n, false)
	s.linear("altup.modality_router", n, hidden, false)
	s.norm(rms("altup.router_norm"), hidden)
	s.linear("laurel.linear_left", of.Rank, hidden, false)
	s.linear("laurel.linear_right", hidden, of.Rank, false)
	s.norm(rms("laurel.post_laurel_norm"), hidden)
}

func (s *slots) attention(d Dimensions, f Family, a Attention) {
	path := a.Prefix() + "."
	queries, keys := a.Heads*a.HeadSize, a.KVHeads*a.HeadSize
	wide := queries
	if a.Gated { // a gate after each head
		wide *= 2
	}
	first := len(*s)
	s.linear(path+"q_proj", wide, d.Hidden, a.Bias)
	if !a.Shared {
		s.linear(path+"k_proj", keys, d.Hidden, a.Bias)
	}
	if f.GGUF != nil && f.GGUF.Interleaved {
		(*s)[first].Heads, (*s)[first+1].Heads = a.Heads, a.KVHeads
	}
	if !a.Shared && !a.Same {
		s.linear(path+"v_proj", a.KVHeads*a.ValueSize, d.Hidden, a.Bias)
	}
	s.linear(path+"o_proj", d.Hidden, a.Heads*a.ValueSize, a.OutBias)
	switch a.HeadNorm {
	case EachHead:
		queries, keys = a.HeadSize, a.HeadSize
		fallthrough
	case AllHeads:
		s.add(path+"q_norm.weight", int64(queries))
		if !a.Shared {
			s.add(path+"k_norm.weight", int64(keys))
		}
	}
	if a.HeadGate != NoGate {
		s.linear(path+"g_proj", a.Heads, d.Hidden, false)
	}
	if a.Sinks {
		s.add(path+"sinks", int64(a.Heads))
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
	path := e.Prefix() + "."
	if e.Aside > 0 {
		s.feed(Feed{Width: e.Aside}, hidden)
		for _, name := range asideNorms() {
			s.norm(rms(name), hidden)
		}
		s.add(path+"router_scale", int64(hidden))
		s.add(path+"per_expert_scale", int64(e.Count))
	}
	if e.Shared > 0 {
		s.feed(Feed{Path: path + e.SharedName(), Width: e.Shared, Plain: e.Plain}, hidden)
		if !e.SharedWhole {
			s.add(path+e.SharedName()+"_gate.weight", 1, int64(hidden))
		}
	}
	s.linear(path+"gate", e.Count, hidden, false)
	if e.Router.Bias != "" {
		*s = append(*s, Slot{Path: path + e.Router.Bias, Shape: []int64{int64(e.Count)}, Optional: e.Router.MayLack, AnyDims: true})
	}
	n, inner, width := int64(e.Count), int64(e.FeedForward), int64(cmp.Or(e.Latent, hidden))
	if e.Latent > 0 {
		s.linear(path+"fc1_latent_proj", e.Latent, hidden, false)
		s.linear(path+"fc2_latent_proj", hidden, e.Latent, false)
	}
	if !e.Plain {
		s.add(path+"switch_mlp.gate_proj.weight", n, inner, width)
	}
	s.add(path+"switch_mlp.up_proj.weight", n, inner, width)
	s.add(path+"switch_mlp.down_proj.weight", n, width, inner)
}

// asideNorms are the norms around a mixture and the dense feed-forward next to it:
// before and after the one, before and after the other.
func asideNorms() [4]string {
	return [4]string{"pre_feedforward_layernorm", "post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"}
}

// AsideNorms are the paths of the norms of a mixture next to a dense feed-forward.
func (e Experts) AsideNorms() [4]string { return asideNorms() }

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

// recurrent lists the tensors of a recurrent layer.
func (s *slots) recurrent(h Hybrid, hidden int) {
	path, heads := h.Prefix()+".", int64(h.ValueHeads)
	switch h.Rule {
	case Mamba2:
		s.mamba2(h, path, hidden)
		return
	case ShortConvolution:
		s.linear(path+"in_proj", 3*hidden, hidden, h.Bias)
		s.linear(path+"out_proj", hidden, hidden, h.Bias)
		s.linear(path+"conv", hidden, h.Taps, h.Bias)
		return
	case KimiDelta:
		s.kimiDelta(h, path, hidden)
		return
	}
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

// mamba2 are the tensors of a state space.
func (s *slots) mamba2(h Hybrid, path string, hidden int) {
	s.linear(path+"in_proj", h.Channels()+h.ValueWidth()+h.ValueHeads, hidden, h.Bias)
	s.linear(path+"out_proj", hidden, h.ValueWidth(), h.Bias)
	s.linear(path+"conv1d", h.Channels(), h.Taps, h.ConvolutionBias)
	for _, name := range []string{"dt_bias", "A_log", "D"} {
		s.add(path+name, int64(h.ValueHeads))
	}
	s.add(path+"norm.weight", int64(h.ValueWidth()))
}

// kimiDelta are the tensors of Kimi's delta net.
func (s *slots) kimiDelta(h Hybrid, path string, hidden int) {
	for _, name := range []string{"q", "k", "v"} {
		s.linear(path+name+"_proj", h.KeyWidth(), hidden, false)
		s.linear(path+name+"_conv.conv", h.KeyWidth(), h.Taps, false)
	}
	for _, name := range []string{"f", "g"} {
		s.linear(path+name+"_a_proj", h.KeySize, hidden, false)
		s.linear(path+name+"_b_proj", h.KeyWidth(), h.KeySize, false)
	}
	s.linear(path+"b_proj", h.ValueHeads, hidden, false)
	s.linear(path+"o_proj", hidden, h.ValueWidth(), false)
	*s = append(*s, Slot{Path: path + "A_log", Shape: []int64{int64(h.ValueHeads)}, AnyDims: true}, Slot{Path: path + "dt_bias", Shape: []int64{int64(h.KeyWidth())}, AnyDims: true})
	s.add(path+"o_norm.weight", int64(h.ValueSize))
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
		layer := d.layer(f, i)
		if need += len(layer); need > have {
			return nil, Invalidf("%d of %d layers need %d tensors, the model has %d", i+1, d.Layers, need, have)
		}
		for _, s := range layer {
			s.inGGUF(f)
			s.Path, s.GGUF = fmt.Sprintf("model.layers.%d.%s", i, s.Path), fmt.Sprintf("blk.%d.%s", i, s.GGUF)
			out = append(out, s)
		}
	}
	return out, nil
}
