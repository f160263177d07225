package weights

import (
	"fmt"
	"math"
	"slices"
)

// Type is the storage format of a tensor's elements, with GGUF's numbers.
type Type uint32

// The types this package reads.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q5_0 Type = 6
	Q5_1 Type = 7
	Q8_0 Type = 8
	Q2_K Type = 10
	Q3_K Type = 11
	Q4_K Type = 12
	Q5_K Type = 13
	Q6_K Type = 14
	BF16 Type = 30
	// MXFP4 are floats of 4 bits in blocks with a power of two.
	MXFP4 Type = 39
)

// GroupSize is the number of elements that share one scale in the formats with
// short blocks.
const GroupSize = 32

type typeInfo struct {
	name       string
	blockElems int64
	blockBytes int64
}

func (t Type) info() (typeInfo, bool) {
	switch t {
	case F32:
		return typeInfo{"F32", 1, 4}, true
	case F16:
		return typeInfo{"F16", 1, 2}, true
	case BF16:
		return typeInfo{"BF16", 1, 2}, true
	case Q4_0:
		return typeInfo{"Q4_0", GroupSize, 2 + 16}, true
	case Q4_1:
		return typeInfo{"Q4_1", GroupSize, 4 + 16}, true
	case Q5_0:
		return typeInfo{"Q5_0", GroupSize, 2 + 4 + 16}, true
	case Q5_1:
		return typeInfo{"Q5_1", GroupSize, 4 + 4 + 16}, true
	case Q8_0:
		return typeInfo{"Q8_0", GroupSize, 2 + 32}, true
	case Q2_K:
		return typeInfo{"Q2_K", superSize, 16 + 64 + 4}, true
	case Q3_K:
		return typeInfo{"Q3_K", superSize, 32 + 64 + 12 + 2}, true
	case Q4_K:
		return typeInfo{"Q4_K", superSize, 4 + 12 + 128}, true
	case Q5_K:
		return typeInfo{"Q5_K", superSize, 4 + 12 + 32 + 128}, true
	case Q6_K:
		return typeInfo{"Q6_K", superSize, 128 + 64 + 16 + 2}, true
	case MXFP4:
		return typeInfo{"MXFP4", GroupSize, 1 + 16}, true
	}
	return typeInfo{}, false
}

// foreign names the types of GGUF that are not read (ggml.h, enum ggml_type).
func (t Type) foreign() string {
	return map[Type]string{
		9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
		24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
	}[t]
}

// supportedTypes lists the names of the tensor types this package reads.
func supportedTypes() []string {
	var names []string
	for _, t := range Types() {
		names = append(names, t.String())
	}
	slices.Sort(names)
	return names
}

// Types lists the tensor types this package reads.
func Types() []Type {
	return []Type{F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, MXFP4}
}

func (t Type) String() string {
	if i, ok := t.info(); ok {
		return i.name
	}
	if name := t.foreign(); name != "" {
		return name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Quantized reports whether elements come in blocks with a scale.
func (t Type) Quantized() bool {
	i, ok := t.info()
	return ok && i.blockElems > 1
}

// RowBytes is the size of one row of n elements; ok is false where n is not
// whole blocks or too large to count.
func (t Type) RowBytes(n int64) (int64, bool) {
	i, ok := t.info()
	if !ok || n <= 0 || n%i.blockElems != 0 || n/i.blockElems > math.MaxInt64/i.blockBytes {
		return 0, false
	}
	return n / i.blockElems * i.blockBytes, true
}
