package tensortest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// routed is who a row of scores goes to, by falling score, and the shares.
func routed(scores []float32, k int, normalized bool) (chosen []int32, shares []float64) {
	order := make([]int32, len(scores))
	sum := 0.0
	for i := range order {
		order[i] = int32(i)
		sum += math.Exp(float64(scores[i]))
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(scores[b], scores[a]) })
	if normalized {
		sum = 0
		for _, i := range order[:k] {
			sum += math.Exp(float64(scores[i]))
		}
	}
	for _, i := range order[:k] {
		shares = append(shares, math.Exp(float64(scores[i]))/sum)
	}
	return order[:k], shares
}

func (s matrixSuite) route(t *testing.T) { s.routes(t, false) }

func (s matrixSuite) routeTop(t *testing.T) { s.routes(t, true) }

// routes compares shares by expert: the order of the chosen is the back end's.
// At the top all shares are normalized.
func (s matrixSuite) routes(t *testing.T, top bool) {
	for _, c := range []struct {
		tokens, experts, k int
		normalized         bool
	}{{1, 4, 1, false}, {1, 4, 1, true}, {5, 8, 3, true}, {5, 8, 3, false}, {2, 6, 6, true}, {33, 128, 8, true}} {
		if top && !c.normalized {
			continue
		}
		t.Run(fmt.Sprintf("%d of %d, %v", c.k, c.experts, c.normalized), func(t *testing.T) {
			x := s.open(t)
			scores := x.random(c.tokens * c.experts)
			ids, shares := x.s.Route(x.s.From(scores, c.tokens, c.experts), tensor.RouteSpec{K: c.k, Normalized: c.normalized, Rounded: true})
			if top {
				ids, shares = x.s.Route(x.s.From(scores, c.tokens, c.experts), tensor.RouteSpec{K: c.k, SoftmaxLast: true})
			}
			chosen := make([]int32, c.tokens*c.k)
			x.s.ReadIDs(ids, chosen)
			got := x.read(shares)
			for r := range c.tokens {
				who, want := routed(scores[r*c.experts:(r+1)*c.experts], c.k, c.normalized)
				var sorted []float32
				for _, id := range who {
					at := slices.Index(chosen[r*c.k:(r+1)*c.k], id)
					if at < 0 {
						t.Fatalf("row %d is routed to %v, want %v", r, chosen[r*c.k:(r+1)*c.k], who)
					}
					sorted = append(sorted, got[r*c.k+at])
				}
				s.near(t, "shares", sorted, want)
			}
		})
	}
	t.Run("of scores that are no numbers", func(t *testing.T) {
		x := s.open(t)
		nan := float32(math.NaN())
		ids, _ := x.s.Route(x.s.From([]float32{nan, nan, nan, 1, nan, 2, nan, nan}, 2, 4), tensor.RouteSpec{K: 2, Normalized: true, Rounded: true})
		if top {
			ids, _ = x.s.Route(x.s.From([]float32{nan, nan, nan, 1, nan, 2, nan, nan}, 2, 4), tensor.RouteSpec{K: 2, SoftmaxLast: true})
		}
		chosen := make([]int32, 4)
		x.s.ReadIDs(ids, chosen)
		if err := x.s.Err(); err != nil {
			t.Fatal(err)
		}
		for r := range 2 {
			if a, b := chosen[2*r], chosen[2*r+1]; a == b || min(a, b) < 0 || max(a, b) > 3 {
				t.Errorf("row %d is routed to experts %d and %d of 4", r, a, b)
			}
		}
	})
}

// linearEach multiplies heads by matrices of their own, in every format.
func (s matrixSuite) linearEach(t *testing.T) {
	for _, f := range formats() {
		t.Run(f.String(), func(t *testing.T) {
			for _, c := range []struct{ rows, heads, out, groups int }{{1, 3, 5, 1}, {4, 1, 33, 2}, {40, 3, 7, 2}} {
				x := s.open(t)
				in := width(f, c.groups)
				m, values := x.matrix(f, c.heads*c.out, in)
				v := x.random(c.rows * c.heads * in)
				want := make([]float64, 0, c.rows*c.heads*c.out)
				for r := range c.rows * c.heads {
					for o := range c.out {
						sum := 0.0
						for i := range in {
							sum += float64(v[r*in+i]) * values[r%c.heads*c.out+o][i]
						}
						want = append(want, sum)
					}
				}
				got := x.s.LinearEach(x.s.From(v, c.rows, c.heads*in), m, c.heads)
				if err := x.s.Err(); errors.Is(err, tensor.ErrUnsupported) {
					return // of dense heads that a back end does not have
				}
				s.near(t, fmt.Sprintf("%d rows of %d heads", c.rows, c.heads), x.read(got), want)
			}
		})
	}
}

