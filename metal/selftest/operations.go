package selftest

import (
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// transfers: what goes in comes out, to the last bit, and what was started is
// what is read.
func transfers(x *bench) {
	const rows, width = 5, 257
	v := x.random(rows * width)
	a := x.array(v, rows, width)
	x.s.Start(a)
	x.same("Read", x.read(a, rows*width), v)
	x.s.Wait(a)
	ids := []int32{7, 0, math.MaxInt32 - 1, 7}
	got := make([]int32, len(ids))
	x.s.ReadIDs(x.s.IDs(ids), got)
	if !slices.Equal(got, ids) {
		x.fail(fmt.Errorf("ids %v come out as %v", ids, got))
	}
}

// same wants equal numbers.
func (x *bench) same(what string, got, want []float32) {
	wide := make([]float64, len(want))
	for i, v := range want {
		wide[i] = float64(v)
	}
	x.near(what, got, wide, 0)
}

func elementwise(x *bench) {
	for _, shape := range [][2]int{{1, 1}, {3, 5}, {7, 4099}} {
		n := shape[0] * shape[1]
		a, b := x.random(n), x.random(n)
		a[0], b[0] = 30, -40
		sum, product, silu, swiglu := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range a {
			u, v := float64(a[i]), float64(b[i])
			sum[i], product[i], silu[i] = u+v, u*v, u/(1+math.Exp(-u))
			swiglu[i] = silu[i] * v
		}
		ta, tb := x.array(a, shape[0], shape[1]), x.array(b, shape[0], shape[1])
		x.near("Add", x.read(x.s.Add(ta, tb), n), sum, x.plain())
		x.near("Multiply", x.read(x.s.Multiply(ta, tb), n), product, x.plain())
		x.near("SiLU", x.read(x.s.Map(ta, tensor.SiLU{}), n), silu, x.plain())
		x.near("SwiGLU", x.read(x.s.GLU(ta, tb, tensor.SwiGLU{}), n), swiglu, x.plain())
	}
	far := []float32{-200, -88, 0, 88, 200}
	x.near("SiLU of extreme values", x.read(x.s.Map(x.array(far, 1, 5), tensor.SiLU{}), 5), []float64{0, 0, 0, 88, 200}, x.plain())
}

// rmsNorm of whole rows, of rows longer than a GPU's group of threads takes at
// once, and of heads.
func rmsNorm(x *bench) {
	const eps = 1e-5
	for _, c := range []struct{ rows, width, run int }{{5, 67, 67}, {2, 5120, 5120}, {3, 512, 64}} {
		v, w := x.random(c.rows*c.width), x.random(c.run)
		want := make([]float64, len(v))
		for at := 0; at < len(v); at += c.run {
			var mean float64
			for _, f := range v[at : at+c.run] {
				mean += float64(f) * float64(f) / float64(c.run)
			}
			for i := range c.run {
				want[at+i] = float64(v[at+i]) / math.Sqrt(mean+eps) * float64(w[i])
			}
		}
		got := x.read(x.s.RMSNorm(x.array(v, c.rows, c.width), x.vector(w), eps), len(v))
		x.near(fmt.Sprintf("runs of %d", c.run), got, want, x.plain())
	}
}

func rope(x *bench) {
	for _, c := range []struct {
		name string
		head int
		spec tensor.RopeSpec
	}{
		{"whole heads", 64, tensor.RopeSpec{Theta: 10000, Size: 64}},
		{"heads of 128", 128, tensor.RopeSpec{Theta: 1e6, Size: 128}},
		{"a part of each head", 96, tensor.RopeSpec{Theta: 1e5, Size: 64, Linear: 4, Magnitude: 1.25}},
		{"factors", 8, tensor.RopeSpec{Theta: 5e5, Size: 8, Factors: []float32{1, 2, 8, 32}}},
	} {
		segments := []tensor.Segment{{Request: 1, Length: 3}, {Request: 2, Start: 8000, Length: 2}}
		const heads, rows = 3, 5
		width := heads * c.head
		v := x.random(rows * width)
		want := make([]float64, len(v))
		for r, position := range []float64{0, 1, 2, 8000, 8001} {
			for h := range heads {
				at := r*width + h*c.head
				ropeOracle(want[at:at+c.head], v[at:at+c.head], position, c.spec)
			}
		}
		got := x.read(x.s.Rope(x.array(v, rows, width), segments, c.head, c.spec), len(v))
		x.near(c.name, got, want, x.plain()+x.tolerance.angle*8001)
	}
}

func ropeOracle(dst []float64, src []float32, position float64, spec tensor.RopeSpec) {
	for i, v := range src {
		dst[i] = float64(v)
	}
	magnitude := 1.0
	if spec.Magnitude != 0 {
		magnitude = spec.Magnitude
	}
	if spec.Linear != 0 {
		position /= spec.Linear
	}
	half := spec.Size / 2
	for i := range half {
		angle := position * math.Pow(spec.Theta, -2*float64(i)/float64(spec.Size))
		if spec.Factors != nil {
			angle /= float64(spec.Factors[i])
		}
		a, b := float64(src[i])*magnitude, float64(src[i+half])*magnitude
		dst[i], dst[i+half] = a*math.Cos(angle)-b*math.Sin(angle), b*math.Cos(angle)+a*math.Sin(angle)
	}
}

// pooling is what embedders do with the rows of a step.
func pooling(x *bench) {
	const rows, width = 9, 259
	v := x.random(rows * width)
	a := x.array(v, rows, width)
	picked := []int{3, 0, 8, 3}
	var want []float32
	for _, r := range picked {
		want = append(want, v[r*width:(r+1)*width]...)
	}
	x.same("Rows", x.read(x.s.Rows(a, picked), len(want)), want)

	segments := []tensor.Segment{{Request: 1, Length: 2}, {Request: 2, Start: 5, Length: 7}}
	mask := []float32{1, 1, 0, 1, 1, 0, 1, 1, 1}
	means, units := make([]float64, 2*width), make([]float64, rows*width)
	for i := range width {
		means[i] = (float64(v[i]) + float64(v[width+i])) / 2
		for r := 2; r < rows; r++ {
			means[width+i] += float64(mask[r]) * float64(v[r*width+i]) / 5
		}
	}
	for r := range rows {
		var sum float64
		for _, f := range v[r*width : (r+1)*width] {
			sum += float64(f) * float64(f)
		}
		for i := range width {
			units[r*width+i] = float64(v[r*width+i]) / math.Sqrt(sum)
		}
	}
	x.near("Mean", x.read(x.s.Mean(a, segments, mask), 2*width), means, x.plain())
	x.near("Unit", x.read(x.s.Unit(a), rows*width), units, x.plain())
}

// argmax is what greedy decoding rests on: the lowest of equals, and -1 where
// nothing can be chosen.
func argmax(x *bench) {
	const rows, width, seen = 7, 5003, 5000
	v := x.random(rows * width)
	want := make([]int32, rows)
	for r := range rows {
		row := v[r*width : (r+1)*width]
		want[r] = int32((r*811 + 4000) % seen)
		row[want[r]], row[seen] = 50, 60 // past those that count
	}
	v[2*width+4999] = 50 // an equal farther on
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for i := range seen {
		v[3*width+i] = -inf
	}
	v[4*width+17], v[5*width+18] = inf, nan
	want[3], want[4], want[5] = -1, -1, -1
	got := make([]int32, rows)
	x.s.ReadIDs(x.s.Argmax(x.s.From(v, rows, width), seen), got)
	if !slices.Equal(got, want) {
		x.fail(fmt.Errorf("chose %v, want %v", got, want))
	}
	x.Value, x.Unit = float64(rows), "rows"
}
