package tensortest

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// split cuts runs of each row into parts.
func (s elementSuite) split(t *testing.T) {
	x := s.open(t)
	const rows = 3
	for _, widths := range [][]int{{12}, {4, 8}, {1, 2, 3}, {2, 2}, {3, 1, 5, 3}} {
		v := x.random(rows * 12)
		run, first := 0, 0
		for _, w := range widths {
			run += w
		}
		for i, part := range x.s.Split(x.s.From(v, rows, 12), widths...) {
			var want []float64
			for at := 0; at < len(v); at += run {
				for _, f := range v[at+first : at+first+widths[i]] {
					want = append(want, float64(f))
				}
			}
			first += widths[i]
			if shape := part.Shape(); shape[0] != rows || shape[1] != 12/run*widths[i] {
				t.Errorf("part %d of %v has shape %v", i, widths, shape)
			}
			s.near(t, fmt.Sprintf("part %d of %v", i, widths), x.read(part), want)
		}
	}
}

// join puts together what Split cut, and refuses what does not fit.
func (s elementSuite) join(t *testing.T) {
	x := s.open(t)
	const rows = 3
	for _, widths := range [][]int{{12}, {4, 8}, {1, 2, 3}, {2, 2}, {3, 1, 5, 3}} {
		v := x.random(rows * 12)
		want := make([]float64, len(v))
		for i, f := range v {
			want[i] = float64(f)
		}
		joined := x.s.Join(x.s.Split(x.s.From(v, rows, 12), widths...), widths...)
		s.near(t, fmt.Sprint(widths), x.read(joined), want)
	}
	for name, widths := range map[string][]int{"a width of none": {0, 4}, "one width": {4}, "another number of parts": {4, 3}} {
		y := s.open(t)
		y.s.Join([]tensor.Array{y.s.From(y.random(8), 1, 8), y.s.From(y.random(8), 1, 8)}, widths...)
		if !errors.Is(y.s.Err(), tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, y.s.Err())
		}
	}
}

func (s elementSuite) sigmoidGate(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 2730
	for _, columns := range []int{width, 1, 7} {
		v, gate, want := x.random(rows*width), x.random(rows*columns), make([]float64, rows*width)
		gate[0], gate[len(gate)-1] = 100, -100
		for i := range want {
			g := gate[i/width*columns+i%width/(width/columns)]
			want[i] = float64(v[i]) / (1 + math.Exp(-float64(g)))
		}
		s.near(t, "SigmoidGate", x.read(x.s.SigmoidGate(x.s.From(v, rows, width), x.s.From(gate, rows, columns))), want)
	}
}

func (s elementSuite) addGated(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 2730
	to, v, gate, want := x.random(rows*width), x.random(rows*width), []float32{100, 0.5, -100}, make([]float64, rows*width)
	for i := range want {
		want[i] = float64(to[i]) + float64(v[i])/(1+math.Exp(-float64(gate[i/width])))
	}
	s.near(t, "AddGated", x.read(x.s.AddGated(x.s.From(to, rows, width), x.s.From(v, rows, width), x.s.From(gate, rows, 1))), want)
	for name, shapes := range map[string][3][2]int{"a sum of other rows": {{4, 2}, {2, 4}, {2, 1}}, "a gate of runs": {{2, 4}, {2, 4}, {2, 2}}, "a gate of other rows": {{2, 4}, {2, 4}, {4, 1}}} {
		y := s.open(t)
		var in [3]tensor.Array
		for i, shape := range shapes {
			in[i] = y.s.From(y.random(shape[0]*shape[1]), shape[0], shape[1])
		}
		if y.s.AddGated(in[0], in[1], in[2]); !errors.Is(y.s.Err(), tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, y.s.Err())
		}
	}
}

// rmsNormGate norms whole rows, and each head of a row by itself.
func (s elementSuite) rmsNormGate(t *testing.T) {
	x := s.open(t)
	const rows, width, eps = 5, 134, 1e-5
	for _, run := range []int{width, width / 2, 1} {
		v, gate, w := x.random(rows*width), x.random(rows*width), x.random(run)
		want := make([]float64, rows*width)
		for at := 0; at < len(v); at += run {
			var mean float64
			for _, f := range v[at : at+run] {
				mean += float64(f) * float64(f) / float64(run)
			}
			for i := range run {
				g := float64(gate[at+i])
				want[at+i] = float64(v[at+i]) / math.Sqrt(mean+eps) * float64(w[i]) * g / (1 + math.Exp(-g))
			}
		}
		s.near(t, "RMSNormGate", x.read(x.s.RMSNormGate(x.s.From(v, rows, width), x.s.From(gate, rows, width), x.s.From(w, run), eps)), want)
	}
}
