package ref

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
)

// nibbles is the layout of 4-bit elements.
func nibbles() layout { return layout{{bits: 4}} }

// unit is a column of 4-bit rows with scale 1 and bias 0.
func unit(words []byte) *column {
	return &column{low: roomy(words), scales: roomy([]byte{0, 0x3c, 0, 0}), kind: quant.Float16, bias: 2, step: 4}
}

// roomy is a copy with room after it, which kernels need.
func roomy(p []byte) []byte { return append(make([]byte, 0, len(p)+64), p...) }

// dotOf computes one group's dot product for one row of words.
func dotOf(x []float32, words [16]byte) float32 {
	var g group
	g.first.read(x, fixedOne)
	g.build(nibbles())
	acc := []float32{0}
	g.addOne(acc, unit(words[:]), 0)
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
		worst = max(worst, math.Abs(float64(dotOf(x, words))-want)/(15*top))
	}
	// 32 products, each off by at most half a step of 2^-22 of the largest; a
	// float32 sum of the same terms may be off by 32 times 2^-24.
	if worst > 32*0x1p-23 {
		t.Errorf("worst error is %.3g of the largest product", worst)
	}
}

func TestTheLargestSumsDoNotOverflow(t *testing.T) {
	ones := make([]byte, 16)
	for i := range ones {
		ones[i] = 0xff
	}
	for _, sign := range []float32{1, -1} {
		x := make([]float32, groupSize)
		for i := range x {
			x[i] = sign * 1e30
		}
		var g group
		g.first.read(x, fixedOne)
		g.second.read(x, fixedOne)
		for _, p := range []plane{{bits: 4}, {bits: 2}, {bits: 1}} {
			g.build(layout{p})
			sums := []uint64{0}
			g.planeSums(p, sums, roomy(ones), 0)
			low := int32(sums[0])
			high := (int64(sums[0]) - int64(low)) >> 32
			if want := int64(sign) * 32 * fixedOne * (1<<p.bits - 1); int64(low) != want || high != want {
				t.Errorf("a plane of %d bits sums to %d and %d, want %d", p.bits, low, high, want)
			}
		}
	}
}

// randomColumn is rows of random words with finite scales.
func randomColumn(rng *rand.Rand, f quant.Format, rows int) *column {
	l, m := layoutOf(f), matrix{format: f}
	c := &column{low: make([]byte, rows*l[0].bytes()), high: make([]byte, rows*l[1].bytes()), kind: f.Type, bias: m.biasAt(), step: m.scaleBytes()}
	for _, p := range [][]byte{c.low, c.high} {
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
	}
	for range rows * c.step / 2 {
		c.scales = binary.LittleEndian.AppendUint16(c.scales, uint16(rng.Uint32())&^0x4000)
	}
	c.low, c.high, c.scales = roomy(c.low), roomy(c.high), roomy(c.scales)
	return c
}

func TestOneAndTwoTokensAgreeToTheBit(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, f := range []quant.Format{
		quant.AffineOf(4, 32, quant.Float16), quant.AffineOf(4, 64, quant.BFloat16), quant.AffineOf(4, 64, quant.Float32),
		quant.SymmetricOf(4, 32, quant.Float16), quant.SymmetricOf(4, 32, quant.Float32),
	} {
		const rows = 50
		c := randomColumn(rng, f, rows)
		var g group
		for _, token := range []*fixed{&g.first, &g.second} {
			x := make([]float32, groupSize)
			for j := range x {
				x[j] = float32(rng.NormFloat64())
			}
			token.read(x, fixedOne)
		}
		g.build(nibbles())
		both := [2][]float32{make([]float32, rows), make([]float32, rows)}
		g.addTwo(both[0], both[1], c, g.zero(nibbles(), f.Mode))
		for i, token := range []fixed{g.first, g.second} {
			alone := make([]float32, rows)
			g.first, g.second = token, fixed{}
			g.build(nibbles())
			g.addOne(alone, c, g.zero(nibbles(), f.Mode))
			for r := range alone {
				if math.Float32bits(alone[r]) != math.Float32bits(both[i][r]) {
					t.Fatalf("%v, token %d, row %d: %v alone, %v with another", f, i, r, alone[r], both[i][r])
				}
			}
		}
	}
}

func TestPlanesHoldWhatTheRowHeld(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, bits := range quant.Bits() {
		l := layoutOf(quant.AffineOf(bits, 32, quant.Float16))
		if n := l.bytes(); n != 4*bits {
			t.Errorf("32 elements of %d bits lie in %d bytes", bits, n)
		}
		for range 100 {
			packed := make([]byte, 4*bits)
			for i := range packed {
				packed[i] = byte(rng.Uint32())
			}
			data := make([]byte, 4*bits)
			(&matrix{layout: l, out: 1, in: groupSize, data: data}).scatterWords(packed, 0, 1)
			for i := range groupSize {
				if got, want := l[0].element(data, i)|l[1].element(data[l[0].bytes():], i), quant.Q(packed, bits, i); got != want {
					t.Fatalf("%d bits: element %d is %d, want %d", bits, i, got, want)
				}
			}
		}
	}
}

func TestWhatIsNotFiniteStaysNotANumber(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		x := make([]float32, groupSize)
		x[0], x[7] = 1, bad
		if got := dotOf(x, [16]byte{1}); got == got {
			t.Errorf("a group with %v sums to %v", bad, got)
		}
	}
	tiny := make([]float32, groupSize)
	tiny[3] = 1e-38
	if got := dotOf(tiny, [16]byte{0xff, 0xff}); got != 0 {
		t.Errorf("a group of nothing sums to %v", got)
	}
}
