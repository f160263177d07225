package nn

import (
	"context"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Adapter is a loaded low-rank adapter of a decoder.
type Adapter struct {
	// changes by the matrix whose products they are added to.
	changes  map[tensor.Matrix]change
	matrices []tensor.Matrix
	// shared are the first factors that several changes may have, by Change.Shared.
	shared map[string]tensor.Matrix
}

// change adds scale * b(a(x)) to a product. Both matrices are stacks in a layer of
// experts.
type change struct {
	a, b    tensor.Matrix
	experts int
	scale   float32
}

// LoadAdapter loads an adapter of this decoder. It refuses one that changes a layer
// whose products it cannot be added to. After an error nothing stays loaded.
func (m *Decoder) LoadAdapter(ctx context.Context, f *weights.Adapter) (*Adapter, error) {
	a := &Adapter{changes: map[tensor.Matrix]change{}, shared: map[string]tensor.Matrix{}}
	for _, c := range f.Changes {
		if err := ctx.Err(); err != nil {
			a.Release()
			return nil, err
		}
		if err := a.load(m.loader, f, c); err != nil {
			a.Release()
			return nil, err
		}
	}
	return a, nil
}

func (a *Adapter) load(l *Loader, f *weights.Adapter, c weights.Change) error {
	of, ok := l.layers[c.Layer]
	if !ok {
		return family.Unsupported("layer with an adapter", c.Layer, []string{"projections of attention and feed-forwards, routers and experts"})
	}
	first, second, err := f.Factors(c)
	if err != nil {
		return err
	}
	loaded := change{experts: c.Experts, scale: c.Scale, a: a.shared[c.Shared()]}
	if loaded.a == nil {
		if loaded.a, err = a.matrix(l.backend, first); err != nil {
			return fmt.Errorf("load the adapter of %s: %w", c.Layer, err)
		}
	}
	if name := c.Shared(); name != "" {
		a.shared[name] = loaded.a
	}
	if loaded.b, err = a.matrix(l.backend, second); err != nil {
		return fmt.Errorf("load the adapter of %s: %w", c.Layer, err)
	}
	a.changes[of] = loaded
	return nil
}

func (a *Adapter) matrix(b tensor.Backend, rows weights.Rows) (tensor.Matrix, error) {
	m, err := b.LoadMatrix(quant.DenseOf(rows.Type), rows.Rows, rows.Columns, func(put func(int, quant.Row) error) error {
		return rows.Each(func(first int, raw []byte) error { return put(first, quant.Row{Raw: raw}) })
	})
	if err == nil {
		a.matrices = append(a.matrices, m)
	}
	return m, err
}

// Bytes that the adapter occupies.
func (a *Adapter) Bytes() (n int64) {
	for _, m := range a.matrices {
		n += m.Bytes()
	}
	return n
}

// Release frees the adapter.
func (a *Adapter) Release() {
	for _, m := range a.matrices {
		m.Release()
	}
	a.matrices, a.changes, a.shared = nil, nil, nil
}

// Adapted returns a scope in which the products of a decoder's layers are changed by the
// adapter of their row. of has the adapter of each row of the step; nil changes nothing.
// The scope takes the place of s in one step.
func Adapted(s tensor.Scope, of []*Adapter) tensor.Scope {
	if !slices.ContainsFunc(of, func(a *Adapter) bool { return a != nil }) {
		return s
	}
	return &adapted{s, of, usesOf(of)}
}

// adapted is a scope that adds what adapters change to the products of matrices.
type adapted struct {
	tensor.Scope
	// of has the adapter of each row, and all the rows of each adapter.
	of  []*Adapter
	all []use
}

// use is an adapter and the rows that have it.
type use struct {
	adapter *Adapter
	rows    []int
	whole   bool
}

// usesOf lists the adapters of rows, in the order of their first row.
func usesOf(of []*Adapter) []use {
	var out []use
	at := map[*Adapter]int{}
	for row, a := range of {
		if a == nil {
			continue
		}
		i, known := at[a]
		if !known {
			i = len(out)
			at[a] = i
			out = append(out, use{adapter: a})
		}
		out[i].rows = append(out[i].rows, row)
	}
	for i := range out {
		out[i].whole = len(out[i].rows) == len(of)
	}
	return out
}

// only is the scope for the given rows of a step alone; nil means all of them.
func only(s tensor.Scope, rows []int) tensor.Scope {
	a, ok := s.(*adapted)
	if !ok || rows == nil {
		return s
	}
	of := make([]*Adapter, len(rows))
	for i, r := range rows {
		of[i] = a.of[r]
	}
	return &adapted{a.Scope, of, usesOf(of)}
}

// Child is adapted too.
func (s *adapted) Child() tensor.Scope { return &adapted{s.Scope.Child(), s.of, s.all} }

// Linear multiplies x by each matrix, and adds what the adapters change.
func (s *adapted) Linear(x tensor.Array, ms ...tensor.Matrix) []tensor.Array {
	return s.changed(x, ms, s.Scope.Linear(x, ms...))
}

// LinearBias is Linear with biases.
func (s *adapted) LinearBias(x tensor.Array, ms []tensor.Matrix, biases []tensor.Array) []tensor.Array {
	return s.changed(x, ms, s.Scope.LinearBias(x, ms, biases))
}

// LinearOf multiplies x by chosen experts, and adds what the adapters change.
func (s *adapted) LinearOf(x, chosen tensor.Array, experts int, ms ...tensor.Matrix) []tensor.Array {
	out := s.Scope.LinearOf(x, chosen, experts, ms...)
	if s.Err() != nil {
		return out
	}
	tokens, in, all := len(s.of), x.Shape()[0], chosen.Shape()[0]
	for _, u := range s.uses(ms) {
		from := s.gather(x, u, in/tokens)
		ids := chosen
		if !u.whole {
			ids = s.Scope.JoinIDs(chosen, u.times(all/tokens), nil)
		}
		for i, m := range ms {
			c, ok := u.adapter.changes[m]
			if !ok {
				continue
			}
			narrow := s.Scope.LinearOf(from, ids, experts, c.a)[0]
			out[i] = s.sum(out[i], u, all/tokens, s.Scope.LinearOf(narrow, ids, experts, c.b)[0], c.scale)
			s.Release(narrow)
		}
		s.let(from, x)
		s.let(ids, chosen)
	}
	return out
}

// times are the rows where each stands for n.
func (u use) times(n int) []int {
	if n == 1 {
		return u.rows
	}
	out := make([]int, 0, n*len(u.rows))
	for _, r := range u.rows {
		for i := range n {
			out = append(out, r*n+i)
		}
	}
	return out
}

// uses are the adapters that change one of the matrices.
func (s *adapted) uses(ms []tensor.Matrix) []use {
	var out []use
	for _, u := range s.all {
		if slices.ContainsFunc(ms, func(m tensor.Matrix) bool { _, ok := u.adapter.changes[m]; return ok }) {
			out = append(out, u)
		}
	}
	return out
}

// changed adds to the products of x what the adapters change.
func (s *adapted) changed(x tensor.Array, ms []tensor.Matrix, out []tensor.Array) []tensor.Array {
	if s.Err() != nil {
		return out
	}
	for _, u := range s.uses(ms) {
		from := s.gather(x, u, 1)
		for i, m := range ms {
			c, ok := u.adapter.changes[m]
			if !ok {
				continue
			}
			narrow := s.Scope.Linear(from, c.a)[0]
			out[i] = s.sum(out[i], u, 1, s.Scope.Linear(narrow, c.b)[0], c.scale)
			s.Release(narrow)
		}
		s.let(from, x)
	}
	return out
}

// gather are the rows of x that have an adapter; n rows stand for one of the step.
func (s *adapted) gather(x tensor.Array, u use, n int) tensor.Array {
	if u.whole {
		return x
	}
	return s.Scope.Rows(x, u.times(n))
}

// sum is a product of which the rows of a use are changed by scale times delta, in the
// type of the product. Both operands are released.
func (s *adapted) sum(product tensor.Array, u use, n int, delta tensor.Array, scale float32) tensor.Array {
	scaled := s.Scope.Map(delta, tensor.ScaleShift{Scale: scale})
	s.Release(delta)
	rows := u.times(n)
	before := s.gather(product, u, n)
	more := s.Scope.Add(before, scaled)
	s.Release(scaled)
	s.let(before, product)
	out := s.Scope.Place(product, rows, more)
	s.Release(more)
	s.Release(product)
	return out
}

// let releases what was made of an array, unless it is that array.
func (s *adapted) let(a, of tensor.Array) {
	if a != of {
		s.Release(a)
	}
}
