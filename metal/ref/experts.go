package ref

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// choice is which rows of the result each expert makes: row r of the result is
// the product of row r/k of x.
type choice struct {
	x *array
	k int
	// rows of the result by expert, each in rising order.
	rows [][]int32
	// experts that are chosen at all.
	experts []int
}

// LinearOf multiplies rows by their chosen experts. Each output is summed as in
// Linear, regardless of the other rows of the step.
func (s *mixture) LinearOf(x, chosen tensor.Array, experts int, ms ...tensor.Matrix) []tensor.Array {
	outs := make([]tensor.Array, len(ms))
	for i := range outs {
		outs[i] = &array{}
	}
	c, mats, ok := s.chosen(x, chosen, experts, ms)
	if !ok {
		return outs
	}
	for i, m := range mats {
		outs[i] = s.array("LinearOf", len(chosen.(*array).ids), m.out/experts)
	}
	if s.failed() {
		return outs
	}
	// Matrices of one format share their tables, as in Linear.
	for lo := 0; lo < len(mats); {
		hi := lo + 1
		for hi < len(mats) && mats[hi].format == mats[lo].format {
			hi++
		}
		if mats[lo].inColumns() {
			s.quantizedOf(c, mats[lo:hi], outs[lo:hi])
		} else {
			for i := lo; i < hi; i++ {
				s.b.denseOf(c, mats[i], mats[i].out/experts, outs[i].(*array))
			}
		}
		lo = hi
	}
	return outs
}

// LinearEach multiplies heads by matrices of their own: as rows, each by the one
// expert that is its head.
func (s *mixture) LinearEach(x tensor.Array, tm tensor.Matrix, heads int) tensor.Array {
	const op = "LinearEach"
	in, ok := s.operand(op, x, 2)
	if !ok {
		return &array{}
	}
	m, ok := tm.(*matrix)
	if !ok || m.mem == nil {
		s.fail(fmt.Errorf("%s: %w", op, tensor.ErrReleased))
		return &array{}
	}
	if heads < 1 || m.out%heads != 0 || in.shape[1] != heads*m.in {
		s.fail(&tensor.ShapeError{Op: op, Detail: fmt.Sprintf("%v by %d heads in [%d, %d]", in.shape, heads, m.out, m.in)})
		return &array{}
	}
	tokens, each := in.shape[0], m.out/heads
	out := s.array(op, tokens*heads, each)
	if s.failed() {
		return out
	}
	view := *in
	view.shape = []int{tokens * heads, m.in}
	c := &choice{x: &view, k: 1, rows: make([][]int32, heads)}
	for h := range heads {
		c.experts = append(c.experts, h)
		for t := range tokens {
			c.rows[h] = append(c.rows[h], int32(t*heads+h))
		}
	}
	if m.inColumns() {
		s.quantizedOf(c, []*matrix{m}, []tensor.Array{out})
	} else {
		s.b.denseOf(c, m, each, out)
	}
	out.shape = []int{tokens, m.out}
	return out
}

// chosen checks the operands and sorts the rows by expert.
func (s *mixture) chosen(x, chosen tensor.Array, experts int, ms []tensor.Matrix) (*choice, []*matrix, bool) {
	in, ok := s.operand("LinearOf", x, 2)
	if !ok {
		return nil, nil, false
	}
	ids, ok := s.idOperand("LinearOf", chosen)
	if !ok {
		return nil, nil, false
	}
	misfit := func(format string, args ...any) (*choice, []*matrix, bool) {
		s.fail(&tensor.ShapeError{Op: "LinearOf", Detail: fmt.Sprintf(format, args...)})
		return nil, nil, false
	}
	if experts < 1 || len(ids.ids)%in.shape[0] != 0 {
		return misfit("%v by %d of %d experts", in.shape, len(ids.ids), experts)
	}
	mats := make([]*matrix, len(ms))
	for i, tm := range ms {
		m, ok := tm.(*matrix)
		if !ok || m.mem == nil {
			s.fail(fmt.Errorf("LinearOf: matrix %d: %w", i, tensor.ErrReleased))
			return nil, nil, false
		}
		if m.in != in.shape[1] || m.out%experts != 0 {
			return misfit("%v by %d experts in [%d, %d]", in.shape, experts, m.out, m.in)
		}
		mats[i] = m
	}
	c := &choice{x: in, k: len(ids.ids) / in.shape[0], rows: make([][]int32, experts)}
	for r, e := range ids.ids {
		if e < 0 || int(e) >= experts {
			return misfit("expert %d of %d", e, experts)
		}
		if c.rows[e] == nil {
			c.experts = append(c.experts, int(e))
		}
		c.rows[e] = append(c.rows[e], int32(r))
	}
	return c, mats, true
}

// ofPart is one task of a quantized product with experts: some rows of one
// expert, and the r-th range of its outputs.
type ofPart struct {
	half, expert int
	rows         []int32
	r, of        int
}

// ofMatrix is a matrix of experts and where its products go.
type ofMatrix struct {
	*matrix
	// each is how many outputs an expert has.
	each    int
	results [halves]*array
}

