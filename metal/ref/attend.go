package ref

import (
	"fmt"
	"math"

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
	heads := c.spec.HeadsOf(spec.Layer)
	size := spec.QuerySize(heads)
	out := s.array("AppendAttend", q.shape[0], q.shape[1]/size*heads.ValueSize)
	if s.failed() {
		return out
	}
	for _, g := range spec.Segments {
		start := g.Start
		if k == nil {
			start += g.Length
		}
		if has := c.of(g.Request).lengths[spec.Layer]; has != start {
			s.fail(fmt.Errorf("AppendAttend: request %d, layer %d has %d tokens, want %d: %w", g.Request, spec.Layer, has, start, tensor.ErrSegment))
			return out
		}
	}
	if err := c.extend(spec, k, v); err != nil {
		s.fail(fmt.Errorf("AppendAttend: %w", err))
		return out
	}
	indexed := s.indexed(c, &spec)
	if s.failed() {
		return out
	}
	if spec.Indexer != nil {
		q = widened(q, size, heads.HeadSize)
	}
	looks := c.looks(spec, q.shape[1]/heads.HeadSize, s.b.workers.size)
	s.b.workers.run(len(looks), func(worker, task int) {
		a := attention{c: c, spec: &spec, look: looks[task], indexed: indexed, queries: s.b.scratch[worker].queries[:0]}
		a.begin(&s.b.scratch[worker], q, out)
		a.attend(&s.b.scratch[worker])
	})
	return out
}

// extend appends the keys and values of a step to a layer.
func (c *cache) extend(spec tensor.AttendSpec, k, v *array) error {
	if k == nil {
		return nil
	}
	row := 0
	for _, g := range spec.Segments {
		h, err := c.reserve(g.Request, g.Start+g.Length)
		if err != nil {
			return err
		}
		c.append(h, spec.Layer, g.Start, k, v, row, g.Length)
		row += g.Length
	}
	return nil
}

func (s *scope) attendOperands(spec tensor.AttendSpec) (q, k, v *array, c *cache, err error) {
	c, ok := spec.Cache.(*cache)
	if !ok || c.released {
		return nil, nil, nil, nil, fmt.Errorf("AppendAttend: cache: %w", tensor.ErrReleased)
	}
	q, _ = s.operand("AppendAttend", spec.Q, 2)
	heads := c.spec.HeadsOf(spec.Layer)
	if spec.K != nil {
		k, _ = s.operand("AppendAttend", spec.K, 2)
		if !heads.Within {
			v, _ = s.operand("AppendAttend", spec.V, 2)
		}
	}
	if x := spec.Indexer; x != nil {
		_, _ = s.operand("AppendAttend", x.Q, 2)
		_, _ = s.operand("AppendAttend", x.Weights, 2)
	}
	if s.failed() {
		return nil, nil, nil, nil, s.Err()
	}
	tokens := q.shape[0]
	misfit := func(a *array, size int) bool {
		return a != nil && (a.shape[0] != tokens || a.shape[1] != heads.KVHeads*size)
	}
	_, mutual := tensor.Positions(spec.Mutual, spec.Segments)
	switch {
	case spec.Layer < 0 || spec.Layer >= c.spec.Layers,
		tokens != tensor.Tokens(spec.Segments), misfit(k, heads.HeadSize), misfit(v, heads.ValueSize),
		!spec.Indexer.Fits(spec, heads), q.shape[1]%(heads.KVHeads*spec.QuerySize(heads)) != 0,
		spec.Sinks != nil && len(spec.Sinks) != q.shape[1]/spec.QuerySize(heads), !mutual,
		spec.Window < 0, spec.Cap < 0, !spec.ChunksFit(), c.spec.WindowOf(spec.Layer) > 0 && (spec.Window == 0 || spec.Window > c.spec.WindowOf(spec.Layer)):
		return nil, nil, nil, nil, &tensor.ShapeError{Op: "AppendAttend", Detail: fmt.Sprintf("q %v, k and v as %+v, %d rows in segments, layer %d of %+v",
			q.shape, heads, tensor.Tokens(spec.Segments), spec.Layer, c.spec)}
	}
	return q, k, v, c, nil
}

