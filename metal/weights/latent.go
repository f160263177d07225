package weights

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// latent cuts the matrix that makes keys and values of a latent vector into the
// matrices of single heads, which mlx-lm stores apart. Those of keys multiply
// queries from the other side.
func (c *collection) latent(d family.Dimensions, groups grouping) error {
	if d.Latent == nil {
		return nil
	}
	plain, value, rank := int64(d.Latent.Plain), int64(d.Latent.Value), int64(d.Latent.Rank)
	for i := range d.Layers {
		at := fmt.Sprintf("model.layers.%d.self_attn.", i)
		name := at + "kv_b_proj.weight"
		t, ok := c.tensors[name]
		if !ok {
			continue
		}
		if _, quantised := c.tensors[at+"kv_b_proj.scales"]; quantised {
			if err := c.quantisedLatent(d, at, groups); err != nil {
				return err
			}
			continue
		}
		if len(t.shape) != 2 || t.shape[0] != int64(d.QueryHeads)*(plain+value) || t.shape[1] != rank {
			return family.Invalidf("tensor %s has shape %v, want [%d, %d]", family.Quoted(name), t.shape, int64(d.QueryHeads)*(plain+value), rank)
		}
		row := t.span.bytes / t.shape[0]
		for h := range d.QueryHeads {
			part := func(first, rows int64, turned bool) shardTensor {
				p := t
				p.shape, p.turned = []int64{rows, rank}, turned
				p.span = p.span.rows(int64(h)*(plain+value)+first, rows, row)
				return p
			}
			if err := c.derive(fmt.Sprintf("%sembed_q.%d.weight", at, h), part(0, plain, true)); err != nil {
				return err
			}
			if err := c.derive(fmt.Sprintf("%sunembed_out.%d.weight", at, h), part(plain, value, false)); err != nil {
				return err
			}
		}
		delete(c.tensors, name)
	}
	return nil
}

// quantisedLatent does the same with a quantised matrix, whose rows are along the latent
// vector. Columns of keys become rows, so that their groups cannot stay. Where mlx-lm
// 0.32.2 quantises both matrices again (the sanitize of deepseek_v3, deepseek_v32,
// glm4_moe_lite, kimi_linear and mistral4), loading does too; where it multiplies by
// kv_b_proj itself (deepseek_v2), keys are kept as numbers and values as they are.
func (c *collection) quantisedLatent(d family.Dimensions, at string, groups grouping) error {
	heads, plain, value, rank := int64(d.QueryHeads), int64(d.Latent.Plain), int64(d.Latent.Value), int64(d.Latent.Rank)
	path := at + "kv_b_proj"
	whole, err := c.entry(family.Slot{Path: path + ".weight", Shape: []int64{heads * (plain + value), rank}}, groups)
	if err != nil {
		return err
	}
	made, kept := whole.Format, d.Layout().KeepsExpansion
	switch {
	case kept:
		made = quant.DenseOf(whole.Format.Type)
	case made.BlockFloat():
		return fmt.Errorf("%s: %w", path, family.Unsupported("quantisation of a kv_b_proj", made.String(), affineNames()))
	case plain%int64(made.Group) != 0:
		return fmt.Errorf("%s: %w", path, family.Unsupported("group size of a kv_b_proj", fmt.Sprint(made.Group), []string{fmt.Sprintf("divisors of qk_nope_head_dim, %d", plain)}))
	}
	keys, values := whole, whole
	keys.Path, keys.Shape, keys.turned, keys.made = at+"embed_q.weight", []int64{heads, plain, rank}, true, &made
	values.Path, values.Shape = at+"unembed_out.weight", []int64{heads, value, rank}
	if !kept {
		values.made = &made
	}
	for _, part := range []struct {
		of    *Entry
		first int64
	}{{&keys, 0}, {&values, plain}} {
		if err := c.heads(part.of, part.first, plain+value); err != nil {
			return err
		}
	}
	delete(c.tensors, path+".weight")
	delete(c.tensors, path+".scales")
	if !whole.Format.BlockFloat() {
		delete(c.tensors, path+".biases")
	}
	return nil
}

// heads keeps of an entry, which holds the rows of all heads, each of them of every rows, the
// rows from first on that its shape counts. They count like tensors, as those of derive.
func (c *collection) heads(e *Entry, first, every int64) error {
	heads, rows := e.Shape[0], e.Shape[1]
	if _, twice := c.tensors[e.Path]; twice {
		return family.Invalidf("tensor %s exists alone and in %s", family.Quoted(e.Path), family.Quoted(e.Name))
	}
	if c.left.tensors -= int(heads); c.left.tensors < 0 {
		return family.Invalidf("tensor %s has more than %d matrices, with the parts of tensors", family.Quoted(e.Path), maxShardTensors)
	}
	if err := c.left.memory.take(heads*tensorMemory, e.weight.offset); err != nil {
		return err
	}
	cut := func(s span) []span {
		if s.bytes == 0 {
			return nil
		}
		out, row := make([]span, heads), s.bytes/(heads*every)
		for h := range heads {
			out[h] = s.rows(h*every+first, rows, row)
		}
		return out
	}
	e.stack, e.scaleStack, e.biasStack = cut(e.weight), cut(e.scales), cut(e.biases)
	e.weight = e.stack[0]
	e.Bytes = e.Bytes / every * rows
	if c.latents == nil {
		c.latents = map[string]Entry{}
	}
	c.latents[e.Path] = *e
	return nil
}
