package weights

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
)

// slot ties the canonical path of a tensor, which is its name in the original
// Hugging Face layout, to its name in GGUF, and says how it must look.
type slot struct {
	path, gguf string
	shape      []int64
	optional   bool
	// heads is the number of heads whose rows GGUF stores interleaved for its
	// rotary embedding; 0 where rows lie in order.
	heads int
	// ggufOnly tensors do not exist in folders.
	ggufOnly bool
}

// globals are the tensors outside the layers.
func (d Dimensions) globals() []slot {
	table := []int64{int64(d.Vocabulary), int64(d.Hidden)}
	out := []slot{
		{path: "model.embed_tokens.weight", gguf: "token_embd.weight", shape: table},
		{path: "model.norm.weight", gguf: "output_norm.weight", shape: []int64{int64(d.Hidden)}},
		{path: "lm_head.weight", gguf: "output.weight", shape: table, optional: true},
	}
	if d.LocalRope == nil { // whose layers all turn heads alike
		out = append(out, slot{path: "model.rope_freqs.weight", gguf: "rope_freqs.weight", shape: []int64{int64(d.Rope.Size / 2)}, optional: true, ggufOnly: true})
	}
	return out
}

// layer are the tensors of one layer; paths and names lack their prefix.
func (d Dimensions) layer(i int) []slot {
	hidden := int64(d.Hidden)
	queries, keyValues := int64(d.QueryHeads*d.HeadSize), int64(d.KVHeads*d.HeadSize)
	q := slot{path: "self_attn.q_proj.weight", gguf: "attn_q.weight", shape: []int64{queries, hidden}}
	if isHybrid(d.Architecture) { // a gate lies beside each head
		q.shape[0] *= 2
	}
	k := slot{path: "self_attn.k_proj.weight", gguf: "attn_k.weight", shape: []int64{keyValues, hidden}}
	if d.Architecture == familyLlama {
		q.heads, k.heads = d.QueryHeads, d.KVHeads
	}
	after := slot{path: "post_attention_layernorm.weight", gguf: "ffn_norm.weight", shape: []int64{hidden}}
	if d.Architecture == familyGPTOSS {
		after.gguf = "post_attention_norm.weight"
	}
	out := []slot{
		{path: "input_layernorm.weight", gguf: "attn_norm.weight", shape: []int64{hidden}},
		q, k,
		{path: "self_attn.v_proj.weight", gguf: "attn_v.weight", shape: []int64{keyValues, hidden}},
		{path: "self_attn.o_proj.weight", gguf: "attn_output.weight", shape: []int64{hidden, queries}},
		after,
	}
	if d.Hybrid.Recurs(i) {
		out = slices.DeleteFunc(out, func(s slot) bool { return strings.HasPrefix(s.path, "self_attn.") })
		return append(append(out, d.recurrent()...), d.feedForward(i)...)
	}
	out = append(out, d.feedForward(i)...)
	if d.Architecture == familyGemma3 {
		out = slices.DeleteFunc(out, func(s slot) bool { return s.path == "post_attention_layernorm.weight" })
		out = append(out,
			slot{path: "post_attention_layernorm.weight", gguf: "post_attention_norm.weight", shape: []int64{hidden}},
			slot{path: "pre_feedforward_layernorm.weight", gguf: "ffn_norm.weight", shape: []int64{hidden}},
			slot{path: "post_feedforward_layernorm.weight", gguf: "post_ffw_norm.weight", shape: []int64{hidden}})
	}
	if d.Architecture == familyGPTOSS {
		out = append(out, d.gptossLayer()...)
	}
	if d.Architecture == familyQwen2 {
		out = append(out,
			slot{path: "self_attn.q_proj.bias", gguf: "attn_q.bias", shape: []int64{queries}},
			slot{path: "self_attn.k_proj.bias", gguf: "attn_k.bias", shape: []int64{keyValues}},
			slot{path: "self_attn.v_proj.bias", gguf: "attn_v.bias", shape: []int64{keyValues}})
	}
	if slices.Contains([]string{familyGemma3, familyQwen3, familyQwen3MoE, familyQwen3Next, familyQwen35}, d.Architecture) {
		head := []int64{int64(d.HeadSize)}
		out = append(out,
			slot{path: "self_attn.q_norm.weight", gguf: "attn_q_norm.weight", shape: head},
			slot{path: "self_attn.k_norm.weight", gguf: "attn_k_norm.weight", shape: head})
	}
	return out
}

