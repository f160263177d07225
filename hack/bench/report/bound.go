package report

// Bound is what a median must meet. The zero value is none.
type Bound struct {
	words string
	limit float64
	meets func(v, limit float64) bool
	note  string
}

// AtLeast is a bound from below.
func AtLeast(limit float64) Bound {
	return Bound{words: "at least", limit: limit, meets: func(v, limit float64) bool { return v >= limit }}
}

// AtMost is a bound from above.
func AtMost(limit float64) Bound {
	return Bound{words: "at most", limit: limit, meets: func(v, limit float64) bool { return v <= limit }}
}

// Under is a bound from above that may not be reached.
func Under(limit float64) Bound {
	return Bound{words: "under", limit: limit, meets: func(v, limit float64) bool { return v < limit }}
}

// Of says where the limit comes from.
func (b Bound) Of(note string) Bound {
	b.note = note
	return b
}

// String is the bound in words; empty for none.
func (b Bound) String() string {
	if b.meets == nil {
		return ""
	}
	s := b.words + " " + number(b.limit)
	if b.note != "" {
		s += " (" + b.note + ")"
	}
	return s
}

func (b Bound) holds(v float64) bool { return b.meets == nil || b.meets(v, b.limit) }
