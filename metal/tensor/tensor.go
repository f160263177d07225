// Package tensor is the interface between model families and back ends: the
// operations a decoder is made of, the lifetime of arrays, and the caches that
// attention keeps.
//
// It owns the words (Array, Matrix, Scope, Segment, Cache) and their rules; the
// back ends own every byte. It refuses to leak: an array lives until its scope
// closes unless it was kept, and live arrays are counted. The suite that every
// back end passes is package tensortest; an operation enters the interface,
// every back end and the suite in one change.
//
// A step is flat: tokens of all requests in one [T, D] array, and segments that
// say which rows belong to whom. Only AppendAttend, Recur and Rope see segments.
//
// Start reading at Backend, then Scope.
package tensor

import (
	"context"
	"errors"
	"fmt"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrShape says that operands do not fit; it is a fault in the caller.
	ErrShape = errors.New("shapes do not fit")
	// ErrMemory says that an allocation would exceed the back end's limit.
	ErrMemory = errors.New("memory limit of the back end reached")
	// ErrSegment says that a segment does not continue what the cache holds.
	ErrSegment = errors.New("segment does not continue the cache")
	// ErrUnsupported says that this back end lacks an operation or a format.
	ErrUnsupported = errors.New("operation not supported by this back end")
	// ErrReleased says that an array, matrix or cache is used after its release.
	ErrReleased = errors.New("used after release")
	// ErrLeak says that something was still alive when its owner closed.
	ErrLeak = errors.New("arrays are still alive")
)

// ShapeError names the operation whose operands did not fit.
type ShapeError struct{ Op, Detail string }

func (e *ShapeError) Error() string { return fmt.Sprintf("%s: %v: %s", e.Op, ErrShape, e.Detail) }

// Unwrap makes errors.Is(err, ErrShape) true.
func (e *ShapeError) Unwrap() error { return ErrShape }

// Array is a float32 array that a back end holds. Its scope owns it.
type Array interface {
	// Shape has the outermost dimension first. Callers do not change it.
	Shape() []int
}

// Matrix is a loaded weight matrix [out, in], dense or quantised. Whoever
// loaded it releases it.
type Matrix interface {
	Shape() (out, in int)
	// Bytes it occupies.
	Bytes() int64
	Release()
}

// Format is how a matrix or vector comes in.
type Format int

// The formats a back end loads. Affine rows have groups of 32 elements.
const (
	Float32 Format = iota
	Float16
	BFloat16
	// Affine4 and Affine8 are scale*q + bias, q unsigned.
	Affine4
	Affine8
	// Symmetric4 and Symmetric8 are scale * (q - 2^(bits-1)).
	Symmetric4
	Symmetric8
)

// GroupSize is the number of elements that share a scale.
const GroupSize = 32

// Bits of one stored element.
func (f Format) Bits() int {
	switch f {
	case Float32:
		return 32
	case Float16, BFloat16:
		return 16
	case Affine8, Symmetric8:
		return 8
	}
	return 4
}

// Quantized reports whether elements come in groups with scales.
func (f Format) Quantized() bool { return f >= Affine4 }

// Biased reports whether groups carry a bias of their own.
func (f Format) Biased() bool { return f == Affine4 || f == Affine8 }

func (f Format) String() string {
	names := []string{"float32", "float16", "bfloat16", "affine4", "affine8", "symmetric4", "symmetric8"}
	if f < 0 || int(f) >= len(names) {
		return fmt.Sprintf("format %d", int(f))
	}
	return names[f]
}

// Row is one row on its way into a matrix. Raw holds little-endian floats, or
// the q of consecutive elements in consecutive bits; Scales and Biases are in
// half precision, one per group. It is only read during the call.
type Row struct {
	Raw            []byte
	Scales, Biases []uint16
}

// Memory is a back end's own account, in bytes.
type Memory struct {
	// Weights are loaded matrices, KV the blocks that requests hold, Arrays
	// what scopes and kept arrays hold, Pooled free for reuse and not returned.
	Weights, KV, Arrays, Pooled int64
	// Live counts arrays that are not released.
	Live int64
}

// Active is everything in use.
func (m Memory) Active() int64 { return m.Weights + m.KV + m.Arrays }

// Backend is one way to compute. One goroutine at a time uses a back end;
// Memory alone may be called from anywhere.
type Backend interface {
	Name() string
	Memory() Memory
	// SetLimits bounds active bytes and pooled bytes; 0 means no bound.
	SetLimits(active, pooled int64)
	// LoadMatrix makes an [out, in] matrix from rows in any order; each row is
	// put exactly once before fill returns.
	LoadMatrix(format Format, out, in int, fill func(put func(row int, r Row) error) error) (Matrix, error)
	// NewCache makes an empty cache.
	NewCache(CacheSpec) (Cache, error)
	// NewScope begins a computation. Operations fail once ctx is done.
	NewScope(ctx context.Context) Scope
	// Close returns all memory; ErrLeak if something is still alive.
	Close() error
}