const (
	// tile is how many positions all queries of a look meet before any meets the
	// next: their keys, or values, stay in the nearest cache meanwhile.
	tile = 64
	// A task has at most mostQueries queries of the same keys, and at most
	// mostScores scores unless one query has more.
	mostQueries, mostScores = 12, 1 << 18
	// shares is the minimum number of tasks per worker, so that the last task
	// does not keep the others waiting for long.
	shares = 2
)

// look is a task: rows of one request and heads of each that share the keys and
// values of one KV head.
type look struct {
	held *held
	// row of the step that is the first, and its position.
	row, position, rows int
	// runs are positions of tokens that see one another.
	runs                [][2]int
	kvHead, head, heads int
}

// looks cuts a step into tasks: those that see the same keys together, as far as
// there remains work for everybody.
func (c *cache) looks(spec tensor.AttendSpec, heads, workers int) []look {
	segments := spec.Segments
	runs, _ := tensor.Positions(spec.Mutual, segments)
	kvHeads := c.spec.HeadsOf(spec.Layer).KVHeads
	most := min(mostQueries, max(1, tensor.Tokens(segments)*heads/(shares*workers)))
	each := heads / kvHeads
	var all []look
	row := 0
	for i, g := range segments {
		together := max(1, min(most, mostScores/max(1, g.Start+g.Length)))
		wide := min(each, together)
		high := max(1, together/wide)
		for kvHead := range kvHeads {
			for at := 0; at < g.Length; at += high {
				for first := 0; first < each; first += wide {
					all = append(all, look{
						held: c.requests[g.Request], row: row + at, position: g.Start + at, rows: min(high, g.Length-at),
						runs: runs[i], kvHead: kvHead, head: kvHead*each + first, heads: min(wide, each-first),
					})
				}
			}
		}
		row += g.Length
	}
	return all
}

// end is the position after the last that a token sees.
func (l look) end(position int) int {
	for _, r := range l.runs {
		if r[0] <= position && position < r[1] {
			return r[1]
		}
	}
	return position + 1
}

// query is one row against one head: what it sees lies from position first up to
// end.
type query struct {
	q, out, scores []float32
	first, end     int
	head, row      int
	sum            float32
}

// attention is one look under way.
type attention struct {
	c       *cache
	spec    *tensor.AttendSpec
	look    look
	indexed [][]int32 // by row of the step
	queries []query
	vectors bool
}

// begin finds every query and its place for scores.
func (a *attention) begin(sc *scratch, q, out *array) {
	heads := a.c.spec.HeadsOf(a.spec.Layer)
	size, wide := heads.HeadSize, heads.ValueSize
	a.vectors = a.c.b.vectors && size%lanes == 0 && wide%lanes == 0
	room := a.look.end(a.look.position + a.look.rows - 1)
	scores := grow(&sc.scores, room*a.look.rows*a.look.heads)
	for r := range a.look.rows {
		for h := range a.look.heads {
			head, position := a.look.head+h, a.look.position+r
			first, end := a.spec.First(position), a.look.end(position)
			a.queries = append(a.queries, query{
				q: q.row(a.look.row + r)[head*size : (head+1)*size], out: out.row(a.look.row + r)[head*wide : (head+1)*wide], scores: scores[:end-first],
				first: first, end: end, head: head, row: a.look.row + r,
			})
			scores = scores[room:]
		}
	}
}

// attend computes softmax(scale q k) v of every query over its visible positions
// in order: the bits are those of the query alone.
func (a *attention) attend(sc *scratch) {
	a.tiles(sc, func(q *query, from, to int, keys, _ []float32) {
		scores := q.scores[from-q.first : to-q.first]
		if a.vectors {
			vectorDotRows(scores, q.q, keys, len(q.q), a.spec.Scale)
		} else {
			dotRows(scores, q.q, keys, len(q.q), a.spec.Scale)
		}
	})
	for i := range a.queries {
		a.bound(a.queries[i].scores)
		a.restrict(&a.queries[i])
		a.exponentials(&a.queries[i])
	}
	sums(a.queries)
	a.tiles(sc, func(q *query, from, to int, _, values []float32) {
		if p := q.scores[from-q.first : to-q.first]; a.vectors {
			vectorAccumulate(q.out, values, p)
		} else {
			accumulate(q.out, values, p)
		}
	})
	for i := range a.queries {
		q := &a.queries[i]
		scaleBy(q.out, 1/q.sum)
	}
}

