package ref

import (
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// Route chooses experts, the lowest id among equal ones. The chosen experts do not depend
// on other rows. In float32 it does not matter when a softmax is taken.
func (s *mixture) Route(scores tensor.Array, spec tensor.RouteSpec) (chosen, shares tensor.Array) {
	in, ok := s.operand("Route", scores, 2)
	if !ok {
		return &array{}, &array{}
	}
	experts := in.shape[1]
	var vectors [2][]float32
	for i, a := range []tensor.Array{spec.Bias, spec.Each} {
		if a == nil {
			continue
		}
		b, ok := s.operand("Route", a, 1)
		if !ok {
			return &array{}, &array{}
		}
		if vectors[i] = b.data; len(b.data) != experts {
			s.fail(&tensor.ShapeError{Op: "Route", Detail: fmt.Sprintf("%v and a vector of %d", in.shape, len(b.data))})
		}
	}
	if err := spec.Check(experts); err != nil {
		s.fail(&tensor.ShapeError{Op: "Route", Detail: fmt.Sprintf("%v: %v", in.shape, err)})
	}
	if s.failed() {
		return &array{}, &array{}
	}
	ids := s.idArray("Route", in.shape[0]*spec.K)
	out := s.array("Route", in.shape[0], spec.K)
	if s.failed() {
		return ids, out
	}
	r := router{spec: spec, bias: vectors[0], each: vectors[1], weights: make([]float32, experts), wanted: make([]float32, experts), groups: make([]float32, max(1, spec.Groups))}
	for t := range in.shape[0] {
		r.row(in.row(t), ids.ids[t*spec.K:(t+1)*spec.K], out.row(t))
	}
	return ids, out
}

// router is one Route under way.
type router struct {
	spec                  tensor.RouteSpec
	bias, weights, wanted []float32
	each                  []float32
	groups                []float32
}

// row chooses for one row of scores.
func (r *router) row(row []float32, ids []int32, shares []float32) {
	switch {
	case r.spec.Jitter > 0:
		r.mix(row, ids, shares)
	case r.spec.Rounded || r.spec.SoftmaxLast:
		route(row, ids, shares, r.spec.Normalized || r.spec.SoftmaxLast)
	default:
		r.route(row, ids, shares)
	}
}

func (r *router) route(row []float32, ids []int32, shares []float32) {
	r.weigh(row)
	copy(r.wanted, r.weights)
	for i, b := range r.bias {
		r.wanted[i] += b
	}
	if r.spec.Groups > 1 {
		r.exclude()
	}
	choose(r.wanted, ids)
	sum, scale := float32(1), r.spec.Scale
	if r.spec.Normalized {
		sum = r.spec.Least
		for _, i := range ids {
			sum += r.weights[i]
		}
	}
	if scale == 0 {
		scale = 1
	}
	for j, i := range ids {
		shares[j] = float32(r.weights[i]/sum) * scale
		if r.each != nil {
			shares[j] *= r.each[i]
		}
	}
}

// mix chooses by SparseMixer.
func (r *router) mix(row []float32, ids []int32, shares []float32) {
	copy(r.wanted, row)
	for j := range ids {
		choose(r.wanted, ids[j:j+1])
		best := r.wanted[ids[j]]
		sum := float32(0)
		for i, v := range row {
			if !((best-v)/max(best, -v, v) > 2*r.spec.Jitter) {
				sum += exp(r.wanted[i] - best)
			}
		}
		shares[j] = 1 / sum
		r.wanted[ids[j]] = float32(math.Inf(-1))
	}
}

// weigh fills the weights of a row.
func (r *router) weigh(row []float32) {
	if r.spec.Sigmoid {
		for i, v := range row {
			r.weights[i] = 1 / (1 + exp(-v))
		}
		return
	}
	top, sum := row[0], float32(0)
	for _, v := range row {
		top = max(top, v)
	}
	for i, v := range row {
		r.weights[i] = exp(v - top)
		sum += r.weights[i]
	}
	for i := range r.weights {
		r.weights[i] /= sum
	}
}

// exclude keeps experts out of the choice whose group is not among the best.
func (r *router) exclude() {
	size := len(r.wanted) / r.spec.Groups
	for g := range r.groups {
		first, second := float32(math.Inf(-1)), float32(math.Inf(-1))
		for _, v := range r.wanted[g*size : (g+1)*size] {
			switch {
			case v > first:
				first, second = v, first
			case v > second:
				second = v
			}
		}
		if r.groups[g] = first; r.spec.Pairs {
			r.groups[g] += second
		}
	}
	best := make([]int32, r.spec.TopGroups)
	choose(r.groups, best)
	for g := range r.groups {
		if slices.Contains(best, int32(g)) {
			continue
		}
		for i := range size {
			r.wanted[g*size+i] = float32(math.Inf(-1))
		}
	}
}

// choose fills ids with the places of the largest, in falling order, the lowest
// among equals.
func choose(row []float32, ids []int32) {
	n := 0
	for i := range row {
		at := n
		for at > 0 && row[i] > row[ids[at-1]] { // a NaN is larger than nothing
			at--
		}
		if at == len(ids) {
			continue
		}
		n = min(n+1, len(ids))
		copy(ids[at+1:n], ids[at:n-1])
		ids[at] = int32(i)
	}
}

// route fills the chosen ids and shares of one row.
func route(row []float32, ids []int32, shares []float32, normalized bool) {
	choose(row, ids)
	top := row[ids[0]]
	var sum float32
	if normalized {
		for _, i := range ids {
			sum += exp(row[i] - top)
		}
	} else {
		for _, v := range row {
			sum += exp(v - top)
		}
	}
	for j, i := range ids {
		shares[j] = exp(row[i]-top) / sum
	}
}
