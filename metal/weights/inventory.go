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
	shape      func(Dimensions) []int64
	optional   bool
	// heads is the number of heads whose rows GGUF stores interleaved for its
	// rotary embedding; nil where rows lie in order.
	heads func(Dimensions) int
}

func hidden(d Dimensions) []int64 { return []int64{int64(d.Hidden)} }

func matrix(rows, cols func(Dimensions) int) func(Dimensions) []int64 {
	return func(d Dimensions) []int64 { return []int64{int64(rows(d)), int64(cols(d))} }
}

func width(d Dimensions) int     { return d.Hidden }
func inner(d Dimensions) int     { return d.FeedForward }
func vocab(d Dimensions) int     { return d.Vocabulary }
func queries(d Dimensions) int   { return d.QueryHeads * d.HeadSize }
func keyValues(d Dimensions) int { return d.KVHeads * d.HeadSize }

// llamaGlobal and llamaLayer list the tensors of the Llama family.
func llamaGlobal() []slot {
	return []slot{
		{path: "model.embed_tokens.weight", gguf: "token_embd.weight", shape: matrix(vocab, width)},
		{path: "model.norm.weight", gguf: "output_norm.weight", shape: hidden},
		{path: "lm_head.weight", gguf: "output.weight", shape: matrix(vocab, width), optional: true},
		{path: "model.rope_freqs.weight", gguf: "rope_freqs.weight", optional: true,
			shape: func(d Dimensions) []int64 { return []int64{int64(d.Rope.Size / 2)} }},
	}
}

func llamaLayer() []slot {
	return []slot{
		{path: "input_layernorm.weight", gguf: "attn_norm.weight", shape: hidden},
		{path: "self_attn.q_proj.weight", gguf: "attn_q.weight", shape: matrix(queries, width), heads: func(d Dimensions) int { return d.QueryHeads }},
		{path: "self_attn.k_proj.weight", gguf: "attn_k.weight", shape: matrix(keyValues, width), heads: func(d Dimensions) int { return d.KVHeads }},
		{path: "self_attn.v_proj.weight", gguf: "attn_v.weight", shape: matrix(keyValues, width)},
		{path: "self_attn.o_proj.weight", gguf: "attn_output.weight", shape: matrix(width, queries)},
		{path: "post_attention_layernorm.weight", gguf: "ffn_norm.weight", shape: hidden},
		{path: "mlp.gate_proj.weight", gguf: "ffn_gate.weight", shape: matrix(inner, width)},
		{path: "mlp.up_proj.weight", gguf: "ffn_up.weight", shape: matrix(inner, width)},
		{path: "mlp.down_proj.weight", gguf: "ffn_down.weight", shape: matrix(width, inner)},
	}
}

// Entry is a tensor under its canonical path.
type Entry struct {
	Tensor
	Path string
	// Format of the rows that File.Rows hands out.
	Format quant.Format
	// heads and half undo the interleaving: file row h*2*half + 2*j + t is
	// canonical row h*2*half + t*half + j.
	heads, half int
}

// Part says which part of a network a tensor belongs to.
func (e Entry) Part() string {
	switch {
	case strings.Contains(e.Path, ".self_attn."):
		return "attention"
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
	if need := d.Layers * len(llamaLayer()); need > len(h.Tensors) {
		return nil, invalidf("%d layers need %d tensors, the file has %d", d.Layers, need, len(h.Tensors))
	}
	entries := make(map[string]Entry, len(h.Tensors))
	for _, s := range llamaGlobal() {
		if err := h.enter(entries, s, s.path, s.gguf, d); err != nil {
			return nil, err
		}
	}
	for i := range d.Layers {
		for _, s := range llamaLayer() {
			path, name := fmt.Sprintf("model.layers.%d.%s", i, s.path), fmt.Sprintf("blk.%d.%s", i, s.gguf)
			if err := h.enter(entries, s, path, name, d); err != nil {
				return nil, err
			}
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
	slices.Sort(extra)
	return nil, fmt.Errorf("%w: %d tensors that architecture %q does not have: %s", ErrInvalid, len(extra), d.Architecture, strings.Join(extra[:min(len(extra), 4)], ", "))
}

func (h *Header) enter(entries map[string]Entry, s slot, path, name string, d Dimensions) error {
	t, ok := h.Tensor(name)
	if !ok {
		if s.optional {
			return nil
		}
		return fmt.Errorf("tensor %s: %w", name, ErrMissing)
	}
	if want := s.shape(d); !slices.Equal(want, t.Shape) {
		return invalidf("tensor %s has shape %v, want %v", name, t.Shape, want)
	}
	if len(t.Shape) == 1 && t.Type.Quantized() {
		return invalidf("tensor %s is a vector of type %v, want a float type", name, t.Type)
	}
	format, err := t.Type.Format()
	if err != nil {
		return fmt.Errorf("tensor %s: %w", name, err)
	}
	e := Entry{Tensor: t, Path: path, Format: format}
	if s.heads != nil {
		e.heads, e.half = s.heads(d), d.HeadSize/2
	}
	entries[path] = e
	return nil
}
