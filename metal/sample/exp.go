package sample

import "math"

// A row of logits takes one exponential a token, 150,000 of them, so it is worth
// less precision than math.Exp has: powers of two by 256ths from a table, and the
// rest by the first terms of its series, whose error is below 5e-10 of the value.
const (
	expParts = 256
	expScale = expParts / math.Ln2
	// expLeast is where 0 is near enough.
	expLeast = -700
)

var expTable = func() (t [expParts]float64) {
	for i := range t {
		t[i] = math.Exp2(float64(i) / expParts)
	}
	return t
}()

// exp is e to the power of x, which is not positive; 0 below -700.
func exp(x float64) float64 {
	if x < expLeast {
		return 0
	}
	t := x * expScale
	k := int64(t - 0.5) // the nearest: t is not positive
	f := (t - float64(k)) * (1 / expScale)
	power := math.Float64frombits(uint64(k>>8+1023) << 52)
	return expTable[k&(expParts-1)] * (1 + f*(1+f*0.5)) * power
}