// feedForward are the tensors of a dense feed-forward, or of a mixture in the
// names of mlx-lm: the experts of a layer stacked into one tensor.
func (d Dimensions) feedForward(i int) []slot {
	hidden := int64(d.Hidden)
	if d.Architecture == familyGPTOSS {
		return d.gptossExperts()
	}
	if !d.Experts.In(i) {
		inner := int64(d.FeedForward)
		return []slot{
			{path: "mlp.gate_proj.weight", gguf: "ffn_gate.weight", shape: []int64{inner, hidden}},
			{path: "mlp.up_proj.weight", gguf: "ffn_up.weight", shape: []int64{inner, hidden}},
			{path: "mlp.down_proj.weight", gguf: "ffn_down.weight", shape: []int64{hidden, inner}},
		}
	}
	n, inner := int64(d.Experts.Count), int64(d.Experts.FeedForward)
	var out []slot
	if shared := int64(d.Experts.Shared); shared > 0 {
		out = []slot{
			{path: "mlp.shared_expert.gate_proj.weight", shape: []int64{shared, hidden}},
			{path: "mlp.shared_expert.up_proj.weight", shape: []int64{shared, hidden}},
			{path: "mlp.shared_expert.down_proj.weight", shape: []int64{hidden, shared}},
			{path: "mlp.shared_expert_gate.weight", shape: []int64{1, hidden}},
		}
	}
	return append(out, []slot{
		{path: "mlp.gate.weight", gguf: "ffn_gate_inp.weight", shape: []int64{n, hidden}},
		{path: "mlp.switch_mlp.gate_proj.weight", gguf: "ffn_gate_exps.weight", shape: []int64{n, inner, hidden}},
		{path: "mlp.switch_mlp.up_proj.weight", gguf: "ffn_up_exps.weight", shape: []int64{n, inner, hidden}},
		{path: "mlp.switch_mlp.down_proj.weight", gguf: "ffn_down_exps.weight", shape: []int64{n, hidden, inner}},
	}...)
}

// slots lists every tensor of the family; have is how many there are to fill
// them, so that a header cannot ask for more layers than it brings.
func (d Dimensions) slots(have int) ([]slot, error) {
	if d.Encoder != nil {
		return d.encoderSlots(have)
	}
	need := 0
	for i := range d.Layers {
		need += len(d.layer(i))
	}
	if need > have {
		return nil, invalidf("%d layers need %d tensors, the model has %d", d.Layers, need, have)
	}
	out := d.globals()
	for i := range d.Layers {
		for _, s := range d.layer(i) {
			s.path, s.gguf = fmt.Sprintf("model.layers.%d.%s", i, s.path), fmt.Sprintf("blk.%d.%s", i, s.gguf)
			out = append(out, s)
		}
	}
	return out, nil
}

// Entry is a tensor under its canonical path.
type Entry struct {
	// Path is the name in the original layout ("model.norm.weight"), Name the
	// one in the file.
	Path, Name string
	// Shape has the outermost dimension first; rows are the last one. Of a
	// quantised matrix it is the shape of what it means, not of its words.
	Shape []int64
	// Format of the rows that File.Rows hands out.
	Format quant.Format
	// Bytes on disk, scales and biases included. Held says what they become.
	Bytes int64

	// weight holds the rows; scales and biases are those of affine formats in
	// folders.
	weight, scales, biases span
	// stack are the parts of weight that lie apart, one for each expert; empty
	// where it is one.
	stack []span
	// block is the GGUF type of rows that are split on reading.
	block Type
	// drift is where conversions of this type are measured; nil where the rows
	// mean what the file says.
	drift *drift
	// stored is the name of the type on disk.
	stored string
	// heads and half undo the interleaving: file row h*2*half + 2*j + t is
	// canonical row h*2*half + t*half + j.
	heads, half int
}

// Stored names the type on disk ("Q4_1", "bfloat16", "affine 4-bit group 64
// float16").
func (e Entry) Stored() string { return e.stored }

