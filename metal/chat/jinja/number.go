package jinja

import (
	"cmp"
	"math"
	"math/big"
)

// maxBits bounds integers: about the 4,300 decimal digits that Python prints.
const maxBits = 14_284

// number converts v for use as an index or a count: an integer (a bool counts
// as one; one beyond 64 bits is clamped) or a float.
func number(v any) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		return toInt(v), float64(toInt(v)), true, true
	case int64:
		return v, float64(v), true, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		if v.Sign() < 0 {
			return math.MinInt64, f, true, true
		}
		return math.MaxInt64, f, true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// integer is v as an integer of any size; nil if it is none.
func integer(v any) *big.Int {
	switch v := v.(type) {
	case bool:
		return big.NewInt(toInt(v))
	case int64:
		return big.NewInt(v)
	case *big.Int:
		return v
	}
	return nil
}

// small makes an int64 of what fits.
func small(b *big.Int) any {
	if b.IsInt64() {
		return b.Int64()
	}
	return b
}

// integral is the integer that f is; exact is false where it is none.
func integral(f float64) (v any, exact bool) {
	if f != math.Trunc(f) || math.IsInf(f, 0) {
		return nil, false
	}
	if math.Abs(f) < 1<<62 {
		return int64(f), true
	}
	b, _ := big.NewFloat(f).Int(nil)
	return small(b), true
}

// work counts the work of an operation on a large integer, which grows with
// the square of its length.
func (r *meter) work(b *big.Int) error {
	words := b.BitLen()/64 + 1
	if err := r.spend(words * words / 64); err != nil {
		return err
	}
	return r.charge(8 * words)
}

func tooManyDigits() error {
	return limitf(BoundDigits, "an integer has more than 4300 digits")
}

// remainderSteps is the work of a remainder of floats: 2,000 subtractions where one is much
// larger than the other.
const remainderSteps = 64

// arithmetic is a op b for two numbers.
func (r *values) arithmetic(op string, a, b any) (any, error) {
	ai, af, aInt, _ := number(a)
	bi, bf, bInt, _ := number(b)
	if !aInt || !bInt {
		if aInt && math.IsInf(af, 0) || bInt && math.IsInf(bf, 0) {
			return nil, failf("the integer is too large for a float")
		}
		if op == "%" || op == "//" {
			if err := r.spend(remainderSteps); err != nil {
				return nil, err
			}
		}
		return floatOp(op, af, bf)
	}
	_, aBig := a.(*big.Int)
	_, bBig := b.(*big.Int)
	if !aBig && !bBig {
		if v, ok := smallOp(op, ai, bi); ok {
			return v, nil
		}
	}
	return r.integerOp(op, integer(a), integer(b))
}

// smallOp does what fits into 64 bits.
func smallOp(op string, a, b int64) (any, bool) {
	switch op {
	case "+":
		s := a + b
		return s, (s > a) == (b > 0)
	case "-":
		d := a - b
		return d, (d < a) == (b > 0)
	case "*":
		if a == 0 || b == 0 {
			return int64(0), true
		}
		p := a * b
		return p, p/b == a && (a != -1 || b != math.MinInt64) && (b != -1 || a != math.MinInt64)
	case "//", "%":
		if b == 0 || (a == math.MinInt64 && b == -1) {
			return nil, false
		}
		q, m := a/b, a%b
		if m != 0 && (m < 0) != (b < 0) {
			q, m = q-1, m+b
		}
		if op == "%" {
			return m, true
		}
		return q, true
	}
	return nil, false
}

func (r *values) integerOp(op string, a, b *big.Int) (any, error) {
	if b.Sign() == 0 && (op == "/" || op == "//" || op == "%") {
		return nil, failf("division by zero")
	}
	for _, operand := range []*big.Int{a, b} { // the result may be small
		if err := r.work(operand); err != nil {
			return nil, err
		}
	}
	out := new(big.Int)
	switch op {
	case "+":
		out.Add(a, b)
	case "-":
		out.Sub(a, b)
	case "*":
		out.Mul(a, b)
	case "/":
		if err := r.spend(a.BitLen() + b.BitLen()); err != nil { // the fraction is reduced
			return nil, err
		}
		return divide(a, b)
	case "//", "%":
		m := new(big.Int)
		out.QuoRem(a, b, m)
		if m.Sign() != 0 && m.Sign() != b.Sign() {
			out.Sub(out, big.NewInt(1))
			m.Add(m, b)
		}
		if op == "%" {
			out = m
		}
	case "**":
		return r.integerPower(a, b)
	}
	if out.BitLen() > maxBits {
		return nil, tooManyDigits()
	}
	return small(out), r.work(out)
}

