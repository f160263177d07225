package ref

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// AppendAttend extends the cache by the keys and values of a step, then lets
// every query see the keys up to its own position.
func (s *scope) AppendAttend(spec tensor.AttendSpec) tensor.Array {
	q, k, v, c, err := s.attendOperands(spec)
	if err != nil {
		s.fail(err)
	}
	if s.failed() {
		return &array{}
	}
	out := s.array("AppendAttend", q.shape...)
	if s.failed() {
		return out
	}
	rows := make([]query, 0, q.shape[0])
	for _, g := range spec.Segments {
		if has := c.of(g.Request).lengths[spec.Layer]; has != g.Start {
			s.fail(fmt.Errorf("AppendAttend: request %d, layer %d holds %d tokens, segment starts at %d: %w", g.Request, spec.Layer, has, g.Start, tensor.ErrSegment))
			return out
		}
	}
	for _, g := range spec.Segments {
		h, err := c.reserve(g.Request, g.Start+g.Length)
		if err != nil {
			s.fail(fmt.Errorf("AppendAttend: %w", err))
			return out
		}
		c.append(h, spec.Layer, g.Start, k, v, len(rows), g.Length)
		for i := range g.Length {
			rows = append(rows, query{h, g.Start + i})
		}
	}
	heads := q.shape[1] / c.spec.HeadSize
	s.b.workers.run(len(rows)*heads, func(worker, task int) {
		t, head := task/heads, task%heads
		a := attention{c: c, spec: &spec, query: rows[t], head: head, kvHead: head / (heads / c.spec.KVHeads)}
		at := head * c.spec.HeadSize
		a.attend(&s.b.scratch[worker], q.row(t)[at:at+c.spec.HeadSize], out.row(t)[at:at+c.spec.HeadSize])
	})
	return out
}

func (s *scope) attendOperands(spec tensor.AttendSpec) (q, k, v *array, c *cache, err error) {
	c, ok := spec.Cache.(*cache)
	if !ok || c.released {
		return nil, nil, nil, nil, fmt.Errorf("AppendAttend: cache: %w", tensor.ErrReleased)
	}
	q, _ = s.operand("AppendAttend", spec.Q, 2)
	k, _ = s.operand("AppendAttend", spec.K, 2)
	v, _ = s.operand("AppendAttend", spec.V, 2)
	if s.failed() {
		return nil, nil, nil, nil, s.Err()
	}
	width, tokens := c.spec.KVHeads*c.spec.HeadSize, q.shape[0]
	switch {
	case spec.Layer < 0 || spec.Layer >= c.spec.Layers,
		tokens != tensor.Tokens(spec.Segments),
		k.shape[0] != tokens || v.shape[0] != tokens || k.shape[1] != width || v.shape[1] != width,
		q.shape[1]%width != 0,
		spec.Sinks != nil && len(spec.Sinks) != q.shape[1]/c.spec.HeadSize,
		spec.Window < 0, c.spec.WindowOf(spec.Layer) > 0 && (spec.Window == 0 || spec.Window > c.spec.WindowOf(spec.Layer)):
		return nil, nil, nil, nil, &tensor.ShapeError{Op: "AppendAttend", Detail: fmt.Sprintf("q %v, k %v, v %v, %d rows in segments, layer %d of %+v",
			q.shape, k.shape, v.shape, tensor.Tokens(spec.Segments), spec.Layer, c.spec)}
	}
	return q, k, v, c, nil
}

// query is one row of a step: whose, and where it stands.
type query struct {
	held     *held
	position int
}

// attention is one query against one head.
type attention struct {
	c            *cache
	spec         *tensor.AttendSpec
	query        query
	head, kvHead int
}

// attend computes softmax(scale q k) v over the visible positions in order.
func (a *attention) attend(sc *scratch, q, out []float32) {
	first := 0
	if a.spec.Window > 0 {
		first = max(0, a.query.position+1-a.spec.Window)
	}
	scores := grow(&sc.scores, a.query.position+1-first)
	size := a.c.spec.HeadSize
	vectors := a.c.b.vectors && size%lanes == 0
	a.blocks(first, func(at, n int, keys, _ []float32) {
		if vectors {
			vectorDotRows(scores[at:at+n], q, keys, a.spec.Scale)
			return
		}
		for i := range n {
			scores[at+i] = dot(q, keys[i*size:(i+1)*size]) * a.spec.Scale
		}
	})
	top := scores[0]
	if a.spec.Sinks != nil {
		top = max(top, a.spec.Sinks[a.head])
	}
	for _, v := range scores {
		top = max(top, v)
	}
	var sum float32
	if a.spec.Sinks != nil {
		sum = exp(a.spec.Sinks[a.head] - top)
	}
	if vectors {
		vectorExp(scores, top)
	} else {
		exponentials(scores, top)
	}
	for _, e := range scores {
		sum += e
	}
	clear(out)
	a.blocks(first, func(at, n int, _, values []float32) {
		if vectors {
			vectorAccumulate(out, values, scores[at:at+n])
			return
		}
		accumulate(out, values, scores[at:at+n])
	})
	inverse := 1 / sum
	for i := range out {
		out[i] *= inverse
	}
}

// blocks visits the visible positions block by block, n tokens each; at counts
// from the first visible one. Blocks begin at multiples of their size however
// tokens lie, so that the same ones stand together in every layer and request.
func (a *attention) blocks(first int, visit func(at, n int, keys, values []float32)) {
	block, end := a.c.spec.BlockTokens, a.query.position+1
	for from := first; from < end; {
		n := min(block-from%block, end-from)
		keys, values := a.c.tokens(a.query.held, a.spec.Layer, a.kvHead, from, n)
		visit(from-first, n, keys, values)
		from += n
	}
}

// accumulate adds the rows of v, each times its p, to out: four rows at a time
// and then the rest. Which rows stand together depends on the position of the
// query alone.
func accumulate(out, v, p []float32) {
	n := len(out)
	for ; len(p) >= 4; p, v = p[4:], v[4*n:] {
		p0, p1, p2, p3 := p[0], p[1], p[2], p[3]
		v0, v1, v2, v3 := v[:n], v[n:2*n], v[2*n:3*n], v[3*n:4*n]
		for i := range out {
			out[i] += (float32(p0*v0[i]) + float32(p1*v1[i])) + (float32(p2*v2[i]) + float32(p3*v3[i]))
		}
	}
	for j, f := range p {
		for i, w := range v[j*n : (j+1)*n] {
			out[i] += float32(f * w)
		}
	}
}
