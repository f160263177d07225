package tensortest

import (
	"errors"
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

func (s elementSuite) elementwise(t *testing.T) {
	x := s.open(t)
	for _, shape := range [][]int{{1}, {3, 5}, {7, 4099}} {
		n := 1
		for _, d := range shape {
			n *= d
		}
		a, b := x.random(n), x.random(n)
		a[0], b[0] = 30, -40
		sum, prod, silu := make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range a {
			u, v := float64(a[i]), float64(b[i])
			sum[i], prod[i], silu[i] = u+v, u*v, u/(1+math.Exp(-u))
		}
		ta, tb := x.s.From(a, shape...), x.s.From(b, shape...)
		s.near(t, "Add", x.read(x.s.Add(ta, tb)), sum)
		s.near(t, "Multiply", x.read(x.s.Multiply(ta, tb)), prod)
		s.near(t, "SiLU", x.read(x.s.Map(ta, tensor.SiLU{})), silu)
	}
	a, columns, runs := x.random(3*12), x.random(12), x.random(3*4)
	byColumn, byRun := make([]float64, len(a)), make([]float64, len(a))
	for i, v := range a {
		byColumn[i], byRun[i] = float64(v)*float64(columns[i%12]), float64(v)*float64(runs[i/3])
	}
	in := x.s.From(a, 3, 12)
	s.near(t, "Multiply by a row", x.read(x.s.Multiply(in, x.s.From(columns, 12))), byColumn)
	s.near(t, "Multiply of runs", x.read(x.s.Multiply(in, x.s.From(runs, 3, 4))), byRun)
	far := x.read(x.s.Map(x.s.From([]float32{-200, -88, -1e-20, 0, 88, 200}, 6), tensor.SiLU{}))
	s.near(t, "SiLU far out", far, []float64{0, -88 * math.Exp(-88), -5e-21, 0, 88, 200})
}

func (s elementSuite) swiglu(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 2731
	gate, up, want := x.random(rows*width), x.random(rows*width), make([]float64, rows*width)
	gate[0], gate[1], gate[2] = -100, 100, 0
	for i := range want {
		g := float64(gate[i])
		want[i] = g / (1 + math.Exp(-g)) * float64(up[i])
	}
	s.near(t, "SwiGLU", x.read(x.s.GLU(x.s.From(gate, rows, width), x.s.From(up, rows, width), tensor.SwiGLU{})), want)
}

func (s elementSuite) geglu(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 2731
	gate, up, want := x.random(rows*width), x.random(rows*width), make([]float64, rows*width)
	gate[0], gate[1], gate[2], gate[3] = -100, 100, 0, -5
	for i := range want {
		g := float64(gate[i])
		want[i] = g / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g))) * float64(up[i])
	}
	s.near(t, "GeGLU", x.read(x.s.GLU(x.s.From(gate, rows, width), x.s.From(up, rows, width), tensor.GeGLU{})), want)
}

func (s elementSuite) clampedSwiGLU(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 2731
	for _, c := range []struct{ alpha, limit float32 }{{1.702, 7}, {1, 0.5}} {
		gate, up, want := x.random(rows*width), x.random(rows*width), make([]float64, rows*width)
		for i, v := range []float32{-100, 100, 0, -7, 7, 6.99, 7.01} { // combined with each of the others
			for j, u := range []float32{-100, 100, 0, -7, 7, 6.99, -7.01} {
				gate[i*7+j], up[i*7+j] = v, u
			}
		}
		for i := range want {
			g, u := math.Min(float64(gate[i]), float64(c.limit)), math.Max(-float64(c.limit), math.Min(float64(up[i]), float64(c.limit)))
			want[i] = g / (1 + math.Exp(-float64(c.alpha)*g)) * (u + 1)
		}
		s.near(t, "ClampedSwiGLU", x.read(x.s.GLU(x.s.From(gate, rows, width), x.s.From(up, rows, width), tensor.ClampedSwiGLU{Alpha: c.alpha, Limit: c.limit})), want)
	}
}

func (s elementSuite) limitedSwiGLU(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 2731
	for _, limit := range []float32{7, 0.5} {
		gate, up, want := x.random(rows*width), x.random(rows*width), make([]float64, rows*width)
		for i, v := range []float32{-100, 100, 0, -7, 7, 6.99, 7.01} { // combined with each of the others
			for j, u := range []float32{-100, 100, 0, -7, 7, 6.99, -7.01} {
				gate[i*7+j], up[i*7+j] = v, u
			}
		}
		for i := range want {
			g, l := float64(gate[i]), float64(limit)
			want[i] = math.Min(g/(1+math.Exp(-g)), l) * math.Max(-l, math.Min(float64(up[i]), l))
		}
		s.near(t, "LimitedSwiGLU", x.read(x.s.GLU(x.s.From(gate, rows, width), x.s.From(up, rows, width), tensor.LimitedSwiGLU{Limit: limit})), want)
	}
}

func (s elementSuite) softplus(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 1367
	in, want := x.random(rows*width), make([]float64, rows*width)
	copy(in, []float32{-100, 100, 0, -20, 20, 1e-3, -1e-3, 88, -88})
	for i, v := range in {
		want[i] = math.Max(float64(v), 0) + math.Log1p(math.Exp(-math.Abs(float64(v))))
	}
	s.near(t, "Softplus", x.read(x.s.Map(x.s.From(in, rows, width), tensor.Softplus{})), want)
}

