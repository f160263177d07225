package weights

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// kernels gives the taps of all convolutions the shape [channels, taps], and
// reports whether they lay as mlx-lm stores them ([channels, taps, 1]; Hugging
// Face stores [channels, 1, taps], whose bytes are the same). Where they do not,
// some families store norms less one (models/qwen3_5.py, sanitize).
func (c *collection) kernels(ends []string) (asMLX bool, err error) {
	seen := map[bool]string{}
	for _, name := range sortedKeys(c.tensors) {
		t := c.tensors[name]
		is := func(end string) bool { return strings.HasSuffix(name, end) }
		if !slices.ContainsFunc(ends, is) || len(t.shape) != 3 {
			continue
		}
		mlx := t.shape[2] == 1
		if mlx == (t.shape[1] == 1) {
			return false, family.Invalidf("tensor %s has shape %v, want [channels, 1, taps] or [channels, taps, 1]", family.Quoted(name), t.shape)
		}
		seen[mlx] = name
		t.shape = []int64{t.shape[0], t.shape[1] * t.shape[2]}
		c.tensors[name] = t
	}
	if len(seen) > 1 {
		return false, family.Invalidf("tensor %s has the layout of Hugging Face, but %s has that of mlx-lm", family.Quoted(seen[false]), family.Quoted(seen[true]))
	}
	return seen[true] != "", nil
}

// fusedExperts cuts what transformers 5 stores as one tensor of all experts
// into the stacks of mlx-lm: gates and what they gate, [experts, 2*inner, hidden],
// expert after expert, and what comes back, which is as it should be but for its
// name. Where they are turned rows and columns of each matrix are exchanged. Those
// of draft layers, which are not read, stay whole.
func (c *collection) fusedExperts(d family.Dimensions) error {
	experts, layout := int64(d.Experts.Count), d.Layout()
	if experts == 0 {
		return nil
	}
	for _, name := range sortedKeys(c.tensors) {
		layer, found := strings.CutSuffix(name, ".experts.gate_up_proj")
		if !found || layout.Drafts && pastLast(name, d.Layers) {
			continue
		}
		t, down := c.tensors[name], layer+".experts.down_proj"
		back, ok := c.tensors[down]
		if !ok {
			return fmt.Errorf("tensor %s: %w", down, ErrMissing)
		}
		cut := c.experts
		if layout.TurnedExperts {
			cut = c.turnedExperts
		}
		if err := cut(layer, experts, t, back); err != nil {
			return fmt.Errorf("tensor %s: %w", family.Quoted(name), err)
		}
		delete(c.tensors, name)
		delete(c.tensors, down)
	}
	return nil
}

// experts cuts the gates of experts and what they gate: [experts, 2*inner, hidden].
func (c *collection) experts(layer string, experts int64, both, back shardTensor) error {
	if len(both.shape) != 3 || both.shape[0] != experts || both.shape[1]%2 != 0 || both.span.bytes == 0 {
		return family.Invalidf("shape %v, want [%d experts, twice their width, columns]", both.shape, experts)
	}
	half := both.span.bytes / experts / 2
	for i := range experts {
		for side, matrix := range []string{"gate_proj", "up_proj"} {
			part := both
			part.shape = []int64{both.shape[1] / 2, both.shape[2]}
			part.span.offset += (2*i + int64(side)) * half
			part.span.bytes = half
			if err := c.derive(fmt.Sprintf("%s.experts.%d.%s.weight", layer, i, matrix), part); err != nil {
				return err
			}
		}
	}
	return c.derive(layer+".switch_mlp.down_proj.weight", back)
}

// turnedExperts cuts experts of which each matrix is stored with rows and columns
// exchanged: [experts, hidden, 2*inner] and [experts, inner, hidden].
func (c *collection) turnedExperts(layer string, experts int64, both, back shardTensor) error {
	if len(both.shape) != 3 || len(back.shape) != 3 || both.shape[0] != experts || back.shape[0] != experts || both.shape[2]%2 != 0 || both.span.bytes == 0 || back.span.bytes == 0 {
		return family.Invalidf("shape %v, and %v of down_proj, want [%d experts, columns, twice their width] and [%d experts, width, columns]", both.shape, back.shape, experts, experts)
	}
	of := func(t shardTensor, i, first, columns int64) shardTensor {
		size := t.span.bytes / t.shape[0]
		part := t
		part.shape, part.turned, part.first = []int64{t.shape[1], columns}, true, first
		if columns < t.shape[2] {
			part.wide = t.shape[2]
		}
		part.span.offset += i * size
		part.span.bytes = size
		return part
	}
	inner := both.shape[2] / 2
	for i := range experts {
		parts := [3]shardTensor{of(both, i, 0, inner), of(both, i, inner, inner), of(back, i, 0, back.shape[2])}
		for at, matrix := range [3]string{"gate_proj", "up_proj", "down_proj"} {
			if err := c.derive(fmt.Sprintf("%s.experts.%d.%s.weight", layer, i, matrix), parts[at]); err != nil {
				return err
			}
		}
	}
	return nil
}

// stateless are the entries that no activation is promoted by: a recurrent
// layer's own vectors count in float32 in any case.
func (e Entry) stateless() bool {
	own := func(end string) bool { return strings.HasSuffix(e.Path, end) }
	return len(e.Shape) == 1 && (strings.Contains(e.Path, ".linear_attn.") || slices.ContainsFunc([]string{".A_log", ".D", ".dt_bias"}, own))
}
