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
// name. Where they are turned rows and columns of each matrix are exchanged.
func (c *collection) fusedExperts(turned bool) error {
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
		if turned {
			if err := c.turnedExperts(layer, t, back); err != nil {
				return fmt.Errorf("tensor %s: %w", family.Quoted(name), err)
			}
			delete(c.tensors, name)
			delete(c.tensors, down)
			continue
		}
		if len(t.shape) != 3 || t.shape[0] < 1 || t.shape[1]%2 != 0 {
			return family.Invalidf("tensor %s has shape %v, want [experts, twice their width, columns]", family.Quoted(name), t.shape)
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

// turnedExperts cuts experts of which each matrix is stored with rows and columns
// exchanged: [experts, hidden, 2*inner] and [experts, inner, hidden].
func (c *collection) turnedExperts(layer string, both, back shardTensor) error {
	if len(both.shape) != 3 || len(back.shape) != 3 || both.shape[0] < 1 || both.shape[0] != back.shape[0] || both.shape[2]%2 != 0 {
		return family.Invalidf("shape %v, and %v of down_proj, want [experts, columns, twice their width] and [experts, width, columns]", both.shape, back.shape)
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
	for i := range both.shape[0] {
		expert := fmt.Sprintf("%s.experts.%d.", layer, i)
		c.tensors[expert+"gate_proj.weight"] = of(both, i, 0, inner)
		c.tensors[expert+"up_proj.weight"] = of(both, i, inner, inner)
		c.tensors[expert+"down_proj.weight"] = of(back, i, 0, back.shape[2])
	}
	return nil
}

// stateless are the entries that no activation is promoted by: a recurrent
// layer's own vectors count in float32 in any case.
func (e Entry) stateless() bool {
	own := func(end string) bool { return strings.HasSuffix(e.Path, end) }
	return len(e.Shape) == 1 && (strings.Contains(e.Path, ".linear_attn.") || slices.ContainsFunc([]string{".A_log", ".D", ".dt_bias"}, own))
}
