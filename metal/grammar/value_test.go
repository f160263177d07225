package grammar

import (
	"encoding/json"
	"testing"
)

// TestExponentsAreDecimal: JSON allows leading zeros in an exponent, which do not make it octal.
func TestExponentsAreDecimal(t *testing.T) {
	for n, same := range map[json.Number]json.Number{"1e0400": "1e400", "1e+010": "1e10", "1E-0400": "1e-400", "2e009": "2000000000"} {
		if !equal(n, same) {
			t.Errorf("%s is not %s", n, same)
		}
	}
	for _, n := range []json.Number{"1e401", "1e0401", "1e0999", "1e0999999", "1e-0999999", "1E+0999999"} {
		if r, ok := exact(n); ok {
			t.Errorf("%s is read as a number of %d bits", n, r.Num().BitLen()+r.Denom().BitLen())
		}
	}
}