func (s elementSuite) scaleShift(t *testing.T) {
	x := s.open(t)
	for _, c := range []struct{ scale, shift float32 }{{1, 1}, {33.75, 0}, {-0.5, 3}, {0, 2}, {1, 0}} {
		for _, shape := range [][]int{{5}, {3, 4099}} {
			v := x.random(shape[0] * shape[len(shape)-1] / max(1, len(shape)%2*shape[0]))
			want := make([]float64, len(v))
			for i, f := range v {
				want[i] = float64(c.scale)*float64(f) + float64(c.shift)
			}
			s.near(t, "ScaleShift", x.read(x.s.Map(x.s.From(v, shape...), tensor.ScaleShift{Scale: c.scale, Shift: c.shift})), want)
		}
	}
}

// rmsNorm norms whole rows, and each head of a row by itself.
func (s elementSuite) rmsNorm(t *testing.T) {
	x := s.open(t)
	const rows, width, eps = 5, 134, 1e-5
	for _, run := range []int{width, width / 2, 1} {
		v, w := x.random(rows*width), x.random(run)
		want := make([]float64, rows*width)
		for at := 0; at < len(v); at += run {
			var mean float64
			for _, f := range v[at : at+run] {
				mean += float64(f) * float64(f) / float64(run)
			}
			for i := range run {
				want[at+i] = float64(v[at+i]) / math.Sqrt(mean+eps) * float64(w[i])
			}
		}
		s.near(t, "RMSNorm", x.read(x.s.RMSNorm(x.s.From(v, rows, width), x.s.From(w, run), eps)), want)
	}
}

func (s elementSuite) rope(t *testing.T) {
	x := s.open(t)
	for _, c := range []struct {
		name string
		size int
		spec tensor.RopeSpec
	}{
		{"whole head", 8, tensor.RopeSpec{Theta: 10000, Size: 8}},
		{"part of a head", 12, tensor.RopeSpec{Theta: 1e5, Size: 8, Linear: 4}},
		{"factors", 8, tensor.RopeSpec{Theta: 5e5, Size: 8, Factors: []float32{1, 2, 8, 32}}},
		{"magnitude", 8, tensor.RopeSpec{Theta: 1e4, Size: 8, Magnitude: 1.25}},
		{"magnitude of a part", 12, tensor.RopeSpec{Theta: 1e4, Size: 8, Magnitude: 0.75, Linear: 2, Factors: []float32{1, 1, 4, 4}}},
		{"interleaved", 8, tensor.RopeSpec{Theta: 1e4, Size: 8, Interleaved: true}},
		{"interleaved part, factors and magnitude", 12, tensor.RopeSpec{Theta: 1e4, Size: 8, Magnitude: 0.75, Linear: 2, Factors: []float32{1, 1, 4, 4}, Interleaved: true}},
		{"growth alone", 6, tensor.RopeSpec{Beta: 0.5, Every: 3}},
		{"growth that leads", 6, tensor.RopeSpec{Beta: 0.5, Every: 3, Lead: 1}},
		{"growth", 12, tensor.RopeSpec{Theta: 1e4, Size: 8, Magnitude: 1.25, Beta: 0.5, Every: 2}},
	} {
		segments := []tensor.Segment{{Request: 1, Start: 0, Length: 3}, {Request: 2, Start: 8000, Length: 2}}
		const heads, rows = 3, 5
		v := x.random(rows * heads * c.size)
		want := make([]float64, len(v))
		for r, pos := range []float64{0, 1, 2, 8000, 8001} {
			for h := range heads {
				at := (r*heads + h) * c.size
				ropeOracle(want[at:at+c.size], v[at:at+c.size], pos, c.spec)
			}
		}
		turned := Suite{Tolerance: s.Tolerance + s.Angle*8001}
		turned.near(t, c.name, x.read(x.s.Rope(x.s.From(v, rows, heads*c.size), segments, c.size, c.spec)), want)
	}
}

func ropeOracle(dst []float64, src []float32, pos float64, spec tensor.RopeSpec) {
	for i := range src {
		dst[i] = float64(src[i])
	}
	grown := 1.0
	if spec.Beta != 0 {
		grown = 1 + spec.Beta*math.Log(1+math.Floor((pos+float64(spec.Lead))/float64(spec.Every)))
	}
	defer func() {
		for i := range dst {
			dst[i] *= grown
		}
	}()
	if spec.Linear != 0 {
		pos /= spec.Linear
	}
	half, magnitude := spec.Size/2, spec.Magnitude
	if magnitude == 0 {
		magnitude = 1
	}
	for i := range half {
		angle := pos * math.Pow(spec.Theta, -2*float64(i)/float64(spec.Size))
		if spec.Factors != nil {
			angle /= float64(spec.Factors[i])
		}
		first, second := i, i+half
		if spec.Interleaved {
			first, second = 2*i, 2*i+1
		}
		a, b := float64(src[first]), float64(src[second])
		dst[first] = magnitude * (a*math.Cos(angle) - b*math.Sin(angle))
		dst[second] = magnitude * (b*math.Cos(angle) + a*math.Sin(angle))
	}
}

// strange is a function and a gate that no back end has.
type strange struct{}

func (strange) Function() string { return "strange" }
func (strange) GLU() string      { return "strange" }

// unknown checks that what a back end does not know is refused.
func (s elementSuite) unknown(t *testing.T) {
	for name, run := range map[string]func(*bench, tensor.Array){
		"Map": func(x *bench, a tensor.Array) { x.s.Map(a, strange{}) },
		"GLU": func(x *bench, a tensor.Array) { x.s.GLU(a, a, strange{}) },
	} {
		t.Run(name, func(t *testing.T) {
			x := s.open(t)
			run(x, x.s.From([]float32{1}, 1))
			if err := x.s.Err(); !errors.Is(err, tensor.ErrUnsupported) {
				t.Errorf("%v, want ErrUnsupported", err)
			}
		})
	}
}