// Rows is how many rows File.Rows hands out; a vector is one row.
func (e Entry) Rows() int {
	rows := int64(1)
	for _, n := range e.Shape[:len(e.Shape)-1] {
		rows *= n
	}
	return int(rows)
}

// Held is the bytes of all rows that File.Rows hands out.
func (e Entry) Held() int64 {
	sizes, err := e.Format.Sizes(e.Columns())
	if err != nil {
		return e.Bytes
	}
	return int64(e.Rows()) * int64(sizes.Sum())
}

// Columns is the number of elements of a row.
func (e Entry) Columns() int { return int(e.Shape[len(e.Shape)-1]) }

// Part says which part of a network a tensor belongs to.
func (e Entry) Part() string {
	if part := encoderPart(e.Path); part != "" {
		return part
	}
	switch {
	case strings.Contains(e.Path, ".self_attn."):
		return "attention"
	case strings.Contains(e.Path, ".linear_attn."):
		return "recurrent"
	case strings.Contains(e.Path, ".mlp."):
		return "feed-forward"
	case strings.Contains(e.Path, "norm"):
		return "norms"
	case e.Path == "lm_head.weight":
		return "head"
	case e.Path == "model.embed_tokens.weight":
		return "embedding"
	}
	return "other"
}

// canonicalRow is the row that file row r holds.
func (e Entry) canonicalRow(r int) int {
	if e.heads == 0 {
		return r
	}
	size := 2 * e.half
	h, j := r/size, r%size
	return h*size + j%2*e.half + j/2
}

// inventory finds every tensor of the family, checks shapes, and refuses
// tensors that the family would ignore.
func (h *Header) inventory(d Dimensions) (map[string]Entry, error) {
	slots, err := d.slots(len(h.Tensors))
	if err != nil {
		return nil, err
	}
	entries, drifts := make(map[string]Entry, len(h.Tensors)), map[Type]*drift{Q2_K: {}, Q6_K: {}}
	for _, s := range slots {
		if err := h.enter(entries, s, d); err != nil {
			return nil, err
		}
		if e, ok := entries[s.path]; ok && !e.block.Exact() {
			e.drift = drifts[e.block]
			entries[s.path] = e
		}
	}
	if len(entries) == len(h.Tensors) {
		return entries, nil
	}
	known := make(map[string]bool, len(entries))
	for _, e := range entries {
		known[e.Name] = true
	}
	var extra []string
	for _, t := range h.Tensors {
		if !known[t.Name] {
			extra = append(extra, t.Name)
		}
	}
	return nil, unknownTensors(extra, d)
}

// unknownTensors says that a family has no place for some tensors.
func unknownTensors(extra []string, d Dimensions) error {
	slices.Sort(extra)
	shown := make([]string, min(len(extra), 4))
	for i := range shown {
		shown[i] = quoted(extra[i])
	}
	return fmt.Errorf("%w: %d tensors that architecture %q does not have: %s", ErrInvalid, len(extra), d.Architecture, strings.Join(shown, ", "))
}

func (h *Header) enter(entries map[string]Entry, s slot, d Dimensions) error {
	t, ok := h.Tensor(s.gguf)
	if !ok {
		if s.optional {
			return nil
		}
		return fmt.Errorf("tensor %s: %w", s.gguf, ErrMissing)
	}
	if want := s.shape; !slices.Equal(want, t.Shape) {
		return invalidf("tensor %s has shape %v, want %v", s.gguf, t.Shape, want)
	}
	if len(t.Shape) == 1 && t.Type.Quantized() {
		return invalidf("tensor %s is a vector of type %v, want a float type", s.gguf, t.Type)
	}
	format, err := t.Type.Format()
	if err != nil {
		return fmt.Errorf("tensor %s: %w", s.gguf, err)
	}
	entries[s.path] = Entry{
		Path: s.path, Name: t.Name, Shape: t.Shape, Format: format, Bytes: t.Bytes,
		weight: span{offset: t.Offset, bytes: t.Bytes}, block: t.Type, stored: t.Type.String(),
		heads: s.heads, half: d.HeadSize / 2,
	}
	return nil
}