// chooseAny makes ids of experts, different for each row.
func chooseAny(rows, k, experts int) []int32 {
	out := make([]int32, rows*k)
	for i := range out {
		out[i] = int32((i%k + i/k*3) % experts)
	}
	return out
}

// linearOf compares with the oracle in every format: few rows and many (back
// ends sort them then), one expert per row and several, and an expert that was
// not chosen.
func (s matrixSuite) linearOf(t *testing.T) {
	for _, f := range formats() {
		t.Run(f.String(), func(t *testing.T) {
			for _, c := range []struct{ rows, k, experts, out, groups int }{{1, 2, 3, 5, 1}, {9, 1, 4, 33, 2}, {5, 3, 6, 20, 5}, {40, 2, 5, 7, 2}, {70, 1, 3, 9, 1}} {
				x := s.open(t)
				in := width(f, c.groups)
				a, av := x.matrix(f, c.experts*c.out, in)
				b, bv := x.matrix(f, c.experts*3, in)
				v, ids := x.random(c.rows*in), chooseAny(c.rows, c.k, c.experts)
				outs := x.s.LinearOf(x.s.From(v, c.rows, in), x.s.IDs(ids), c.experts, a, b)
				s.productsOf(t, "first product", x.read(outs[0]), v, av, ids, c.k, c.out)
				s.productsOf(t, "second product", x.read(outs[1]), v, bv, ids, c.k, 3)
			}
		})
	}
}

// productsOf compares with the oracle, relative to the largest sum of absolute
// values.
func (s matrixSuite) productsOf(t *testing.T, what string, got, x []float32, m [][]float64, ids []int32, k, out int) {
	t.Helper()
	in := len(m[0])
	var want []float64
	top := 0.0
	for i, id := range ids {
		part, size := product(x[i/k*in:(i/k+1)*in], m[int(id)*out:(int(id)+1)*out], 1, in)
		want, top = append(want, part...), max(top, size)
	}
	s.nearOf(t, what, got, want, top)
}

// independentOf checks that each row's result does not depend on the other
// rows: as if its expert were a matrix of its own.
func (s matrixSuite) independentOf(t *testing.T) {
	for _, f := range []quant.Format{
		quant.DenseOf(quant.Float32), quant.DenseOf(quant.BFloat16), quant.SymmetricOf(8, 32, quant.Float16),
		quant.AffineOf(3, 64, quant.Float16), quant.AffineOf(4, 64, quant.BFloat16), quant.AffineOf(8, 128, quant.Float32),
		quant.BlockFloats()[0], quant.BlockFloats()[1], quant.BlockFloats()[2],
	} {
		t.Run(f.String(), func(t *testing.T) {
			x := s.open(t)
			const rows, k, experts, out = 41, 3, 4, 70
			in := width(f, 3)
			m, _ := x.matrix(f, experts*out, in)
			v, ids := x.random(rows*in), chooseAny(rows, k, experts)
			all := x.read(x.s.LinearOf(x.s.From(v, rows, in), x.s.IDs(ids), experts, m)[0])
			whole := x.read(x.s.Linear(x.s.From(v, rows, in), m)[0])
			for i, id := range ids {
				at := i/k*experts*out + int(id)*out
				s.same(t, "different from Linear", all[i*out:(i+1)*out], whole[at:at+out])
			}
			for r := range rows {
				one := x.s.LinearOf(x.s.From(v[r*in:(r+1)*in], 1, in), x.s.IDs(ids[r*k:(r+1)*k]), experts, m)
				s.same(t, "row alone", x.read(one[0]), all[r*k*out:(r+1)*k*out])
			}
		})
	}
}

func (s matrixSuite) combine(t *testing.T) {
	x := s.open(t)
	for _, c := range []struct{ tokens, k, width int }{{1, 1, 5}, {3, 4, 700}, {40, 2, 33}} {
		v, shares, want := x.random(c.tokens*c.k*c.width), x.random(c.tokens*c.k), make([]float64, c.tokens*c.width)
		for i, share := range shares {
			for j := range c.width {
				want[i/c.k*c.width+j] += float64(share) * float64(v[i*c.width+j])
			}
		}
		s.near(t, "Combine", x.read(x.s.Combine(x.s.From(v, c.tokens*c.k, c.width), x.s.From(shares, c.tokens, c.k))), want)
	}
}

