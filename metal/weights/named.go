package weights

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// rename gives tensors, and the layers of the grouping, the names that the blocks
// of their family use.
func (c *collection) rename(pairs []string, groups *grouping) error {
	if len(pairs) == 0 {
		return nil
	}
	r := strings.NewReplacer(pairs...)
	named := make(map[string]shardTensor, len(c.tensors))
	for _, name := range sortedKeys(c.tensors) {
		now := r.Replace(name)
		if _, twice := named[now]; twice {
			return family.Invalidf("tensor %s exists under two names", family.Quoted(now))
		}
		named[now] = c.tensors[name]
	}
	c.tensors = named
	layers := make(map[string]any, len(groups.layers))
	for name, v := range groups.layers {
		layers[r.Replace(name)] = v
	}
	groups.layers = layers
	return nil
}

// ignore leaves out what the family does not read.
func (c *collection) ignore(prefixes []string) {
	for name, t := range c.tensors {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			c.unread += t.span.bytes
			delete(c.tensors, name)
		}
	}
}

// derive enters a tensor that is a part of one in the files. It counts like one of
// them, so that numbers in a header make no more tensors than a header may hold.
func (c *collection) derive(name string, part shardTensor) error {
	if _, twice := c.tensors[name]; twice {
		return family.Invalidf("tensor %s exists alone and in %s", family.Quoted(name), family.Quoted(part.name))
	}
	if c.left.tensors--; c.left.tensors < 0 {
		return family.Invalidf("tensor %s is one of more than %d, with the parts of tensors", family.Quoted(name), maxShardTensors)
	}
	if err := c.left.memory.take(tensorMemory+keyMemory+int64(len(name)), part.span.offset); err != nil {
		return err
	}
	c.tensors[name] = part
	return nil
}

// split cuts matrices that hold several into these, with their scales, biases of
// quantisation and biases, all of which have the same rows.
func (c *collection) split(d family.Dimensions, groups *grouping) error {
	fused := d.Layout().Fused
	if len(fused) == 0 {
		return nil
	}
	groups.layers = maps.Clone(groups.layers) // those of config.json stay
	for _, f := range fused {
		for i := range d.Layers {
			at := fmt.Sprintf("model.layers.%d.", i)
			parts := f.Parts(d, i)
			for _, suffix := range []string{".weight", ".scales", ".biases", ".bias"} {
				if err := c.cut(at+f.Path+suffix, at, suffix, parts); err != nil {
					return err
				}
			}
			if v, named := groups.layers[at+f.Path]; named {
				for _, p := range parts {
					groups.layers[at+p.Path] = v
				}
			}
		}
	}
	return nil
}

// cut cuts the rows of one tensor, if it is there.
func (c *collection) cut(name, at, suffix string, parts []family.Part) error {
	t, ok := c.tensors[name]
	if !ok {
		return nil
	}
	rows := int64(0)
	for _, p := range parts {
		rows += int64(p.Rows)
	}
	if len(t.shape) == 0 || t.shape[0] != rows || rows == 0 {
		return family.Invalidf("tensor %s has shape %v, want %d rows", family.Quoted(name), t.shape, rows)
	}
	row, first := t.span.bytes/rows, int64(0)
	for _, p := range parts {
		part := t
		part.shape = append([]int64{int64(p.Rows)}, t.shape[1:]...)
		part.span.offset += first * row
		part.span.bytes = int64(p.Rows) * row
		first += int64(p.Rows)
		if err := c.derive(at+p.Path+suffix, part); err != nil {
			return err
		}
	}
	delete(c.tensors, name)
	return nil
}