func divide(a, b *big.Int) (any, error) {
	f, _ := new(big.Rat).SetFrac(a, b).Float64()
	if math.IsInf(f, 0) {
		return nil, failf("the quotient is too large for a float")
	}
	return f, nil
}

func (r *values) integerPower(a, b *big.Int) (any, error) {
	if b.Sign() < 0 {
		af, _ := new(big.Float).SetInt(a).Float64()
		bf, _ := new(big.Float).SetInt(b).Float64()
		return floatPower(af, bf)
	}
	if a.BitLen() > 1 && (!b.IsInt64() || b.Int64() > maxBits || int64(a.BitLen()-1)*b.Int64() > maxBits) {
		return nil, tooManyDigits()
	}
	if a.BitLen() <= 1 { // -1, 0 or 1, whose powers repeat
		b = new(big.Int).SetUint64(uint64(b.Bit(0)) + 2*uint64(b.Sign()))
	}
	out := new(big.Int).Exp(a, b, nil)
	if out.BitLen() > maxBits {
		return nil, tooManyDigits()
	}
	return small(out), r.work(out)
}

func floatPower(a, b float64) (any, error) {
	out := math.Pow(a, b)
	switch {
	case a == 0 && b < 0:
		return nil, failf("0 cannot be raised to a negative power")
	case math.IsNaN(out) && !math.IsNaN(a) && !math.IsNaN(b):
		return nil, failf("a power of a negative number is not real")
	case math.IsInf(out, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0):
		return nil, failf("a power is too large for a float")
	}
	return out, nil
}

func floatOp(op string, a, b float64) (any, error) {
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "**":
		return floatPower(a, b)
	}
	if b == 0 {
		return nil, failf("division by zero")
	}
	if op == "/" {
		return a / b, nil
	}
	// As CPython's float_divmod, whose quotient agrees with its remainder.
	m := math.Mod(a, b)
	q := (a - m) / b
	if m != 0 {
		if (b < 0) != (m < 0) {
			m += b
			q--
		}
	} else {
		m = math.Copysign(0, b)
	}
	if op == "%" {
		return m, nil
	}
	if q == 0 {
		return math.Copysign(0, a/b), nil
	}
	floor := math.Floor(q)
	if q-floor > 0.5 {
		floor++
	}
	return floor, nil
}

func negate(v any) (any, error) {
	switch v := v.(type) {
	case float64:
		return -v, nil
	case int64:
		if v != math.MinInt64 {
			return -v, nil
		}
	}
	b := integer(v)
	if b == nil {
		return nil, failf("- does not work on %s", typeName(v))
	}
	return small(new(big.Int).Neg(b)), nil
}

func isNumber(v any) bool {
	switch v.(type) {
	case bool, int64, *big.Int, float64:
		return true
	}
	return false
}

// compareNumbers orders two numbers exactly; ordered is false for NaN.
func compareNumbers(a, b any) (c int, ordered bool) {
	if x, ok := a.(*big.Int); ok {
		if y, ok := b.(*big.Int); ok {
			return x.Cmp(y), true
		}
	}
	ai, af, aInt, _ := number(a)
	bi, bf, bInt, _ := number(b)
	const exact = 1 << 53
	switch {
	case math.IsNaN(af) || math.IsNaN(bf):
		return 0, false
	case !aInt && !bInt:
		return cmp.Compare(af, bf), true
	case !aInt && math.IsInf(af, 0):
		return cmp.Compare(af, 0), true
	case !bInt && math.IsInf(bf, 0):
		return cmp.Compare(0, bf), true
	case aInt && bInt && math.Abs(af) < 1<<62 && math.Abs(bf) < 1<<62:
		return cmp.Compare(ai, bi), true
	case math.Abs(af) < exact && math.Abs(bf) < exact:
		return cmp.Compare(af, bf), true
	}
	return exactly(a).Cmp(exactly(b)), true
}

func exactly(v any) *big.Float {
	if f, ok := v.(float64); ok {
		return new(big.Float).SetFloat64(f)
	}
	return new(big.Float).SetInt(integer(v))
}
