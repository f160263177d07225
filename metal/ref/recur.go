package ref

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// normEps is added to the squared length of queries and keys.
const normEps = 1e-6

// Recur extends recurrent states by the rows of a step, token by token, and
// reads them after each token.
func (s *scope) Recur(spec tensor.RecurSpec) tensor.Array {
	r, err := s.recurOperands(spec)
	if err != nil {
		s.fail(err)
	}
	if s.failed() {
		return &array{}
	}
	out := s.array("Recur", r.v.shape...)
	r.mixed = s.array("Recur", r.v.shape[0], r.shape.Channels())
	if s.failed() {
		return out
	}
	defer s.Release(r.mixed)
	if err := r.begin(); err != nil {
		s.fail(fmt.Errorf("Recur: %w", err))
		return out
	}
	heads := 2*r.shape.KeyHeads + r.shape.ValueHeads
	s.b.workers.run(len(r.rows)*heads, func(_, task int) { r.convolve(task/heads, task%heads) })
	if spec.Rule == tensor.Convolution {
		copy(out.data, r.mixed.data)
		r.end()
		return out
	}
	s.b.workers.run(len(spec.Segments)*r.shape.ValueHeads, func(_, task int) {
		r.recur(task/r.shape.ValueHeads, task%r.shape.ValueHeads, out)
	})
	r.end()
	return out
}

// recurrence is one recurrent layer of a step.
type recurrence struct {
	tensor.RecurSpec
	c           *cache
	shape       tensor.RecurrentSpec
	layer       int
	segments    []tensor.Segment
	q, k, v     *array
	decay, beta *array
	kernel      []float32
	rate, bias  []float32
	shift, skip []float32
	// mixed is what comes of the convolution: queries, keys and values.
	mixed *array
	held  []*held
	// rows say to which segment each row belongs, and where in it.
	rows []struct{ segment, at int }
	// firsts are the first rows of the segments.
	firsts []int
}

func (s *scope) recurOperands(spec tensor.RecurSpec) (*recurrence, error) {
	const op = "Recur"
	c, ok := spec.Cache.(*cache)
	if !ok || c.released {
		return nil, fmt.Errorf("%s: cache: %w", op, tensor.ErrReleased)
	}
	var in [10]*array
	for i, a := range spec.Operands() {
		dims := 2
		if i >= 5 {
			dims = 1
		}
		if a == nil && i != 2 {
			in[i] = &array{}
			continue
		}
		if in[i], ok = s.operand(op, a, dims); !ok {
			return nil, s.Err()
		}
	}
	if err := spec.Check(c.spec.Recurrent); err != nil {
		return nil, err
	}
	return &recurrence{RecurSpec: spec, c: c, shape: c.spec.Recurrent, layer: spec.Layer, segments: spec.Segments, q: in[0], k: in[1], v: in[2],
		decay: in[3], beta: in[4], kernel: in[5].data, shift: in[6].data, rate: in[7].data, bias: in[8].data, skip: in[9].data}, nil
}

// begin makes room for the states of all segments before any is changed. That
// of a request that begins is all zeros.
func (r *recurrence) begin() error {
	for i, g := range r.segments {
		h := r.c.of(g.Request)
		if h.recurred[r.layer] != g.Start {
			return fmt.Errorf("request %d, recurrent layer %d has seen %d tokens, but the segment starts at %d: %w", g.Request, r.layer, h.recurred[r.layer], g.Start, tensor.ErrSegment)
		}
		if h.state == nil {
			p, err := r.c.b.mem.exact(r.shape.StateBytes(), &r.c.b.mem.kv)
			if err != nil {
				return fmt.Errorf("recurrent state: %w", err)
			}
			h.state = p
		}
		if g.Draft > 0 && h.kept == nil {
			p, err := r.c.b.mem.exact(r.shape.StateBytes(), &r.c.b.mem.kv)
			if err != nil {
				return fmt.Errorf("recurrent state before a draft: %w", err)
			}
			h.kept = p
		}
		r.held = append(r.held, h)
		r.firsts = append(r.firsts, len(r.rows))
		for at := range g.Length {
			r.rows = append(r.rows, struct{ segment, at int }{i, at})
		}
	}
	for i, g := range r.segments {
		if g.Start == 0 {
			seen, matrix := r.state(i)
			clear(seen)
			clear(matrix)
		}
	}
	return nil
}

// state of this layer for a segment: rows that the convolution saw, and the
// matrices of the value heads.
func (r *recurrence) state(segment int) (seen, matrix []float32) {
	return r.of(r.held[segment].state)
}

// of is the part of this layer in the states of a request.
func (r *recurrence) of(states []byte) (seen, matrix []float32) {
	n := r.shape.StateElements()
	all := floats(states)[r.layer*n : (r.layer+1)*n]
	at := (r.shape.Taps - 1) * r.shape.Channels()
	return all[:at:at], all[at:]
}

// part is where a head stands: in q, k or v, from column first on, and among
// all channels.
func (r *recurrence) part(head int) (from *array, first, channel, size int) {
	keys := r.shape.KeyHeads * r.shape.KeySize
	switch n := r.shape.KeyHeads; {
	case head < n:
		return r.q, head * r.shape.KeySize, head * r.shape.KeySize, r.shape.KeySize
	case head < 2*n:
		first = (head - n) * r.shape.KeySize
		return r.k, first, keys + first, r.shape.KeySize
	default:
		first = (head - 2*n) * r.shape.ValueSize
		return r.v, first, 2*keys + first, r.shape.ValueSize
	}
}