func (s *mixture) quantizedOf(c *choice, ms []*matrix, outs []tensor.Array) {
	groups := c.x.shape[1] / groupSize
	child := s.child() // the second halves live until they are added
	defer child.Close()
	to := make([]ofMatrix, len(ms))
	for i, m := range ms {
		first := outs[i].(*array)
		to[i] = ofMatrix{m, first.shape[1], [halves]*array{first, child.array("LinearOf", first.shape...)}}
	}
	if s.failed() {
		return
	}
	var parts []ofPart
	for _, e := range c.experts {
		rows := c.rows[e]
		for at := 0; at < len(rows); at += blockTokens {
			for half := range halves {
				parts = append(parts, ofPart{half: half, expert: e, rows: rows[at:min(at+blockTokens, len(rows))]})
			}
		}
	}
	// Few parts are cut into ranges of outputs, so that all threads have work.
	ranges := max(1, s.b.workers.size/len(parts))
	s.b.workers.run(len(parts)*ranges, func(worker, task int) {
		p := parts[task/ranges]
		p.r, p.of = task%ranges, ranges
		g0, g1 := p.half*(groups/halves), groups/halves
		if p.half == halves-1 {
			g1 = groups
		}
		p.multiply(s.b, &s.b.scratch[worker], c, to, g0, g1)
	})
	for _, m := range to {
		a, b := m.results[0].data, m.results[1].data
		s.b.split(len(a), 1<<14, func(lo, hi int) { add(a[lo:hi], a[lo:hi], b[lo:hi]) })
	}
}

// result is what a part writes of row i, and where that lies in the matrix.
func (p *ofPart) result(m *ofMatrix, i int) (dst []float32, lo, hi int) {
	lo, hi = rowRange(m.each, p.r, p.of)
	first := p.expert * m.each
	return m.results[p.half].row(int(p.rows[i]))[lo:hi], first + lo, first + hi
}

// multiply works off groups [g0, g1) for the rows of a part, two at a time.
func (p *ofPart) multiply(b *Backend, sc *scratch, c *choice, ms []ofMatrix, g0, g1 int) {
	for i := range p.rows {
		for k := range ms {
			dst, _, _ := p.result(&ms[k], i)
			clear(dst)
		}
	}
	if b.vectors {
		p.multiplyVectors(b, &sc.vector, c, ms, g0, g1)
		return
	}
	for g := g0; g < g1; g++ {
		for i := 0; i < len(p.rows); i += 2 {
			both := i+1 < len(p.rows)
			sc.group.first.read(c.x.row(int(p.rows[i]) / c.k)[g*groupSize:], b.one)
			sc.group.second = fixed{}
			if both {
				sc.group.second.read(c.x.row(int(p.rows[i+1]) / c.k)[g*groupSize:], b.one)
			}
			sc.group.build(ms[0].layout)
			for k := range ms {
				m := &ms[k]
				acc0, lo, hi := p.result(m, i)
				acc1 := []float32(nil)
				if both {
					acc1, _, _ = p.result(m, i+1)
				}
				if lo < hi {
					sc.add(acc0, acc1, m.matrix, g, lo, hi, sc.group.zero(m.layout, m.format.Mode))
				}
			}
		}
	}
}

// multiplyVectors does the same with vectors, all rows at once.
func (p *ofPart) multiplyVectors(b *Backend, v *vector, c *choice, ms []ofMatrix, g0, g1 int) {
	for g := g0; g < g1; g++ {
		v.begin(b.digits())
		for _, row := range p.rows {
			v.read(c.x.row(int(row) / c.k)[g*groupSize:], ms[0].layout, b.one)
		}
		for k := range ms {
			m, first, last := &ms[k], 0, 0
			for i := range p.rows {
				v.accs[i], first, last = p.result(m, i)
			}
			v.add(m.matrix, g, first, last)
		}
	}
}

// denseOf multiplies by experts of floats.
func (b *Backend) denseOf(c *choice, m *matrix, out int, result *array) {
	blocks := (out + denseRows - 1) / denseRows
	b.workers.run(len(c.experts)*blocks, func(worker, task int) {
		e, first := c.experts[task/blocks], task%blocks*denseRows
		buf := grow(&b.scratch[worker].dense, m.in)
		for r := first; r < min(out, first+denseRows); r++ {
			w := buf
			if at := e*out + r; m.format.Type == quant.Float32 {
				w = floats(m.data[at*m.in*4:][:m.in*4])
			} else {
				m.row(at, w)
			}
			for _, row := range c.rows[e] {
				result.row(int(row))[r] = dot(w, c.x.row(int(row)/c.k))
			}
		}
	})
}

// Combine adds up the rows of a token, each times its share, in their order.
func (s *mixture) Combine(y, shares tensor.Array) tensor.Array {
	in, ok := s.operand("Combine", y, 2)
	if !ok {
		return &array{}
	}
	p, ok := s.operand("Combine", shares, 2)
	if !ok {
		return &array{}
	}
	tokens, k := p.shape[0], p.shape[1]
	if in.shape[0] != tokens*k {
		s.fail(&tensor.ShapeError{Op: "Combine", Detail: fmt.Sprintf("%v by %v", in.shape, p.shape)})
		return &array{}
	}
	out := s.array("Combine", tokens, in.shape[1])
	if s.failed() {
		return out
	}
	s.b.split(tokens, max(1, grainElements/(k*in.shape[1])), func(lo, hi int) {
		for t := lo; t < hi; t++ {
			dst := out.row(t)
			clear(dst)
			for i, share := range p.row(t) {
				for j, v := range in.row(t*k + i) {
					dst[j] += float32(share * v)
				}
			}
		}
	})
	return out
}