// dotRows is dot for len(out) rows, scaled. The rows are as long as q, and one
// begins every stride elements.
//
//go:norace
//go:nocheckptr
func dotRows(out, q, rows []float32, stride int, scale float32) {
	for i := range out {
		out[i] = dot(q, rows[i*stride:i*stride+len(q)]) * scale
	}
}

//go:norace
func scaleBy(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// highest is the highest of all x and of top.
//
//go:norace
func highest(x []float32, top float32) float32 {
	for _, v := range x {
		top = max(top, v)
	}
	return top
}

// bound bounds scores, where they are to be.
func (a *attention) bound(scores []float32) {
	by := a.spec.Cap
	if by == 0 {
		return
	}
	for i, v := range scores {
		scores[i] = float32(by * float32(math.Tanh(float64(v/by))))
	}
}

// exponentials makes the scores of a query what they weigh, and begins their sum
// with the sink.
func (a *attention) exponentials(q *query) {
	top := q.scores[0]
	if a.spec.Sinks != nil {
		top = max(top, a.spec.Sinks[q.head])
	}
	if a.vectors {
		top = vectorMax(q.scores, top)
		vectorExp(q.scores, top)
	} else {
		top = highest(q.scores, top)
		exponentials(q.scores, top)
	}
	q.sum = 0
	if a.spec.Sinks != nil {
		q.sum = exp(a.spec.Sinks[q.head] - top)
	}
	clear(q.out)
}

// sums adds up what the scores of each query weigh, each in order. Four queries
// go side by side, the last of fewer more than once: one alone would wait for
// every addition to end.
//
//go:norace
func sums(queries []query) {
	for ; len(queries) > 1; queries = queries[min(4, len(queries)):] {
		last := min(4, len(queries)) - 1
		a, b, c, d := &queries[0], &queries[1], &queries[min(2, last)], &queries[last]
		n := min(len(a.scores), len(b.scores), len(c.scores), len(d.scores))
		w, x, y, z := a.scores[:n], b.scores[:n], c.scores[:n], d.scores[:n]
		e, f, g, h := a.sum, b.sum, c.sum, d.sum
		for i := range n {
			e, f, g, h = e+w[i], f+x[i], g+y[i], h+z[i]
		}
		a.sum, b.sum, c.sum, d.sum = e, f, g, h
		for i := range last + 1 {
			queries[i].add(n)
		}
	}
	for i := range queries {
		queries[i].add(0)
	}
}

// add adds up what the scores from one on weigh.
//
//go:norace
func (q *query) add(from int) {
	for _, e := range q.scores[from:] {
		q.sum += e
	}
}

// tiles visits for every query the part of each tile that it sees. Tiles begin at
// multiples of their size, however a cache is cut into blocks.
func (a *attention) tiles(sc *scratch, visit func(q *query, from, to int, keys, values []float32)) {
	heads := a.c.spec.HeadsOf(a.spec.Layer)
	size, wide := heads.HeadSize, heads.ValueSize
	first, end := a.queries[0].first, a.queries[len(a.queries)-1].end
	for at := first; at < end; {
		n := min(tile-at%tile, end-at)
		keys, values := a.c.span(a.look.held, a.spec.Layer, a.look.kvHead, at, n, &sc.span)
		for i := range a.queries {
			q := &a.queries[i]
			if from, to := max(at, q.first), min(at+n, q.end); from < to {
				visit(q, from, to, keys[(from-at)*size:(to-at)*size], values[(from-at)*wide:(to-at)*wide])
			}
		}
		at += n
	}
}

// accumulate adds the rows of v, each times its p, to out: four rows at a time
// and then the rest. Which rows stand together depends on the position of the
// query alone: tiles begin at the same positions wherever a block ends.
//
//go:norace
//go:nocheckptr
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
