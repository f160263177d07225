package tensortest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// routeCase is one shape of a router.
type routeCase struct {
	name            string
	tokens, experts int
	biased, each    bool
	spec            tensor.RouteSpec
}

// routeBy compares shares by expert: the order of the chosen is the back end's.
func (s matrixSuite) routeBy(t *testing.T) {
	for _, c := range []routeCase{
		{name: "sigmoid", tokens: 5, experts: 7, spec: tensor.RouteSpec{K: 3, Sigmoid: true}},
		{name: "sigmoid, normalized and scaled", tokens: 33, experts: 64, spec: tensor.RouteSpec{K: 6, Sigmoid: true, Normalized: true, Scale: 2.5}},
		{name: "softmax of all, scaled", tokens: 3, experts: 9, spec: tensor.RouteSpec{K: 2, Scale: 16}},
		{name: "a bias for the choice alone", tokens: 9, experts: 8, biased: true, spec: tensor.RouteSpec{K: 3, Sigmoid: true, Normalized: true}},
		{name: "groups by their best", tokens: 9, experts: 12, spec: tensor.RouteSpec{K: 3, Groups: 4, TopGroups: 2}},
		{name: "groups by pairs, with a bias", tokens: 9, experts: 12, biased: true, spec: tensor.RouteSpec{K: 4, Sigmoid: true, Groups: 3, TopGroups: 1, Pairs: true, Normalized: true, Scale: 1.8}},
		{name: "all groups", tokens: 2, experts: 6, biased: true, spec: tensor.RouteSpec{K: 6, Sigmoid: true, Groups: 2, TopGroups: 2, Pairs: true}},
		{name: "a factor for each expert", tokens: 5, experts: 7, each: true, spec: tensor.RouteSpec{K: 3, Normalized: true}},
		{name: "a least sum", tokens: 5, experts: 7, spec: tensor.RouteSpec{K: 3, Sigmoid: true, Normalized: true, Least: 0.5, Scale: 1.5}},
		{name: "SparseMixer", tokens: 33, experts: 7, spec: tensor.RouteSpec{K: 2, Jitter: 0.3}},
		{name: "SparseMixer of three, nearly all apart", tokens: 17, experts: 9, spec: tensor.RouteSpec{K: 3, Jitter: 0.01}},
		{name: "one expert", tokens: 4, experts: 1, spec: tensor.RouteSpec{K: 1, Sigmoid: true}},
	} {
		t.Run(c.name, func(t *testing.T) { s.routesBy(t, c) })
	}
	for name, spec := range map[string]tensor.RouteSpec{
		"no expert": {K: 0}, "more than there are": {K: 7}, "groups that do not divide": {K: 1, Groups: 4, TopGroups: 1},
		"more groups than there are": {K: 1, Groups: 3, TopGroups: 4}, "more than the groups have": {K: 3, Groups: 3, TopGroups: 1}, "pairs of one": {K: 1, Groups: 6, TopGroups: 2, Pairs: true},
		"a negative jitter": {K: 2, Jitter: -0.1}, "a jitter and normalized shares": {K: 2, Jitter: 0.1, Normalized: true},
	} {
		x := s.open(t)
		x.s.Route(x.s.From(x.random(12), 2, 6), spec)
		if x.s.Err() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func (s matrixSuite) routesBy(t *testing.T, c routeCase) {
	x := s.open(t)
	scores := x.random(c.tokens * c.experts)
	var bias []float32
	if c.biased {
		bias = x.random(c.experts)
		c.spec.Bias = x.s.From(bias, c.experts)
	}
	each := make([]float32, c.experts)
	for i := range each {
		each[i] = 1
	}
	if c.each {
		each = x.random(c.experts)
		c.spec.Each = x.s.From(each, c.experts)
	}
	ids, shares := x.s.Route(x.s.From(scores, c.tokens, c.experts), c.spec)
	k := c.spec.K
	chosen := make([]int32, c.tokens*k)
	x.s.ReadIDs(ids, chosen)
	got := x.read(shares)
	for r := range c.tokens {
		want := routeOracle(scores[r*c.experts:(r+1)*c.experts], bias, c.spec)
		var made []float32
		var wanted []float64
		for _, id := range sortedByShare(want) {
			at := slices.Index(chosen[r*k:(r+1)*k], id)
			if at < 0 {
				t.Fatalf("row %d is routed to %v, want %v", r, chosen[r*k:(r+1)*k], want)
			}
			made, wanted = append(made, got[r*k+at]), append(wanted, want[id]*float64(each[id]))
		}
		s.near(t, fmt.Sprintf("shares of row %d", r), made, wanted)
	}
}

func sortedByShare(shares map[int32]float64) []int32 {
	var ids []int32
	for id := range shares {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b int32) int { return cmp.Compare(shares[b], shares[a]) })
	return ids
}

// routeOracle gives the shares of the experts that a row is routed to.
func routeOracle(scores, bias []float32, spec tensor.RouteSpec) map[int32]float64 {
	if spec.Jitter > 0 {
		return mixOracle(scores, spec.K, float64(spec.Jitter))
	}
	weights, sum := make([]float64, len(scores)), 0.0
	for i, v := range scores {
		weights[i] = math.Exp(float64(v))
		sum += weights[i]
	}
	wanted := make([]float64, len(scores))
	for i, v := range scores {
		if weights[i] /= sum; spec.Sigmoid {
			weights[i] = 1 / (1 + math.Exp(-float64(v)))
		}
		if wanted[i] = weights[i]; bias != nil {
			wanted[i] += float64(bias[i])
		}
	}
	order := func(n int, by func(int) float64) []int {
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(by(b), by(a)) })
		return all
	}
	if spec.Groups > 1 {
		size := len(scores) / spec.Groups
		best := order(spec.Groups, func(g int) float64 {
			in := slices.Sorted(slices.Values(wanted[g*size : (g+1)*size]))
			if spec.Pairs {
				return in[size-1] + in[size-2]
			}
			return in[size-1]
		})
		for _, g := range best[spec.TopGroups:] {
			for i := range size {
				wanted[g*size+i] = math.Inf(-1)
			}
		}
	}
	out, total := map[int32]float64{}, float64(spec.Least)
	for _, i := range order(len(scores), func(i int) float64 { return wanted[i] })[:spec.K] {
		out[int32(i)] = weights[i]
		total += weights[i]
	}
	for id := range out {
		if spec.Normalized {
			out[id] /= total
		}
		if spec.Scale != 0 {
			out[id] *= float64(spec.Scale)
		}
	}
	return out
}

