package grammar

import (
	"encoding/json"
	"math/big"
	"strings"
)

// bound of numbers; a nil one is none.
type bound struct {
	at     *big.Rat
	strict bool
}

const (
	// freeDigits of a number on a side that has no bound, and sloppyDigits of one in sloppy
	// JSON, whose model means them all.
	freeDigits   = 18
	sloppyDigits = 64
	// maxDigits of a bound.
	maxDigits = 40
)

// bounds of a case.
func (s *document) bounds(c oneCase) (low, high bound, err error) {
	for _, o := range c {
		for _, k := range []struct {
			name          string
			upper, strict bool
		}{{"minimum", false, false}, {"exclusiveMinimum", false, true}, {"maximum", true, false}, {"exclusiveMaximum", true, true}} {
			v, ok := o.get(k.name)
			if !ok {
				continue
			}
			n, isNumber := v.(json.Number)
			s.b.meter.spend(weight(v))
			if !isNumber {
				return low, high, s.malformed(k.name, o.at, "a number")
			}
			r, ok := exact(n)
			if !ok || len(digitsOf(r).whole)+len(digitsOf(r).fraction) > maxDigits {
				return low, high, tooLarge("digits of a number", maxDigits)
			}
			to, sign := &low, 1
			if k.upper {
				to, sign = &high, -1
			}
			if to.at == nil || r.Cmp(to.at)*sign > 0 || r.Cmp(to.at) == 0 && k.strict {
				*to = bound{r, k.strict}
			}
		}
	}
	return low, high, nil
}

// decimal is a number that is not negative, as digits.
type decimal struct{ whole, fraction string }

// digitsOf is the size of a number, which is a finite decimal.
func digitsOf(r *big.Rat) decimal {
	places, _ := r.FloatPrec()
	text := new(big.Rat).Abs(r).FloatString(places)
	whole, fraction, _ := strings.Cut(text, ".")
	return decimal{whole, strings.TrimRight(fraction, "0")}
}

// emitNumber is the numbers of a case.
func (s *schemas) emitNumber(c oneCase, kinds types) (expr, error) {
	low, high, err := s.bounds(c)
	if err != nil {
		return nil, err
	}
	fraction := kinds&typeFraction != 0
	if low.at == nil && high.at == nil {
		return s.freeNumber(fraction), nil
	}
	// A side without a bound ends where many digits are.
	most := freeDigits
	for _, b := range []bound{low, high} {
		if b.at != nil {
			most = max(most, len(digitsOf(b.at).whole)+1)
		}
	}
	far := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(most)), nil))
	if low.at == nil {
		low = bound{new(big.Rat).Neg(far), true}
	}
	if high.at == nil {
		high = bound{far, true}
	}
	if !fraction {
		low, high = inward(low, 1), inward(high, -1)
	}
	if d := low.at.Cmp(high.at); d > 0 || d == 0 && (low.strict || high.strict) {
		return alt{}, nil
	}
	zero := bound{new(big.Rat), false}
	var all alt
	if high.at.Sign() >= 0 {
		from := low
		if low.at.Sign() < 0 {
			from = zero
		}
		all = append(all, s.between(from, high, fraction))
	}
	if low.at.Sign() < 0 {
		to := bound{new(big.Rat).Neg(low.at), low.strict}
		from := zero
		if high.at.Sign() <= 0 {
			from = bound{new(big.Rat).Neg(high.at), high.strict}
		}
		all = append(all, seq{literal("-"), s.between(from, to, fraction)})
	}
	return all, nil
}

// inward moves a bound to the next whole number within it.
func inward(b bound, direction int64) bound {
	if b.at.IsInt() {
		if b.strict {
			return bound{new(big.Rat).Add(b.at, big.NewRat(direction, 1)), false}
		}
		return b
	}
	down := new(big.Int).Div(b.at.Num(), b.at.Denom()) // Euclidean: towards the lower one
	if direction > 0 {
		down.Add(down, big.NewInt(1))
	}
	return bound{new(big.Rat).SetInt(down), false}
}

