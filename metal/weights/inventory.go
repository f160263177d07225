package weights

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// Entry is a tensor under its canonical path.
type Entry struct {
	// Path is the name in the original layout ("model.norm.weight"), Name the
	// one in the file.
	Path, Name string
	// Shape lists the dimensions, the outermost first; rows are along the last
	// one. For a quantized matrix it is the shape of its elements, not of its
	// words.
	Shape []int64
	// Format of the rows that File.Rows hands out.
	Format quant.Format
	// Bytes on disk, including scales and biases. Held is the size in memory.
	Bytes int64

	// weight holds the rows; scales and biases are those of affine formats in
	// folders.
	weight, scales, biases span
	// stack are the parts of weight that lie apart, one for each expert or head; empty
	// where it is one. scaleStack and biasStack are those of scales and biases.
	stack, scaleStack, biasStack []span
	// turned entries hold each matrix of the stack with rows and columns exchanged.
	turned bool
	// first and taken select columns of a turned entry: taken from first on; 0 means all.
	first, taken int
	// made is the format in which the matrix is kept; nil where it is Format.
	made *quant.Format
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

// Turned reports whether the rows of each matrix of a stack are its columns.
func (e Entry) Turned() bool { return e.turned }

// Made returns the format in which the matrix is kept, and whether it is another than
// that of the rows in the file: these are then dequantised as MLX does, in the type of
// their scales, turned if Turned, and quantised again if Made is.
func (e Entry) Made() (quant.Format, bool) {
	if e.made == nil {
		return e.Format, false
	}
	return *e.made, true
}

// Taken returns the columns that a turned entry selects: the first one, and their number.
func (e Entry) Taken() (first, columns int) {
	if e.taken == 0 {
		return 0, e.Columns()
	}
	return e.first, e.taken
}

// Stored names the type on disk ("Q4_1", "bfloat16", "affine 4-bit group 64
// float16").
func (e Entry) Stored() string { return e.stored }

// Rows is the number of rows that File.Rows returns; a vector is one row.
func (e Entry) Rows() int {
	rows := int64(1)
	for _, n := range e.Shape[:len(e.Shape)-1] {
		rows *= n
	}
	return int(rows)
}

// Held is the bytes of the matrix as it is kept.
func (e Entry) Held() int64 {
	f, _ := e.Made()
	return e.heldAs(f)
}

// heldAs is the bytes of the matrix in a format, also where rows become columns.
func (e Entry) heldAs(f quant.Format) int64 {
	_, columns := e.Taken()
	sizes, err := f.Sizes(columns)
	if err != nil {
		return e.Bytes
	}
	return int64(e.Rows()) * int64(sizes.Sum())
}

// Columns is the number of elements of a row.
func (e Entry) Columns() int { return int(e.Shape[len(e.Shape)-1]) }

// Part is the part of a network to which a tensor belongs.
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
func (h *Header) inventory(d family.Dimensions) (map[string]Entry, error) {
	slots, err := d.Slots(len(h.Tensors))
	if err != nil {
		return nil, err
	}
	entries, drifts := make(map[string]Entry, len(h.Tensors)), map[Type]*drift{Q2_K: {}, Q6_K: {}}
	for _, s := range slots {
		if err := h.enter(entries, s, d); err != nil {
			return nil, err
		}
		if e, ok := entries[s.Path]; ok && !e.block.Exact() {
			e.drift = drifts[e.block]
			entries[s.Path] = e
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
		if !known[t.Name] && !t.encodes() {
			extra = append(extra, t.Name)
		}
	}
	if len(extra) > 0 {
		return nil, unknownTensors(extra, d)
	}
	return entries, nil
}

// encodes reports whether a tensor belongs to an encoder of images or sounds, by the
// prefixes that llama.cpp and Ollama give these (clip-impl.h; convert_gemma3.go). The text
// part of such a file runs without them.
func (t Tensor) encodes() bool {
	return slices.ContainsFunc([]string{"v.", "mm.", "a."}, func(prefix string) bool { return strings.HasPrefix(t.Name, prefix) })
}

// unread is the bytes of encoders.
func (h *Header) unread() (n int64) {
	for _, t := range h.Tensors {
		if t.encodes() {
			n += t.Bytes
		}
	}
	return n
}

// unknownTensors is the error for tensors that a family does not have.
func unknownTensors(extra []string, d family.Dimensions) error {
	slices.Sort(extra)
	shown := make([]string, min(len(extra), 4))
	for i := range shown {
		shown[i] = family.Quoted(extra[i])
	}
	return fmt.Errorf("%w: %d tensors that architecture %q does not have: %s", ErrInvalid, len(extra), d.Architecture, strings.Join(shown, ", "))
}

func (h *Header) enter(entries map[string]Entry, s family.Slot, d family.Dimensions) error {
	t, ok := h.Tensor(s.GGUF)
	if !ok {
		if s.Optional {
			return nil
		}
		return fmt.Errorf("tensor %s: %w", s.GGUF, ErrMissing)
	}
	if want := s.Shape; !slices.Equal(want, t.Shape) {
		return family.Invalidf("tensor %s has shape %v, want %v", s.GGUF, t.Shape, want)
	}
	if len(t.Shape) == 1 && t.Type.Quantized() {
		return family.Invalidf("tensor %s is a vector of type %v, want a float type", s.GGUF, t.Type)
	}
	format, err := t.Type.Format()
	if err != nil {
		return fmt.Errorf("tensor %s: %w", s.GGUF, err)
	}
	entries[s.Path] = Entry{
		Path: s.Path, Name: t.Name, Shape: t.Shape, Format: format, Bytes: t.Bytes,
		weight: span{offset: t.Offset, bytes: t.Bytes}, block: t.Type, stored: t.Type.String(),
		heads: s.Heads, half: d.HeadSize / 2,
	}
	return nil
}
