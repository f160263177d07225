package weights

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// namedBy returns the tensors under the names that naming returns for them, without those for which
// ok is false, and what it took of the memory for that.
func (c *collection) namedBy(naming func(name string, t *shardTensor) (now string, ok bool, err error)) (named map[string]shardTensor, taken int64, err error) {
	named = map[string]shardTensor{}
	for _, name := range sortedKeys(c.tensors) {
		t := c.tensors[name]
		now, ok, err := naming(name, &t)
		if err != nil {
			return nil, taken, err
		}
		if !ok {
			continue
		}
		bytes := int64(tensorMemory + keyMemory)
		if now == name {
			now = name // one copy
		} else {
			bytes += int64(len(now))
		}
		switch _, twice := named[now]; {
		case twice:
			return nil, taken, family.Invalidf("tensor %s exists under two names", family.Quoted(now))
		case len(now) > maxNameBytes:
			return nil, taken, family.Invalidf("tensor %s has a name of %d bytes in its family, want at most %d", family.Quoted(now), len(now), maxNameBytes)
		}
		if err := c.left.memory.take(bytes, t.span.offset); err != nil {
			return nil, taken, err
		}
		taken += bytes
		t.name = now // so that the one before is not kept
		named[now] = t
	}
	return named, taken, nil
}

// nameBy gives tensors the names that naming returns for them, in place of those that they have. Until
// all have theirs, both count.
func (c *collection) nameBy(naming func(name string, t *shardTensor) (now string, ok bool, err error)) error {
	grown := int64(0)
	named, taken, err := c.namedBy(func(name string, t *shardTensor) (string, bool, error) {
		now, ok, err := naming(name, t)
		if ok {
			grown += max(0, int64(len(now)-len(name)))
		}
		return now, ok, err
	})
	if err != nil {
		return err
	}
	c.left.memory.free(taken - grown)
	c.tensors = named
	return nil
}

// rename gives tensors, and the layers of the grouping, the names that the blocks
// of their family use.
func (c *collection) rename(pairs []string, groups *grouping) error {
	if len(pairs) == 0 {
		return nil
	}
	r := strings.NewReplacer(pairs...)
	if err := c.nameBy(func(name string, _ *shardTensor) (string, bool, error) { return r.Replace(name), true, nil }); err != nil {
		return err
	}
	var err error
	*groups, err = groups.namedBy(c.left.memory, func(name string) (string, bool) { return r.Replace(name), true })
	return err
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
	var err error // those of config.json stay
	if *groups, err = groups.namedBy(c.left.memory, func(name string) (string, bool) { return name, true }); err != nil {
		return err
	}
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
