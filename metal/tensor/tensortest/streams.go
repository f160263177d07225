package tensortest

import (
	"math"
	"testing"
)

// exceed compares with the deviation of a whole row, as of a population.
func (s elementSuite) exceed(t *testing.T) {
	x := s.open(t)
	for _, c := range []struct {
		rows, width int
		by, shift   float32
	}{{5, 134, 1.645, 0}, {3, 1031, 0, 3}, {2, 7, -0.5, 0}, {1, 1, 2, 1}} {
		v, want := x.random(c.rows*c.width), make([]float64, c.rows*c.width)
		for at := 0; at < len(v); at += c.width {
			var mean, squares float64
			for i := range v[at : at+c.width] {
				v[at+i] += c.shift
				mean += float64(v[at+i]) / float64(c.width)
			}
			for _, f := range v[at : at+c.width] {
				squares += (float64(f) - mean) * (float64(f) - mean)
			}
			for i, f := range v[at : at+c.width] {
				want[at+i] = math.Max(0, float64(f)-mean-float64(c.by)*math.Sqrt(squares/float64(c.width)))
			}
		}
		s.near(t, "Exceed", x.read(x.s.Exceed(x.s.From(v, c.rows, c.width), c.by)), want)
	}
}

// mixRuns mixes several runs to more, to fewer, and one to several.
func (s elementSuite) mixRuns(t *testing.T) {
	x := s.open(t)
	for _, c := range []struct{ rows, n, m, width int }{{5, 4, 4, 33}, {3, 1, 4, 130}, {2, 3, 2, 7}, {1, 5, 1, 64}, {40, 2, 2, 1}} {
		v, by, want := x.random(c.rows*c.n*c.width), x.random(c.rows*c.n*c.m), make([]float64, c.rows*c.m*c.width)
		for i := range want {
			row, run, column := i/(c.m*c.width), i/c.width%c.m, i%c.width
			for j := range c.n {
				want[i] += float64(by[row*c.m*c.n+run*c.n+j]) * float64(v[(row*c.n+j)*c.width+column])
			}
		}
		s.near(t, "MixRuns", x.read(x.s.MixRuns(x.s.From(v, c.rows, c.n*c.width), x.s.From(by, c.rows, c.m*c.n), c.n)), want)
	}
}

// level has a row that is smaller than the least, and one of zeros.
func (s elementSuite) level(t *testing.T) {
	x := s.open(t)
	const rows, width, least = 4, 130, 1e-5
	v, like, want := x.random(rows*width), x.random(rows*width), make([]float64, rows*width)
	for i := range width {
		v[width+i] *= 1e-4
		v[2*width+i] = 0
	}
	for r := range rows {
		var of, to float64
		for i := range width {
			of += float64(v[r*width+i]) * float64(v[r*width+i]) / width
			to += float64(like[r*width+i]) * float64(like[r*width+i]) / width
		}
		for i := range width {
			want[r*width+i] = float64(v[r*width+i]) * math.Sqrt(to/math.Max(of, least))
		}
	}
	s.near(t, "Level", x.read(x.s.Level(x.s.From(v, rows, width), x.s.From(like, rows, width), least)), want)
}