// mixOracle gives the shares of SparseMixer.
func mixOracle(scores []float32, k int, jitter float64) map[int32]float64 {
	out := map[int32]float64{}
	for range k {
		best, sum := int32(-1), 0.0
		for i, v := range scores {
			if _, chosen := out[int32(i)]; !chosen && (best < 0 || v > scores[best]) {
				best = int32(i)
			}
		}
		top := float64(scores[best])
		for i, v := range scores {
			v := float64(v)
			if _, chosen := out[int32(i)]; !chosen && (top-v)/max(math.Abs(v), top) <= 2*jitter {
				sum += math.Exp(v - top)
			}
		}
		out[best] = 1 / sum
	}
	return out
}

// curves are activations of one operand.
func (s elementSuite) curves(t *testing.T) {
	x := s.open(t)
	v := x.random(3 * 1031)
	v[0], v[1], v[2], v[3] = 0, -30, 30, -1e-7
	square, curve := make([]float64, len(v)), make([]float64, len(v))
	const positive, negative, beta, eps = 0.8, 1.3, 0.5, -1e-6
	for i, f := range v {
		u := float64(f)
		square[i] = math.Max(0, u) * math.Max(0, u)
		if curve[i] = positive*u*u + beta*u; u <= 0 {
			curve[i] = (math.Expm1(math.Min(u, eps))-u)*negative + beta*u
		}
	}
	in := x.s.From(v, 3, 1031)
	s.near(t, "ReLU2", x.read(x.s.Map(in, tensor.ReLU2{})), square)
	s.near(t, "XIELU", x.read(x.s.Map(in, tensor.XIELU{Positive: positive, Negative: negative, Beta: beta, Eps: eps})), curve)
}
