package tensortest

import (
	"errors"
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// attendAll lets tokens of ragged segments see one another, in one pass and
// each segment by itself.
func (s Suite) attendAll(t *testing.T) {
	for _, c := range []struct {
		name        string
		heads, size int
		lengths     []int
	}{
		{"one segment", 3, 8, []int{7}},
		{"ragged segments", 2, 6, []int{1, 5, 3, 12}},
		{"one token", 4, 4, []int{1}},
		{"an empty segment", 2, 4, []int{3, 0, 2}},
		{"a head of 32", 12, 32, []int{33, 64, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := s.open(t)
			rows, width := 0, c.heads*c.size
			var segments []tensor.Segment
			for i, n := range c.lengths {
				segments = append(segments, tensor.Segment{Request: tensor.RequestID(i), Length: n})
				rows += n
			}
			q, k, v := x.random(rows*width), x.random(rows*width), x.random(rows*width)
			q[0] = 8 // one score far above the others
			run := func(from, n int, of []tensor.Segment) []float32 {
				part := func(a []float32) tensor.Array { return x.s.From(a[from*width:(from+n)*width], n, width) }
				return x.read(x.s.AttendAll(tensor.AttendAllSpec{Segments: of, Q: part(q), K: part(k), V: part(v), Heads: c.heads, Scale: 0.3}))
			}
			got := run(0, rows, segments)
			at := 0
			for _, g := range segments {
				if g.Length == 0 {
					continue
				}
				h := attendCase{heads: c.heads, kvHeads: c.heads, size: c.size}
				var ks, vs [][]float32
				for r := at; r < at+g.Length; r++ {
					ks, vs = append(ks, k[r*width:(r+1)*width]), append(vs, v[r*width:(r+1)*width])
				}
				var want []float64
				for r := at; r < at+g.Length; r++ {
					want = append(want, attendOracle(h, q[r*width:], ks, vs, 0, nil)...)
				}
				s.near(t, "a segment in company", got[at*width:(at+g.Length)*width], want)
				alone := run(at, g.Length, []tensor.Segment{g})
				s.near(t, "a segment alone", alone, want)
				for i, f := range alone {
					if s.Bitwise && math.Float32bits(f) != math.Float32bits(got[at*width+i]) {
						t.Fatalf("number %d of a segment is %v alone and %v in company", i, f, got[at*width+i])
					}
				}
				at += g.Length
			}
		})
	}
}

func (s elementSuite) layerNorm(t *testing.T) {
	x := s.open(t)
	for _, c := range []struct {
		rows, width int
		shift       float32
		eps         float64
	}{{5, 134, 0, 1e-12}, {3, 384, 3, 1e-5}, {1, 1, 2, 1e-5}, {2, 4099, -1, 0.5}} {
		v, w, b := x.random(c.rows*c.width), x.random(c.width), x.random(c.width)
		want := make([]float64, len(v))
		for i := range v {
			v[i] += c.shift
		}
		for at := 0; at < len(v); at += c.width {
			var mean, variance float64
			for _, f := range v[at : at+c.width] {
				mean += float64(f) / float64(c.width)
			}
			for _, f := range v[at : at+c.width] {
				variance += (float64(f) - mean) * (float64(f) - mean) / float64(c.width)
			}
			for i := range c.width {
				want[at+i] = (float64(v[at+i])-mean)/math.Sqrt(variance+float64(float32(c.eps)))*float64(w[i]) + float64(b[i])
			}
		}
		s.near(t, "LayerNorm", x.read(x.s.LayerNorm(x.s.From(v, c.rows, c.width), x.s.From(w, c.width), x.s.From(b, c.width), float32(c.eps))), want)
	}
}

func (s elementSuite) gelu(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 2731
	v := x.random(rows * width)
	v[0], v[1], v[2], v[3] = -100, 100, 0, -5
	erf, approximate, tanh := make([]float64, len(v)), make([]float64, len(v)), make([]float64, len(v))
	for i, f := range v {
		g := float64(f)
		erf[i] = g / 2 * (1 + math.Erf(g/math.Sqrt2))
		approximate[i] = g / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
		tanh[i] = math.Tanh(g)
	}
	a := x.s.From(v, rows, width)
	// The largest of the ordinary values counts, not the 100 put in.
	s.nearOf(t, "GELU", x.read(x.s.Map(a, tensor.GELU{})), erf, 4)
	s.nearOf(t, "GELU with tanh", x.read(x.s.Map(a, tensor.GELU{Tanh: true})), approximate, 4)
	s.near(t, "Tanh", x.read(x.s.Map(a, tensor.Tanh{})), tanh)
}

// clip bounds on both sides, on one and on none.
func (s elementSuite) clip(t *testing.T) {
	x := s.open(t)
	none := float32(math.Inf(1))
	for _, c := range []struct{ low, high float32 }{{-0.25, 0.5}, {-none, 0.125}, {0, none}, {-none, none}} {
		v := x.random(3 * 2731)
		v[0], v[1] = -100, 100
		want := make([]float64, len(v))
		for i, f := range v {
			want[i] = math.Min(math.Max(float64(f), float64(c.low)), float64(c.high))
		}
		s.near(t, "Clip", x.read(x.s.Map(x.s.From(v, 3, 2731), tensor.Clip{Low: c.low, High: c.high})), want)
	}
}

// encoderShapes are refused by name.
func (s Suite) encoderShapes(t *testing.T) {
	for name, run := range map[string]func(sc tensor.Scope){
		"keys of another width": func(sc tensor.Scope) {
			a, b := sc.From(make([]float32, 8), 2, 4), sc.From(make([]float32, 4), 2, 2)
			sc.AttendAll(tensor.AttendAllSpec{Segments: []tensor.Segment{{Length: 2}}, Q: a, K: b, V: a, Heads: 2, Scale: 1})
		},
		"heads that do not divide": func(sc tensor.Scope) {
			a := sc.From(make([]float32, 8), 2, 4)
			sc.AttendAll(tensor.AttendAllSpec{Segments: []tensor.Segment{{Length: 2}}, Q: a, K: a, V: a, Heads: 3, Scale: 1})
		},
		"rows that no segment has": func(sc tensor.Scope) {
			a := sc.From(make([]float32, 8), 2, 4)
			sc.AttendAll(tensor.AttendAllSpec{Segments: []tensor.Segment{{Length: 1}}, Q: a, K: a, V: a, Heads: 2, Scale: 1})
		},
		"segments of negative length": func(sc tensor.Scope) {
			a := sc.From(make([]float32, 8), 2, 4)
			sc.AttendAll(tensor.AttendAllSpec{Segments: []tensor.Segment{{Length: 3}, {Length: -1}}, Q: a, K: a, V: a, Heads: 2, Scale: 1})
		},
		"a norm of another width": func(sc tensor.Scope) {
			one := sc.From([]float32{1, 1}, 2)
			sc.LayerNorm(sc.From(make([]float32, 8), 2, 4), one, one, 1)
		},
		"a bias of another width": func(sc tensor.Scope) {
			sc.LayerNorm(sc.From(make([]float32, 8), 2, 4), sc.From(make([]float32, 4), 4), sc.From(make([]float32, 2), 2), 1)
		},
	} {
		x := s.open(t)
		run(x.s)
		if err := x.s.Err(); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
}

// onOneArrayOfEncoders are operations on one array [64, 4096].
func onOneArrayOfEncoders() map[string]func(sc tensor.Scope, a tensor.Array) tensor.Array {
	return map[string]func(sc tensor.Scope, a tensor.Array) tensor.Array{
		"AttendAll": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			return sc.AttendAll(tensor.AttendAllSpec{Segments: []tensor.Segment{{Length: limitRows}}, Q: a, K: a, V: a, Heads: 1, Scale: 1})
		},
		"LayerNorm": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			w := sc.From(make([]float32, limitWidth), limitWidth)
			return sc.LayerNorm(a, w, w, 1)
		},
		"GELU":           func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Map(a, tensor.GELU{}) },
		"GELU with tanh": func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Map(a, tensor.GELU{Tanh: true}) },
		"Tanh":           func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Map(a, tensor.Tanh{}) },
		"Clip":           func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Map(a, tensor.Clip{Low: -1, High: 1}) },
	}
}

// releasedOfEncoders use what was released.
func releasedOfEncoders() map[string]func(sc tensor.Scope, a tensor.Array) {
	return map[string]func(sc tensor.Scope, a tensor.Array){
		"GELU": func(sc tensor.Scope, a tensor.Array) { sc.Map(a, tensor.GELU{}) },
		"Tanh": func(sc tensor.Scope, a tensor.Array) { sc.Map(a, tensor.Tanh{}) },
		"Clip": func(sc tensor.Scope, a tensor.Array) { sc.Map(a, tensor.Clip{Low: -1, High: 1}) },
		"AttendAll": func(sc tensor.Scope, a tensor.Array) {
			b := sc.From(make([]float32, 4), 1, 4)
			sc.AttendAll(tensor.AttendAllSpec{Segments: []tensor.Segment{{Length: 1}}, Q: b, K: a, V: b, Heads: 1, Scale: 1})
		},
		"LayerNorm": func(sc tensor.Scope, a tensor.Array) {
			w := sc.From(make([]float32, 4), 4)
			sc.LayerNorm(a, w, w, 1)
		},
	}
}
