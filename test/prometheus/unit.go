package main

import (
	"math"
	"strconv"
)

// unit of an axis.
type unit struct {
	steps []scale
}

// scale is a unit that large values are told in.
type scale struct {
	size float64
	name string
}

// units are those of Grafana that our dashboards use.
var units = map[string]unit{
	"short": {steps: []scale{{1, ""}}},
	"reqps": {steps: []scale{{1, "req/s"}}},
	"s":     {steps: []scale{{1e-3, "ms"}, {1, "s"}}},
	"bytes": {steps: []scale{{1, "B"}, {1 << 10, "KiB"}, {1 << 20, "MiB"}, {1 << 30, "GiB"}, {1 << 40, "TiB"}}},
}

// mark is a value on an axis, with its words.
type mark struct {
	at    float64
	words string
}

// marks are about four round values from 0 to most or a little above it; the
// last is the top of the axis. Of whole values all marks are whole.
func (u unit) marks(most float64, whole bool) []mark {
	if !(most > 0) {
		most = 1
	}
	s := u.steps[0]
	for _, other := range u.steps {
		if other.size <= most {
			s = other
		}
	}
	step := roundStep(most / s.size / 4)
	if whole {
		step = max(step, 1)
	}
	var out []mark
	for i := 0; ; i++ {
		value := float64(i) * step
		words := strconv.FormatFloat(value, 'f', decimals(step), 64)
		if s.name != "" {
			words += " " + s.name
		}
		out = append(out, mark{value * s.size, words})
		if value*s.size >= most {
			return out
		}
	}
}

// roundStep is 1, 2 or 5 times a power of ten, at least least.
func roundStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= least*(1-1e-9) {
			return digit * power
		}
	}
	return 10 * power
}

// decimals that a step needs.
func decimals(step float64) int {
	return max(0, int(-math.Floor(math.Log10(step)+1e-9)))
}
