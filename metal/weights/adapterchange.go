package weights

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// What changes of an adapter and factors of single experts take of the memory for headers,
// about.
const (
	changeMemory = 512
	factorMemory = 192
)

// changeReader makes changes of the layers of a model from modules of an adapter.
type changeReader struct {
	config *AdapterConfig
	of     *File
	layout family.Layout
	memory *account
	// renames are those of names of modules to names of the model's layers.
	renames *strings.Replacer
	out     []Change
	// single are the changes of single experts, by layer and number.
	single map[string]map[int]Change
}

func newChangeReader(config *AdapterConfig, of *File, memory *account) *changeReader {
	layout := of.Dim.Layout()
	return &changeReader{
		config: config, of: of, layout: layout, memory: memory,
		renames: strings.NewReplacer(layout.Rename...), single: map[string]map[int]Change{},
	}
}

// read returns the changes of modules, by their names.
func (r *changeReader) read(ctx context.Context, modules map[string]*[2]shardTensor) ([]Change, error) {
	for _, name := range sortedKeys(modules) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := r.config.covers(name, r.of.Dim.Layers); err != nil {
			return nil, err
		}
		if err := r.add(name, modules[name]); err != nil {
			return nil, fmt.Errorf("layer %s: %w", family.Quoted(name), err)
		}
	}
	if err := r.stack(ctx); err != nil {
		return nil, err
	}
	return r.out, nil
}

// add enters the change of one module, or those of the parts that the model divides it
// into.
func (r *changeReader) add(module string, pair *[2]shardTensor) error {
	c := Change{}
	turned := false
	switch x, y := pair[0].shape, pair[1].shape; {
	case len(x) == 3 && len(y) == 3 && !r.config.peft && x[0] > 0 && x[0] == y[0] && x[1] == y[2]:
		c.Experts, c.Rank, c.In, c.Out = int(x[0]), int(x[1]), int(x[2]), int(y[1])
	case len(x) == 2 && len(y) == 2 && r.config.peft && x[0] == y[1]:
		c.Rank, c.In, c.Out = int(x[0]), int(x[1]), int(y[0])
	case len(x) == 2 && len(y) == 2 && !r.config.peft && x[1] == y[0]:
		turned, c.Rank, c.In, c.Out = true, int(x[1]), int(x[0]), int(y[1])
	default:
		return family.Invalidf("its factors have shapes %v and %v", x, y)
	}
	if c.Rank < 1 || c.Rank > maxRank || c.In < 1 || c.Out < 1 {
		return family.Invalidf("its factors have shapes %v and %v, want a rank of 1 to %d", pair[0].shape, pair[1].shape, maxRank)
	}
	for _, t := range pair {
		if _, err := t.kind.float(); err != nil {
			return err
		}
	}
	c.a, c.b = factor{tensor: pair[0], turned: turned, rows: c.Rank}, factor{tensor: pair[1], turned: turned, rows: c.Out}
	parts := r.partsOf(layerOf(r.renames.Replace(plainName(module)+".weight")), c)
	for _, part := range parts { // patterns are matched only with layers of the model
		if err := part.fits(r.of); err != nil {
			return err
		}
	}
	scale, err := r.config.scaleOf(module, int64(c.Rank))
	if err != nil {
		return err
	}
	if err := r.memory.take(changeMemory*int64(len(parts)), 0); err != nil {
		return err
	}
	for _, part := range parts {
		part.Scale = scale
		layer, expert, ok := part.expert()
		if !ok {
			r.out = append(r.out, part)
			continue
		}
		if r.single[layer] == nil {
			r.single[layer] = map[int]Change{}
		}
		if _, twice := r.single[layer][expert]; twice {
			return family.Invalidf("expert %d of layer %s has factors under two names", expert, family.Quoted(layer))
		}
		r.single[layer][expert] = part
	}
	return nil
}

// partsOf are the changes of a layer, under the names of the model's own layers.
func (r *changeReader) partsOf(layer string, c Change) []Change {
	c.Layer = layer
	const layers = "model.layers."
	rest, _ := strings.CutPrefix(layer, layers)
	number, path, _ := strings.Cut(rest, ".")
	i, err := strconv.Atoi(number)
	at := layers + strconv.Itoa(i) + "."
	if err != nil || i < 0 || i >= r.of.Dim.Layers || layer != at+path {
		return []Change{c}
	}
	for _, f := range r.layout.Fused {
		if f.Path != path {
			continue
		}
		var out []Change
		first := 0
		for _, p := range f.Parts(r.of.Dim, i) {
			part := c
			part.Layer, part.Out = at+p.Path, p.Rows
			part.b.first, part.b.rows = first, p.Rows
			out = append(out, part)
			first += p.Rows
		}
		if first == c.Out {
			return out
		}
	}
	return []Change{c}
}

// expert is the layer of all experts that a change of one belongs to.
func (c Change) expert() (all string, expert int, ok bool) {
	before, rest, found := strings.Cut(c.Layer, ".mlp.experts.")
	number, matrix, _ := strings.Cut(rest, ".")
	expert, err := strconv.Atoi(number)
	return before + ".mlp.switch_mlp." + matrix, expert, found && err == nil && c.Experts == 0
}

// stack makes one change of those of single experts. Experts without one stay as they are.
func (r *changeReader) stack(ctx context.Context) error {
	for _, layer := range sortedKeys(r.single) {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, _ := r.of.Entry(layer + ".weight") // each of its experts fits
		if err := r.memory.take(changeMemory+2*factorMemory*e.Shape[0], 0); err != nil {
			return fmt.Errorf("layer %s of %d experts: %w", family.Quoted(layer), e.Shape[0], err)
		}
		var c Change
		for n := range int(e.Shape[0]) {
			one, changed := r.single[layer][n]
			switch {
			case !changed:
				continue
			case c.Experts == 0:
				c, c.Experts = one, int(e.Shape[0])
				c.Layer, c.a.stack, c.b.stack = layer, make([]factor, c.Experts), make([]factor, c.Experts)
			case one.Rank != c.Rank || one.Scale != c.Scale || one.a.tensor.kind != c.a.tensor.kind || one.b.tensor.kind != c.b.tensor.kind:
				return family.Unsupported("adapter of experts", "another rank, scale or type in expert "+strconv.Itoa(n)+" of "+clipped(layer), []string{"the same in all experts of a layer"})
			}
			c.a.stack[n], c.b.stack[n] = one.a, one.b
		}
		r.out = append(r.out, c)
	}
	return nil
}

// fits refuses a change of a layer that the model does not have, or whose shape differs.
func (c Change) fits(of *File) error {
	layer, expert, single := c.expert()
	if !single {
		layer = c.Layer
	}
	e, found := of.Entry(layer + ".weight")
	// The factors of an embedding are turned, and a head may share its matrix.
	if !found || strings.HasSuffix(layer, ".embed_tokens") || single && len(e.Shape) != 3 {
		return family.Unsupported("layer with an adapter", clipped(layer), []string{"linear layers that the model has as a matrix of their own"})
	}
	want, has := []int64{int64(c.Out), int64(c.In)}, e.Shape
	switch {
	case single && (expert < 0 || int64(expert) >= e.Shape[0]):
		return family.Invalidf("layer %s has %d experts, and factors of others", family.Quoted(layer), e.Shape[0])
	case single:
		has = e.Shape[1:]
	case c.Experts > 0:
		want = append([]int64{int64(c.Experts)}, want...)
	}
	if !slices.Equal(has, want) {
		return family.Invalidf("its factors are those of a matrix of shape %v, but the model's has %v", want, has)
	}
	return nil
}
