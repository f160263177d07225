package weights

import (
	"fmt"
	"math"
)

// Type is how the elements of a tensor are stored, by its number in GGUF.
type Type uint32

// The types this package reads.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q8_0 Type = 8
	BF16 Type = 30
)

// GroupSize is the number of elements that share one scale in every block
// format read here.
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
	case Q8_0:
		return typeInfo{"Q8_0", GroupSize, 2 + 32}, true
	}
	return typeInfo{}, false
}

// SupportedTypes lists the names of the tensor types this package reads.
func SupportedTypes() []string { return []string{"BF16", "F16", "F32", "Q4_0", "Q4_1", "Q8_0"} }

func (t Type) String() string {
	if i, ok := t.info(); ok {
		return i.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Quantized reports whether elements come in blocks with a scale.
func (t Type) Quantized() bool { return t == Q4_0 || t == Q4_1 || t == Q8_0 }

// RowBytes is the size of one row of n elements; ok is false where n is not
// whole blocks or too large to count.
func (t Type) RowBytes(n int64) (int64, bool) {
	i, ok := t.info()
	if !ok || n <= 0 || n%i.blockElems != 0 || n/i.blockElems > math.MaxInt64/i.blockBytes {
		return 0, false
	}
	return n / i.blockElems * i.blockBytes, true
}
