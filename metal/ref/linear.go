package ref

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// A quantised product is cut into parts so that threads can share it without
// sharing tables: always two halves of the groups, blocks of tokens, and
// ranges of rows. Each half is summed from its first group to its last, then
// the second half is added to the first: the order never depends on the cut.
const (
	halves      = 2
	blockTokens = 8
	minRows     = 512
)

// scratch is what one worker needs.
type scratch struct {
	group  group
	vector vector
	// low and high are the sums of a tile's rows; discard receives the outputs
	// of an absent second token.
	low, high [tileRows]uint64
	discard   [tileRows]float32
	dense     []float32
	scores    []float32
	// queries that look at the same keys, and a tile of these that lies in two
	// blocks.
	queries [mostQueries]query
	span    []float32
}

func grow(p *[]float32, n int) []float32 {
	if cap(*p) < n {
		*p = make([]float32, n)
	}
	return (*p)[:n]
}

// Linear multiplies x by each matrix transposed.
func (s *scope) Linear(x tensor.Array, ms ...tensor.Matrix) []tensor.Array {
	outs := make([]tensor.Array, len(ms))
	for i := range outs {
		outs[i] = &array{}
	}
	in, ok := s.operand("Linear", x, 2)
	if !ok {
		return outs
	}
	mats := make([]*matrix, len(ms))
	for i, tm := range ms {
		m, ok := tm.(*matrix)
		if !ok || m.mem == nil {
			s.fail(fmt.Errorf("Linear: matrix %d: %w", i, tensor.ErrReleased))
			return outs
		}
		if m.in != in.shape[1] {
			s.fail(&tensor.ShapeError{Op: "Linear", Detail: fmt.Sprintf("%v by [%d, %d]", in.shape, m.out, m.in)})
			return outs
		}
		mats[i] = m
		outs[i] = s.array("Linear", in.shape[0], m.out)
	}
	if s.failed() {
		return outs
	}
	// Matrices of one format share their tables.
	for lo := 0; lo < len(mats); {
		hi := lo + 1
		for hi < len(mats) && mats[hi].format == mats[lo].format {
			hi++
		}
		if mats[lo].inColumns() {
			s.quantized(in, mats[lo:hi], outs[lo:hi])
		} else {
			for i := lo; i < hi; i++ {
				s.b.dense(in, mats[i], outs[i].(*array))
			}
		}
		lo = hi
	}
	return outs
}

// LinearBias is Linear, and adds a bias to each row.
func (s *scope) LinearBias(x tensor.Array, ms []tensor.Matrix, biases []tensor.Array) []tensor.Array {
	added := make([]*array, len(biases))
	for i, tb := range biases {
		b, ok := s.operand("LinearBias", tb, 1)
		if !ok {
			return s.nothing(len(ms))
		}
		added[i] = b
	}
	if len(biases) != len(ms) {
		s.fail(&tensor.ShapeError{Op: "LinearBias", Detail: fmt.Sprintf("%d matrices, %d biases", len(ms), len(biases))})
		return s.nothing(len(ms))
	}
	for i, tm := range ms {
		if m, ok := tm.(*matrix); ok && m.mem != nil && added[i].shape[0] != m.out {
			s.fail(&tensor.ShapeError{Op: "LinearBias", Detail: fmt.Sprintf("bias of %d for [%d, %d]", added[i].shape[0], m.out, m.in)})
			return s.nothing(len(ms))
		}
	}
	outs := s.Linear(x, ms...)
	if s.failed() {
		return outs
	}
	for i, b := range added {
		out := outs[i].(*array)
		s.b.split(out.shape[0], max(1, grainElements/out.shape[1]), func(lo, hi int) {
			for t := lo; t < hi; t++ {
				add(out.row(t), out.row(t), b.data)
			}
		})
	}
	return outs
}

// nothing is results of no use.
func (s *arena) nothing(n int) []tensor.Array {
	outs := make([]tensor.Array, n)
	for i := range outs {
		outs[i] = &array{}
	}
	return outs
}

// part is one task of a quantised product.
type part struct {
	half           int
	token0, token1 int
}

func (s *scope) quantized(x *array, ms []*matrix, outs []tensor.Array) {
	tokens, groups := x.shape[0], x.shape[1]/groupSize
	child := s.child() // the second halves live until they are added
	defer child.Close()
	dst := make([][halves]*array, len(ms))
	for i, m := range ms {
		dst[i][0] = outs[i].(*array)
		dst[i][1] = child.array("Linear", tokens, m.out)
	}
	if s.failed() {
		return
	}
	blocks := (tokens + blockTokens - 1) / blockTokens
	ranges := max(1, s.b.workers.size/(halves*blocks))
	s.b.workers.run(halves*blocks*ranges, func(worker, task int) {
		r, rest := task%ranges, task/ranges
		p := part{half: rest % halves, token0: rest / halves * blockTokens}
		p.token1 = min(tokens, p.token0+blockTokens)
		g0, g1 := p.half*(groups/halves), groups/halves
		if p.half == halves-1 {
			g1 = groups
		}
		s.b.multiply(&s.b.scratch[worker], x, ms, dst, p, g0, g1, r, ranges)
	})
	for i := range ms {
		a, b := dst[i][0].data, dst[i][1].data
		s.b.split(len(a), 1<<14, func(lo, hi int) {
			add(a[lo:hi], a[lo:hi], b[lo:hi])
		})
	}
}

