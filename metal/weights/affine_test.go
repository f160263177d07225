//go:build !race

package weights_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/metal/float16"
	"metalfleet.dev/metalfleet/metal/weights"
)

// blockOracle reads GGUF blocks as their definition says, element by element.
func blockOracle(kind weights.Type, raw []byte, n int) []float32 {
	out := make([]float32, n)
	size := map[weights.Type]int{weights.Q4_0: 18, weights.Q4_1: 20, weights.Q8_0: 34}[kind]
	for i := range out {
		b := raw[i/32*size:]
		d, j := float16.Float32(binary.LittleEndian.Uint16(b)), i%32
		nibble := func(qs []byte) float32 {
			if j < 16 {
				return float32(qs[j] & 15)
			}
			return float32(qs[j-16] >> 4)
		}
		switch kind {
		case weights.Q4_0:
			out[i] = d * (nibble(b[2:]) - 8)
		case weights.Q4_1:
			out[i] = d*nibble(b[4:]) + float16.Float32(binary.LittleEndian.Uint16(b[2:]))
		case weights.Q8_0:
			out[i] = d * float32(int8(b[2+j]))
		}
	}
	return out
}

func TestBlocksReadAsTheirDefinitionSays(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, kind := range []weights.Type{weights.Q4_0, weights.Q4_1, weights.Q8_0} {
		const n = 96
		size, _ := kind.RowBytes(n)
		raw := make([]byte, size)
		for i := range raw {
			raw[i] = byte(rng.Uint32())
		}
		block := int(size) / 3
		for b := range 3 {
			binary.LittleEndian.PutUint16(raw[b*block:], float16.FromFloat32(float32(rng.NormFloat64())))
			if kind == weights.Q4_1 {
				binary.LittleEndian.PutUint16(raw[b*block+2:], float16.FromFloat32(float32(rng.NormFloat64())))
			}
		}
		got := make([]float32, n)
		if err := kind.Dequantize(raw, got); err != nil {
			t.Fatal(err)
		}
		for i, want := range blockOracle(kind, raw, n) {
			if got[i] != want {
				t.Fatalf("%v element %d is %v, want %v", kind, i, got[i], want)
			}
		}
		if err := kind.Dequantize(raw[:size-1], got); err == nil {
			t.Errorf("%v: a short row was read", kind)
		}
	}
}