// convolve makes one head of one row of what the convolution gives; queries
// and keys have a length of 1, queries divided by the root of their size.
func (r *recurrence) convolve(row, head int) {
	from, first, channel, size := r.part(head)
	where := r.rows[row]
	seen, _ := r.state(where.segment)
	dst, taps, width := r.mixed.row(row)[channel:channel+size], r.shape.Taps, r.shape.Channels()
	clear(dst)
	for j := range taps {
		var src []float32
		if at := where.at - (taps - 1) + j; at < 0 {
			src = seen[(taps-1+at)*width+channel:]
		} else {
			src = from.row(r.firsts[where.segment] + at)[first:]
		}
		src = src[:size]
		for i := range dst {
			dst[i] += float32(r.kernel[(channel+i)*taps+j] * src[i])
		}
	}
	if r.shift != nil {
		for i := range dst {
			dst[i] += r.shift[channel+i]
		}
	}
	if r.Rule == tensor.Convolution {
		return
	}
	for i, v := range dst {
		dst[i] = v / (1 + exp(-v))
	}
	if head >= 2*r.shape.KeyHeads || r.Rule == tensor.StateSpace {
		return
	}
	scale := 1 / math.Sqrt(float64(dot(dst, dst))+normEps)
	if head < r.shape.KeyHeads {
		scale /= math.Sqrt(float64(size))
	}
	for i := range dst {
		dst[i] *= float32(scale)
	}
}

// recur applies the delta rule of one value head to the rows of a segment.
func (r *recurrence) recur(segment, head int, out *array) {
	_, all := r.state(segment)
	k, v := r.shape.KeySize, r.shape.ValueSize
	matrix := all[head*v*k : (head+1)*v*k]
	keyHead := head / (r.shape.ValueHeads / r.shape.KeyHeads)
	keys := r.shape.KeyHeads * k
	end := r.firsts[segment] + r.segments[segment].Length
	for t := r.firsts[segment]; t < end; t++ {
		if draft := r.segments[segment].Draft; draft > 0 && t == end-draft {
			_, kept := r.of(r.held[segment].kept)
			copy(kept[head*v*k:(head+1)*v*k], matrix)
		}
		row := r.mixed.row(t)
		query, key := row[keyHead*k:(keyHead+1)*k], row[keys+keyHead*k:keys+(keyHead+1)*k]
		value, dst := row[2*keys+head*v:2*keys+(head+1)*v], out.row(t)[head*v:(head+1)*v]
		if r.Rule == tensor.StateSpace {
			stays, takes := r.step(t, head)
			for i := range dst {
				dst[i] = spaceRow(matrix[i*k:(i+1)*k], query, key, stays, takes*value[i]) + float32(r.skip[head]*value[i])
			}
			continue
		}
		stays, takes := r.gates(t, head)
		for i := range dst {
			dst[i] = deltaRow(matrix[i*k:(i+1)*k], query, key, stays, takes, value[i])
		}
	}
}

// gates of a row and head: how much of each column of the state stays, which may be
// one number for all, and how much of what is new it takes.
func (r *recurrence) gates(row, head int) (stays []float32, takes float32) {
	n := len(r.bias) / r.shape.ValueHeads
	stays = make([]float32, n)
	for i := range stays {
		x := float64(r.decay.row(row)[head*n+i]) + float64(r.bias[head*n+i])
		stays[i] = float32(math.Exp(-math.Exp(float64(r.rate[head])) * softplus(x)))
	}
	return stays, float32(1 / (1 + math.Exp(-float64(r.beta.row(row)[head]))))
}

// step of a row and head in a state space: how much of the state stays, and the
// size of the step.
func (r *recurrence) step(row, head int) (stays, takes float32) {
	d := softplus(float64(r.decay.row(row)[head]) + float64(r.bias[head]))
	d = min(max(d, float64(r.Low)), float64(r.High))
	return float32(math.Exp(-math.Exp(float64(r.rate[head])) * d)), float32(d)
}

func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

// spaceRow updates one row of the state of a state space and reads it.
func spaceRow(state, query, key []float32, stays, value float32) float32 {
	query, key = query[:len(state)], key[:len(state)]
	for i := range state {
		state[i] = float32(state[i]*stays) + float32(value*key[i])
	}
	return dot(state, query)
}

// deltaRow updates one row of a state and reads it.
func deltaRow(state, query, key, stays []float32, takes, value float32) float32 {
	query, key = query[:len(state)], key[:len(state)]
	for i := range state {
		state[i] *= stays[i%len(stays)]
	}
	delta := takes * (value - dot(state, key))
	for i := range state {
		state[i] += float32(delta * key[i])
	}
	return dot(state, query)
}

// end keeps the rows that the next convolution sees, and counts tokens.
func (r *recurrence) end() {
	for i, g := range r.segments {
		h := r.held[i]
		seen, _ := r.state(i)
		h.keptAt[r.layer] = 0
		if g.Draft > 0 {
			kept, _ := r.of(h.kept)
			r.slide(kept, seen, i, g.Length-g.Draft)
			h.keptAt[r.layer] = g.Start + g.Length - g.Draft
		}
		r.slide(seen, seen, i, g.Length)
		h.recurred[r.layer] += g.Length
	}
}

// slide writes the latest rows after the first n of a segment to dst; seen are those before
// it, and may be dst.
func (r *recurrence) slide(dst, seen []float32, segment, n int) {
	before, keys, width := r.shape.Taps-1, r.shape.KeyHeads*r.shape.KeySize, r.shape.Channels()
	if old := before - n; old > 0 {
		copy(dst, seen[n*width:])
	}
	for at := max(0, n-before); at < n; at++ {
		row, to := r.firsts[segment]+at, dst[(before-n+at)*width:]
		if keys > 0 {
			copy(to, r.q.row(row))
			copy(to[keys:], r.k.row(row))
		}
		copy(to[2*keys:], r.v.row(row))
	}
}