// multiply computes groups [g0, g1) of one block of tokens for the r-th range
// of rows of every matrix.
func (b *Backend) multiply(sc *scratch, x *array, ms []*matrix, dst [][halves]*array, p part, g0, g1, r, ranges int) {
	for i, m := range ms {
		lo, hi := rowRange(m.out, r, ranges)
		for t := p.token0; t < p.token1; t++ {
			clear(dst[i][p.half].row(t)[lo:hi])
		}
	}
	if b.vectors {
		b.multiplyVectors(sc, x, ms, dst, p, g0, g1, r, ranges)
		return
	}
	f := ms[0].format
	for g := g0; g < g1; g++ {
		for t := p.token0; t < p.token1; t += 2 {
			both := t+1 < p.token1
			sc.group.first.read(x.row(t)[g*groupSize:], b.one)
			sc.group.second = fixed{}
			if both {
				sc.group.second.read(x.row(t + 1)[g*groupSize:], b.one)
			}
			sc.group.build(ms[0].layout)
			for i, m := range ms {
				lo, hi := rowRange(m.out, r, ranges)
				acc0, acc1 := dst[i][p.half].row(t)[lo:hi], []float32(nil)
				if both {
					acc1 = dst[i][p.half].row(t + 1)[lo:hi]
				}
				sc.add(acc0, acc1, m, g, lo, hi, sc.group.zero(m.layout, f.Mode))
			}
		}
	}
}

// multiplyVectors does multiply's work with vectors, all tokens of a block at
// once.
func (b *Backend) multiplyVectors(sc *scratch, x *array, ms []*matrix, dst [][halves]*array, p part, g0, g1, r, ranges int) {
	v := &sc.vector
	for g := g0; g < g1; g++ {
		v.begin(b.digits())
		for t := p.token0; t < p.token1; t++ {
			v.read(x.row(t)[g*groupSize:], ms[0].layout, b.one)
		}
		for i, m := range ms {
			lo, hi := rowRange(m.out, r, ranges)
			for t := p.token0; t < p.token1; t++ {
				v.accs[t-p.token0] = dst[i][p.half].row(t)[lo:hi]
			}
			v.add(m, g, lo, hi)
		}
	}
}

// add gives the group at hand to rows [lo, hi) of a matrix; acc1 is nil where
// there is no second token.
func (sc *scratch) add(acc0, acc1 []float32, m *matrix, g, lo, hi int, zero uint64) {
	if m.format.Bits == 4 {
		c := m.column(g, lo, hi)
		c.check(m.layout, len(acc0))
		if acc1 == nil {
			sc.group.addOne(acc0, &c, zero)
		} else {
			sc.group.addTwo(acc0, acc1, &c, zero)
		}
		return
	}
	top, n := m.layout[1], 0
	for ; lo < hi; lo, acc0 = lo+n, acc0[n:] {
		n = min(tileRows, hi-lo)
		c := m.column(g, lo, lo+n)
		c.check(m.layout, n)
		other := sc.discard[:n]
		if acc1 != nil {
			other, acc1 = acc1[:n], acc1[n:]
		}
		low, high := sc.low[:n], sc.high[:n]
		sc.group.planeSums(m.layout[0], low, c.low, 0)
		if top.bits == 0 {
			clear(high)
		} else {
			sc.group.planeSums(top, high, c.high, zero)
		}
		sc.group.addPlanes(acc0[:n], other, &c, low, high, top.shift)
	}
}

// rowRange is the r-th of n ranges of rows; matrices too small to share have
// all their rows in the first.
func rowRange(rows, r, n int) (lo, hi int) {
	n = max(1, min(n, rows/minRows))
	if r >= n {
		return 0, 0
	}
	return rows * r / n, rows * (r + 1) / n
}

// denseRows is how many rows are widened at once for all tokens.
const denseRows = 16

// dense multiplies by a matrix of floats.
func (b *Backend) dense(x *array, m *matrix, out *array) {
	tasks := (m.out + denseRows - 1) / denseRows
	b.workers.run(tasks, func(worker, task int) {
		buf := grow(&b.scratch[worker].dense, m.in)
		for r := task * denseRows; r < min(m.out, (task+1)*denseRows); r++ {
			w := buf
			if m.format.Type == quant.Float32 {
				w = floats(m.data[r*m.in*4:][:m.in*4])
			} else {
				m.row(r, w)
			}
			if b.vectors && m.in%lanes == 0 {
				dots := grow(&b.scratch[worker].scores, x.shape[0])
				vectorDotRows(dots, w, x.data, len(w), 1)
				for t, d := range dots {
					out.row(t)[r] = d
				}
				continue
			}
			for t := range x.shape[0] {
				out.row(t)[r] = dot(w, x.row(t))
			}
		}
	})
}

// dot sums in eight lanes, then the rest in order.
//
//go:norace
//go:nocheckptr
func dot(w, x []float32) float32 {
	x = x[:len(w)]
	var a, b, c, d, e, f, g, h float32
	i := 0
	for ; i+8 <= len(w); i += 8 {
		ww, xx := (*[8]float32)(w[i:]), (*[8]float32)(x[i:])
		a += float32(ww[0] * xx[0])
		b += float32(ww[1] * xx[1])
		c += float32(ww[2] * xx[2])
		d += float32(ww[3] * xx[3])
		e += float32(ww[4] * xx[4])
		f += float32(ww[5] * xx[5])
		g += float32(ww[6] * xx[6])
		h += float32(ww[7] * xx[7])
	}
	sum := ((a + b) + (c + d)) + ((e + f) + (g + h))
	for ; i < len(w); i++ {
		sum += float32(w[i] * x[i])
	}
	return sum
}
