package tensortest

import (
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// rows gathers any rows, and the last of each segment, as embedders pool.
func (s elementSuite) rows(t *testing.T) {
	x := s.open(t)
	const width = 37
	v := x.random(9 * width)
	var last []int
	for _, g := range []tensor.Segment{{Request: 1, Length: 4}, {Request: 2, Length: 1}, {Request: 3, Length: 4}} {
		row := g.Length - 1
		if len(last) > 0 {
			row += last[len(last)-1] + 1
		}
		last = append(last, row)
	}
	for _, rows := range [][]int{{3, 0, 3}, {8}, last} {
		got := x.read(x.s.Rows(x.s.From(v, 9, width), rows))
		for i, r := range rows {
			for j := range width {
				if got[i*width+j] != v[r*width+j] {
					t.Fatalf("Rows %v: row %d is not row %d", rows, i, r)
				}
			}
		}
	}
}

func (s elementSuite) mean(t *testing.T) {
	x := s.open(t)
	const width = 33
	segments := []tensor.Segment{{Request: 1, Length: 1}, {Request: 2, Start: 5, Length: 6}, {Request: 3, Length: 2}}
	for name, mask := range map[string][]float32{
		"no mask":        nil,
		"all rows":       {1, 1, 1, 1, 1, 1, 1, 1, 1},
		"some rows":      {1, 0, 1, 1, 0, 1, 0, 0, 1},
		"a mask of none": {1, 0, 0, 0, 0, 0, 0, 1, 1}, // 0/1e-9 is 0, not NaN
	} {
		v := x.random(9 * width)
		var want []float64
		row := 0
		for _, g := range segments {
			sums, count := make([]float64, width), 0.0
			for range g.Length {
				weight := 1.0
				if mask != nil {
					weight = float64(mask[row])
				}
				for i := range sums {
					sums[i] += weight * float64(v[row*width+i])
				}
				count += weight
				row++
			}
			for _, f := range sums {
				want = append(want, f/max(count, 1e-9))
			}
		}
		s.near(t, name, x.read(x.s.Mean(x.s.From(v, 9, width), segments, mask)), want)
	}
}

func (s elementSuite) unit(t *testing.T) {
	x := s.open(t)
	const rows, width = 4, 259
	v, want := x.random(rows*width), make([]float64, rows*width)
	for i := range width {
		v[i] *= 1e3
		v[width+i] *= 1e-3
		v[2*width+i] = 0 // stays
	}
	for r := range rows {
		var sum float64
		for _, f := range v[r*width : (r+1)*width] {
			sum += float64(f) * float64(f)
		}
		for i := range width {
			if sum > 0 {
				want[r*width+i] = float64(v[r*width+i]) / math.Sqrt(sum)
			}
		}
	}
	s.near(t, "Unit", x.read(x.s.Unit(x.s.From(v, rows, width))), want)
}
