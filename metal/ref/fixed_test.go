package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
)

// group computes one group's dot product for one row of words.
func group(x []float32, words [16]byte) float32 {
	var t pairTables
	var f, none fixed
	f.read(x)
	t.build(quant.AffineOf(4, 32, quant.Float16), &f, &none)
	acc := []float32{0}
	t.one(2, acc, words[:], []uint16{0x3c00, 0}, &f) // scale 1, bias 0
	return acc[0]
}

func TestFixedPointIsAsFineAsFloat32(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	worst := 0.0
	for range 2000 {
		x := make([]float32, groupSize)
		for i := range x {
			x[i] = float32(rng.NormFloat64() * math.Exp(rng.NormFloat64()))
		}
		if rng.IntN(4) == 0 {
			x[rng.IntN(len(x))] *= 1000 // an outlier, as networks have them
		}
		var words [16]byte
		top, want := 0.0, 0.0
		for i := range words {
			words[i] = byte(rng.Uint32())
			want += float64(words[i]&15)*float64(x[2*i]) + float64(words[i]>>4)*float64(x[2*i+1])
		}
		for _, v := range x {
			top = max(top, math.Abs(float64(v)))
		}
		worst = max(worst, math.Abs(float64(group(x, words))-want)/(15*top))
	}
	// 32 products, each off by at most half a step of 2^-22 of the largest; a
	// float32 sum of the same terms may be off by 32 times 2^-24.
	if worst > 32*0x1p-23 {
		t.Errorf("worst error is %.3g of the largest product", worst)
	}
}

func TestTheLargestSumsDoNotOverflow(t *testing.T) {
	for _, sign := range []float32{1, -1} {
		x := make([]float32, groupSize)
		var words [16]byte
		for i := range x {
			x[i] = sign * 1e30
		}
		for i := range words {
			words[i] = 0xff
		}
		var f fixed
		f.read(x)
		var tables pairTables
		tables.build(quant.AffineOf(4, 32, quant.Float16), &f, &f)
		a, b := []float32{0}, []float32{0}
		f.scale = 1
		tables.two(2, a, b, words[:], []uint16{0x3c00, 0}, &f, &f)
		if want := sign * 32 * 15 * fixedOne; a[0] != want || b[0] != want {
			t.Errorf("sums are %v and %v, want %v", a[0], b[0], want)
		}
	}
}

func TestOneAndTwoTokensAgreeToTheBit(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, format := range []quant.Format{quant.AffineOf(4, 32, quant.Float16), quant.SymmetricOf(4, 32, quant.Float16)} {
		const rows = 50
		per := perGroup(format)
		words, scales := make([]byte, 16*rows), make([]uint16, per*rows)
		for i := range words {
			words[i] = byte(rng.Uint32())
		}
		for i := range scales {
			scales[i] = uint16(rng.Uint32()) &^ 0x4000 // finite
		}
		var f [2]fixed
		for i := range f {
			x := make([]float32, groupSize)
			for j := range x {
				x[j] = float32(rng.NormFloat64())
			}
			f[i].read(x)
		}
		var tables pairTables
		tables.build(format, &f[0], &f[1])
		both := [2][]float32{make([]float32, rows), make([]float32, rows)}
		tables.two(per, both[0], both[1], words, scales, &f[0], &f[1])
		for i := range f {
			alone := make([]float32, rows)
			tables.build(format, &f[i], &fixed{})
			tables.one(per, alone, words, scales, &f[i])
			for r := range alone {
				if math.Float32bits(alone[r]) != math.Float32bits(both[i][r]) {
					t.Fatalf("%v, token %d, row %d: %v alone, %v beside another", format, i, r, alone[r], both[i][r])
				}
			}
		}
	}
}

func TestWhatIsNotFiniteStaysNotANumber(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		x := make([]float32, groupSize)
		x[0], x[7] = 1, bad
		if got := group(x, [16]byte{1}); got == got {
			t.Errorf("a group with %v sums to %v", bad, got)
		}
	}
	tiny := make([]float32, groupSize)
	tiny[3] = 1e-38
	if got := group(tiny, [16]byte{0xff, 0xff}); got != 0 {
		t.Errorf("a group of nothing sums to %v", got)
	}
}
