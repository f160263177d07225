package report

import "slices"

// Bound is what the median of a figure, or each of its runs, has to meet. The
// zero value is no bound.
type Bound struct {
	words string
	limit float64
	meets func(v, limit float64) bool
	every bool
	note  string
}

// AtLeast is a lower bound.
func AtLeast(limit float64) Bound {
	return Bound{words: "at least", limit: limit, meets: func(v, limit float64) bool { return v >= limit }}
}

// AtMost is an upper bound.
func AtMost(limit float64) Bound {
	return Bound{words: "at most", limit: limit, meets: func(v, limit float64) bool { return v <= limit }}
}

// Under is an upper bound that excludes the limit.
func Under(limit float64) Bound {
	return Bound{words: "under", limit: limit, meets: func(v, limit float64) bool { return v < limit }}
}

// Between is a lower and an upper bound.
func Between(low, high float64) Bound {
	return Bound{words: "from " + number(low) + " to", limit: high, meets: func(v, limit float64) bool { return v >= low && v <= limit }}
}

// Of adds where the limit comes from.
func (b Bound) Of(note string) Bound {
	b.note = note
	return b
}

// Every applies the bound to every run instead of the median.
func (b Bound) Every() Bound {
	b.every = true
	return b
}

// String is the bound in words, empty for no bound.
func (b Bound) String() string {
	if b.meets == nil {
		return ""
	}
	s := b.words + " " + number(b.limit)
	if b.every {
		s += " in every run"
	}
	if b.note != "" {
		s += " (" + b.note + ")"
	}
	return s
}

func (b Bound) holds(median float64, runs []float64) bool {
	switch {
	case b.meets == nil:
		return true
	case b.every:
		return !slices.ContainsFunc(runs, func(v float64) bool { return !b.meets(v, b.limit) })
	}
	return b.meets(median, b.limit)
}
