package ref

import (
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// unselected is the score of a token that the indexer leaves out: its weight is 0.
const unselected = -math.MaxFloat32 / 4

// indexed returns the tokens that the indexer selects for each row of a step, in
// ascending order. It is nil for a row that sees no more than TopK tokens, and
// without an indexer.
func (s *scope) indexed(c *cache, spec *tensor.AttendSpec) [][]int32 {
	if spec.Indexer == nil {
		return nil
	}
	q, _ := s.operand("AppendAttend", spec.Indexer.Q, 2)
	w, _ := s.operand("AppendAttend", spec.Indexer.Weights, 2)
	if s.failed() {
		return nil
	}
	var positions []int
	var holders []*held
	for _, g := range spec.Segments {
		for i := range g.Length {
			positions, holders = append(positions, g.Start+i), append(holders, c.requests[g.Request])
		}
	}
	out := make([][]int32, len(positions))
	size, stride := spec.Indexer.Size, c.spec.HeadsOf(spec.Layer).HeadSize
	s.b.workers.run(len(positions), func(worker, row int) {
		n, sc := positions[row]+1, &s.b.scratch[worker]
		if n <= spec.Indexer.TopK {
			return
		}
		scores, queries, weights := grow(&sc.scores, n), q.row(row), w.row(row)
		for at := 0; at < n; at += tile {
			keys, _ := c.span(holders[row], spec.Layer, 0, at, min(tile, n-at), &sc.span)
			for i := range min(tile, n-at) {
				key, sum := keys[(i+1)*stride-size:(i+1)*stride], float32(0)
				for h, by := range weights {
					sum += float32(by * max(0, dot(queries[h*size:(h+1)*size], key)))
				}
				scores[at+i] = sum
			}
		}
		out[row] = largest(scores, spec.Indexer.TopK)
	})
	return out
}

// largest returns the places of the n largest scores in ascending order, the
// lowest places among equals.
func largest(scores []float32, n int) []int32 {
	sorted := slices.Clone(scores)
	slices.Sort(sorted)
	sorted = sorted[len(sorted)-n:]
	least, equal := sorted[0], 0
	for equal < n && sorted[equal] == least {
		equal++
	}
	out := make([]int32, 0, n)
	for i, v := range scores {
		switch {
		case v > least:
			out = append(out, int32(i))
		case v == least && equal > 0:
			out, equal = append(out, int32(i)), equal-1
		}
	}
	return out
}

// widened adds zeros to the heads of queries, so that they are as long as keys.
func widened(q *array, size, to int) *array {
	heads := q.shape[1] / size
	out := &array{shape: []int{q.shape[0], heads * to}, data: make([]float32, q.shape[0]*heads*to)}
	for t := range q.shape[0] {
		src, dst := q.row(t), out.row(t)
		for h := range heads {
			copy(dst[h*to:h*to+size], src[h*size:])
		}
	}
	return out
}

// restrict gives the tokens that the indexer left out no weight.
func (a *attention) restrict(q *query) {
	if a.indexed == nil || a.indexed[q.row] == nil {
		return
	}
	next := a.indexed[q.row]
	for i := range q.scores {
		if len(next) > 0 && int(next[0]) == i {
			next = next[1:]
			continue
		}
		q.scores[i] = unselected
	}
}