// shapesOfExperts are operands that do not fit, of what newer families need; m
// is a matrix [3, 8].
func shapesOfExperts(m tensor.Matrix) map[string]func(sc tensor.Scope) {
	return map[string]func(sc tensor.Scope){
		"LinearBias width": func(sc tensor.Scope) {
			sc.LinearBias(sc.From(make([]float32, 8), 1, 8), []tensor.Matrix{m}, []tensor.Array{sc.From(make([]float32, 2), 2)})
		},
		"LinearBias rows": func(sc tensor.Scope) {
			sc.LinearBias(sc.From(make([]float32, 8), 1, 8), []tensor.Matrix{m}, []tensor.Array{sc.From(make([]float32, 3), 1, 3)})
		},
		"LinearBias of none": func(sc tensor.Scope) { sc.LinearBias(sc.From(make([]float32, 8), 1, 8), []tensor.Matrix{m}, nil) },
		"GeGLU":              func(sc tensor.Scope) { sc.GLU(sc.From([]float32{1}, 1), sc.From([]float32{1, 2}, 2), tensor.GeGLU{}) },
		"LimitedSwiGLU": func(sc tensor.Scope) {
			sc.GLU(sc.From([]float32{1}, 1), sc.From([]float32{1, 2}, 2), tensor.LimitedSwiGLU{Limit: 7})
		},
		"ClampedSwiGLU": func(sc tensor.Scope) {
			sc.GLU(sc.From([]float32{1}, 1), sc.From([]float32{1, 2}, 2), tensor.ClampedSwiGLU{Alpha: 1, Limit: 7})
		},
		"Level": func(sc tensor.Scope) {
			sc.Level(sc.From(make([]float32, 4), 2, 2), sc.From(make([]float32, 4), 1, 4), 0)
		},
		"MixRuns rows": func(sc tensor.Scope) {
			sc.MixRuns(sc.From(make([]float32, 8), 2, 4), sc.From(make([]float32, 2), 1, 2), 2)
		},
		"MixRuns of a part": func(sc tensor.Scope) {
			sc.MixRuns(sc.From(make([]float32, 8), 2, 4), sc.From(make([]float32, 6), 2, 3), 3)
		},
		"MixRuns by a part": func(sc tensor.Scope) {
			sc.MixRuns(sc.From(make([]float32, 8), 2, 4), sc.From(make([]float32, 6), 2, 3), 2)
		},
		"MixRuns of none": func(sc tensor.Scope) {
			sc.MixRuns(sc.From(make([]float32, 8), 2, 4), sc.From(make([]float32, 6), 2, 3), 0)
		},
		"RouteTop of none": func(sc tensor.Scope) {
			sc.Route(sc.From(make([]float32, 8), 2, 4), tensor.RouteSpec{SoftmaxLast: true})
		},
		"RouteTop of more": func(sc tensor.Scope) {
			sc.Route(sc.From(make([]float32, 8), 2, 4), tensor.RouteSpec{K: 5, SoftmaxLast: true})
		},
		"Route of none": func(sc tensor.Scope) {
			sc.Route(sc.From(make([]float32, 8), 2, 4), tensor.RouteSpec{Normalized: true, Rounded: true})
		},
		"Route of more": func(sc tensor.Scope) {
			sc.Route(sc.From(make([]float32, 8), 2, 4), tensor.RouteSpec{K: 5, Normalized: true, Rounded: true})
		},
		"LinearOf width": func(sc tensor.Scope) { sc.LinearOf(sc.From(make([]float32, 7), 1, 7), sc.IDs([]int32{0}), 3, m) },
		"LinearOf parts": func(sc tensor.Scope) { sc.LinearOf(sc.From(make([]float32, 8), 1, 8), sc.IDs([]int32{0}), 2, m) },
		"LinearOf none":  func(sc tensor.Scope) { sc.LinearOf(sc.From(make([]float32, 8), 1, 8), sc.IDs([]int32{0}), 0, m) },
		"LinearOf ids":   func(sc tensor.Scope) { sc.LinearOf(sc.From(make([]float32, 16), 2, 8), sc.IDs([]int32{0, 1, 2}), 3, m) },
		"LinearOf a stranger": func(sc tensor.Scope) {
			sc.LinearOf(sc.From(make([]float32, 8), 1, 8), sc.IDs([]int32{3}), 3, m)
		},
		"LinearOf a negative": func(sc tensor.Scope) {
			sc.LinearOf(sc.From(make([]float32, 8), 1, 8), sc.IDs([]int32{-1}), 3, m)
		},
		"Combine": func(sc tensor.Scope) {
			sc.Combine(sc.From(make([]float32, 8), 4, 2), sc.From(make([]float32, 6), 2, 3))
		},
	}
}