// CacheSpec is the shape of what attention keeps for every request.
type CacheSpec struct {
	Layers, KVHeads, HeadSize int
	// BlockTokens is the granularity of allocation.
	BlockTokens int
}

// TokenBytes is what one token occupies at the given element width.
func (s CacheSpec) TokenBytes(elementBytes int) int64 {
	return 2 * int64(s.Layers) * int64(s.KVHeads) * int64(s.HeadSize) * int64(elementBytes)
}

// RequestID names a request to a cache; the caller never uses one twice.
type RequestID int64

// Cache holds keys and values of running requests.
type Cache interface {
	// Length is how many tokens of a request every layer holds.
	Length(RequestID) int
	// Drop returns the blocks of a request; unknown requests are ignored.
	Drop(RequestID)
	// Bytes held by requests.
	Bytes() int64
	// Release drops all requests.
	Release()
}

// Segment says that Length rows of a flat step belong to Request and stand at
// the positions from Start on. Segments follow one another without a gap.
type Segment struct {
	Request       RequestID
	Start, Length int
}

// Tokens is the number of rows that segments cover.
func Tokens(segments []Segment) int {
	n := 0
	for _, s := range segments {
		n += s.Length
	}
	return n
}

// RopeSpec says how a head is turned: pairs (i, i+Size/2) of the first Size
// elements, by position/Linear * Theta^(-2i/Size) / Factors[i].
type RopeSpec struct {
	Theta  float64
	Size   int
	Linear float64
	// Factors divide the frequencies; nil means 1.
	Factors []float32
}

// AttendSpec is one layer's attention over a flat step. Q is [T, heads*size],
// K and V are [T, kvHeads*size]; K and V are appended before attending.
type AttendSpec struct {
	Cache    Cache
	Layer    int
	Segments []Segment
	Q, K, V  Array
	// Scale multiplies scores.
	Scale float32
	// Window is how many latest positions a token sees, itself included; 0
	// means all of them.
	Window int
	// Sinks is a score per query head that takes part in the softmax and adds
	// nothing; nil means none.
	Sinks []float32
}

// RecurSpec is one recurrent layer over a flat step. It is declared so that
// families and schedulers are written against both kinds of state; no back end
// of this build computes it yet (ErrUnsupported).
type RecurSpec struct {
	Cache       Cache
	Layer       int
	Segments    []Segment
	Q, K, V     Array
	Decay, Beta Array
}

// Scope is one computation. The first fault sticks: later operations return
// arrays of no use, and Err says what happened. All arrays made in a scope go
// when it closes, except those that Keep moved out.
type Scope interface {
	// Child opens a scope inside this one: Keep of the child moves into this.
	// The child closes first.
	Child() Scope
	// Keep moves a out: to the parent scope, or, at the top, to the caller, who
	// then calls Release on the kept array.
	Keep(a Array) Array
	// Release frees an array that a top scope's Keep gave to the caller.
	Release(a Array)
	// Close frees what was not kept. Closing twice does nothing.
	Close()
	// Err is the first fault.
	Err() error

	// From copies values into a new array.
	From(values []float32, shape ...int) Array
	// Read copies an array out; dst has its size.
	Read(a Array, dst []float32)

	// Embed gathers rows of a matrix: [len(ids), in].
	Embed(m Matrix, ids []int32) Array
	// Linear multiplies x [T, in] by each matrix transposed: [T, out].
	Linear(x Array, ms ...Matrix) []Array
	// Rows gathers rows of x [T, D].
	Rows(x Array, rows []int) Array
	// Add and Multiply work element by element on equal shapes.
	Add(a, b Array) Array
	Multiply(a, b Array) Array
	// SiLU is x * sigmoid(x).
	SiLU(x Array) Array
	// RMSNorm scales each row of x [T, D] to unit root mean square, then by weight [D].
	RMSNorm(x, weight Array, eps float32) Array
	// Rope turns each head of x [T, heads*headSize] by the position of its row.
	Rope(x Array, segments []Segment, headSize int, spec RopeSpec) Array
	// AppendAttend extends the cache and attends: [T, heads*size].
	AppendAttend(AttendSpec) Array
	// Recur extends a recurrent state and reads it.
	Recur(RecurSpec) Array
}