func (s *schemas) freeNumber(fraction bool) expr {
	digit := runes(newRuneSet(runeRange{'0', '9'}))
	most := freeDigits
	if s.sloppy {
		most = sloppyDigits
	}
	whole := seq{repeat{literal("-"), 0, 1}, alt{literal("0"), seq{runes(newRuneSet(runeRange{'1', '9'})), repeat{digit, 0, most - 1}}}}
	switch {
	case !fraction && s.sloppy:
		return s.b.define(seq{whole, repeat{seq{literal("."), repeat{literal("0"), 1, freeDigits}}, 0, 1}})
	case !fraction:
		return s.b.define(whole)
	}
	return s.b.define(seq{whole,
		repeat{seq{literal("."), repeat{digit, 1, most}}, 0, 1},
		repeat{seq{alt{literal("e"), literal("E")}, repeat{alt{literal("+"), literal("-")}, 0, 1}, repeat{digit, 1, 2}}, 0, 1}})
}

// between makes the rule of decimals between two that are not negative.
func (s *schemas) between(low, high bound, fraction bool) expr {
	m := &decimals{b: s.b, low: digitsOf(low.at), high: digitsOf(high.at), lowStrict: low.strict, highStrict: high.strict, fraction: fraction, known: map[tight]int32{}}
	rule := s.b.rule()
	for n := len(m.low.whole); n <= len(m.high.whole); n++ {
		s.b.empty(s.b.rules[rule], m.node(tight{digits: n, low: n == len(m.low.whole), high: n == len(m.high.whole)}))
	}
	return ref(rule)
}

// tight is the state of matching a decimal: at is the number of digits read of
// the whole part or, if fractional, of the fraction; low and high: the digits
// so far equal those of that bound.
type tight struct {
	digits, at int
	low, high  bool
	fractional bool
}

// decimals makes nodes of a comparison, digit by digit.
type decimals struct {
	b                     *builder
	low, high             decimal
	lowStrict, highStrict bool
	fraction              bool
	known                 map[tight]int32
}

func (m *decimals) node(t tight) int32 {
	if n, ok := m.known[t]; ok {
		return n
	}
	n := m.b.node()
	m.known[t] = n
	if m.b.err != nil {
		return n
	}
	whole := !t.fractional && t.at == t.digits
	if whole || t.fractional && t.at > 0 {
		m.b.nodes[n].final = m.mayEnd(t, whole)
	}
	switch {
	case whole && m.fraction:
		m.b.join(n, edge{kind: edgeBytes, lo: '.', hi: '.', to: m.node(tight{low: t.low, high: t.high, fractional: true})})
	case whole, t.fractional && t.at >= max(len(m.low.fraction), len(m.high.fraction))+freeDigits:
	default:
		m.digits(n, t)
	}
	return n
}

// mayEnd says whether the digits so far are within both bounds.
func (m *decimals) mayEnd(t tight, whole bool) bool {
	at := t.at
	if whole {
		at = 0
	}
	rest := func(fraction string) bool { return at < len(fraction) } // trailing zeros are cut
	if t.low && (rest(m.low.fraction) || m.lowStrict) {
		return false
	}
	return !t.high || rest(m.high.fraction) || !m.highStrict
}

// digits adds an edge for each digit to the node that follows it.
func (m *decimals) digits(n int32, t tight) {
	for d := byte('0'); d <= '9'; d++ {
		next := t
		next.at++
		if !t.fractional && t.at == 0 && t.digits > 1 && d == '0' {
			continue
		}
		if t.low {
			if low := m.digit(m.low, t); d < low {
				continue
			} else if d > low {
				next.low = false
			}
		}
		if t.high {
			if high := m.digit(m.high, t); d > high {
				continue
			} else if d < high {
				next.high = false
			}
		}
		m.b.join(n, edge{kind: edgeBytes, lo: d, hi: d, to: m.node(next)})
	}
}

func (m *decimals) digit(of decimal, t tight) byte {
	if !t.fractional {
		return of.whole[t.at]
	}
	if t.at < len(of.fraction) {
		return of.fraction[t.at]
	}
	return '0'
}

// fitsNumber says whether a number satisfies a case.
func (s *opener) fitsNumber(n json.Number, c oneCase) (bool, error) {
	low, high, err := s.bounds(c)
	if err != nil {
		return false, err
	}
	r, ok := exact(n)
	if !ok {
		return false, tooLarge("digits of a number", maxDigits)
	}
	if low.at != nil {
		if d := r.Cmp(low.at); d < 0 || d == 0 && low.strict {
			return false, nil
		}
	}
	if high.at != nil {
		if d := r.Cmp(high.at); d > 0 || d == 0 && high.strict {
			return false, nil
		}
	}
	return true, nil
}