// releasedOfExperts use what is gone: a, or a matrix. m is a matrix [5, 4].
func releasedOfExperts(m, gone tensor.Matrix) map[string]func(sc tensor.Scope, a tensor.Array) {
	return map[string]func(sc tensor.Scope, a tensor.Array){
		"LinearBias": func(sc tensor.Scope, a tensor.Array) {
			sc.LinearBias(a, []tensor.Matrix{m}, []tensor.Array{sc.From(make([]float32, 5), 5)})
		},
		"no bias": func(sc tensor.Scope, _ tensor.Array) {
			sc.LinearBias(sc.From(make([]float32, 4), 1, 4), []tensor.Matrix{m}, []tensor.Array{nil})
		},
		"gone matrix of a bias": func(sc tensor.Scope, _ tensor.Array) {
			sc.LinearBias(sc.From(make([]float32, 4), 1, 4), []tensor.Matrix{gone}, []tensor.Array{sc.From([]float32{1}, 1)})
		},
		"GeGLU": func(sc tensor.Scope, a tensor.Array) { sc.GLU(a, sc.From(make([]float32, 4), 1, 4), tensor.GeGLU{}) },
		"LimitedSwiGLU": func(sc tensor.Scope, a tensor.Array) {
			sc.GLU(a, sc.From(make([]float32, 4), 1, 4), tensor.LimitedSwiGLU{Limit: 7})
		},
		"Softplus": func(sc tensor.Scope, a tensor.Array) { sc.Map(a, tensor.Softplus{}) },
		"ClampedSwiGLU": func(sc tensor.Scope, a tensor.Array) {
			sc.GLU(a, sc.From(make([]float32, 4), 1, 4), tensor.ClampedSwiGLU{Alpha: 1, Limit: 7})
		},
		"RouteTop":   func(sc tensor.Scope, a tensor.Array) { sc.Route(a, tensor.RouteSpec{K: 1, SoftmaxLast: true}) },
		"Exceed":     func(sc tensor.Scope, a tensor.Array) { sc.Exceed(a, 1) },
		"MixRuns":    func(sc tensor.Scope, a tensor.Array) { sc.MixRuns(a, sc.From([]float32{1}, 1, 1), 1) },
		"MixRuns by": func(sc tensor.Scope, a tensor.Array) { sc.MixRuns(sc.From(make([]float32, 4), 1, 4), a, 1) },
		"Level":      func(sc tensor.Scope, a tensor.Array) { sc.Level(a, sc.From(make([]float32, 4), 1, 4), 0) },
		"Level like": func(sc tensor.Scope, a tensor.Array) { sc.Level(sc.From(make([]float32, 4), 1, 4), a, 0) },
		"ScaleShift": func(sc tensor.Scope, a tensor.Array) { sc.Map(a, tensor.ScaleShift{Scale: 1, Shift: 1}) },
		"Route": func(sc tensor.Scope, a tensor.Array) {
			sc.Route(a, tensor.RouteSpec{K: 1, Normalized: true, Rounded: true})
		},
		"Combine":  func(sc tensor.Scope, a tensor.Array) { sc.Combine(a, sc.From([]float32{1}, 1, 1)) },
		"shares":   func(sc tensor.Scope, a tensor.Array) { sc.Combine(sc.From(make([]float32, 4), 1, 4), a) },
		"LinearOf": func(sc tensor.Scope, a tensor.Array) { sc.LinearOf(a, sc.IDs([]int32{0}), 5, m) },
		"chosen":   func(sc tensor.Scope, a tensor.Array) { sc.LinearOf(sc.From(make([]float32, 4), 1, 4), a, 5, m) },
		"gone experts": func(sc tensor.Scope, _ tensor.Array) {
			sc.LinearOf(sc.From(make([]float32, 4), 1, 4), sc.IDs([]int32{0}), 1, gone)
		},
	}
}
