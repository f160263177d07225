// Package tensor is the interface between model families and backends: the
// operations a decoder consists of, the lifetime of arrays, and the caches of
// attention.
//
// It defines Array, Matrix, Scope, Segment and Cache and their rules; backends
// own all memory. An array lives until its scope closes unless it was kept;
// live arrays are counted, so that leaks are found. Package tensortest is the
// conformance suite of backends: an operation enters the interface, every
// backend and the suite in one change.
//
// A step is flat: the tokens of all requests are one [T, D] array, and segments
// map rows to requests. Only AppendAttend, AttendAll, Recur, Rope and Mean see
// segments.
//
// Start reading at Backend, then Scope.
package tensor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/quant"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrShape means that operands do not fit, which is a programming error.
	ErrShape = errors.New("shapes do not fit")
	// ErrMemory means that an allocation would exceed the back end's limit.
	ErrMemory = errors.New("memory limit of the back end reached")
	// ErrSegment means that a segment does not continue the cache.
	ErrSegment = errors.New("segment does not continue the cache")
	// ErrUnsupported means that this back end lacks an operation or a format.
	ErrUnsupported = errors.New("operation not supported by this back end")
	// ErrReleased means that an array, matrix or cache was used after its
	// release.
	ErrReleased = errors.New("used after release")
	// ErrThread means that a thread used a back end that belongs to another.
	ErrThread = errors.New("back end belongs to another thread")
	// ErrLeak means that something was still alive when its owner closed.
	ErrLeak = errors.New("arrays are still alive")
)

// ShapeError describes operands that do not fit an operation. Cause, if there is one, is
// what is wrong with a value.
type ShapeError struct {
	Op, Detail string
	Cause      error
}

func (e *ShapeError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Op, e.Detail, e.Cause)
	}
	return fmt.Sprintf("%s: %v: %s", e.Op, ErrShape, e.Detail)
}

// Unwrap makes errors.Is true for ErrShape and for the cause.
func (e *ShapeError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrShape}
	}
	return []error{ErrShape, e.Cause}
}

// Array is an array that a back end holds, perhaps not computed yet. Its scope
// owns it. Arrays hold real numbers, in float32 or in the type that the
// model's weights promote to, as the back end sees fit; those made by IDs,
// JoinIDs and Argmax hold token ids and serve Embed and ReadIDs alone.
type Array interface {
	// Shape lists the dimensions, the outermost first. The caller must not
	// modify it.
	Shape() []int
}

// Matrix is a loaded weight matrix [out, in], dense or quantized. The loader's
// caller must release it.
type Matrix interface {
	Shape() (out, in int)
	// Bytes it occupies.
	Bytes() int64
	Release()
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

// Pinner is a back end whose device copies faster from and to page-locked host
// memory.
type Pinner interface {
	// Apart reports whether the device has its own memory, so that arrays take
	// none of the host's. If not, nothing is page-locked. The back end must be
	// attached.
	Apart() bool
	// Pin page-locks memory, which becomes resident. The caller must call unpin
	// before it frees the memory. unpin is nil if the memory was not
	// page-locked; it can be copied all the same. Both are safe for concurrent
	// use.
	Pin(memory []byte) (unpin func())
}

// Backend is one way to compute. The goroutine that called Attach uses it, and
// no other; Name, Memory and SetLimits alone may be called from anywhere.
type Backend interface {
	Name() string
	// Attach binds the back end to the calling goroutine; if a framework needs
	// its own thread, it locks the goroutine to its thread until Close. It must
	// be called first. Calls from another thread fail with ErrThread.
	Attach() error
	// SetPrecision sets the minimum precision of activations, before the first
	// load: weights that would promote to a coarser type are widened. It has no
	// effect on back ends that always compute in float32.
	SetPrecision(t quant.Type)
	Memory() Memory
	// SetLimits bounds active bytes and pooled bytes; 0 means no bound.
	SetLimits(active, pooled int64)
	// Trim waits for running computations and returns pooled memory to the
	// system.
	Trim() error
	// Ahead reports whether a step may be started before the one before it was
	// read, at no cost in memory (Scope.Start).
	Ahead() bool
	// Chunk is the recommended maximum number of prefill tokens of a step:
	// enough to fill the device, few enough to stop soon.
	Chunk() int
	// LoadMatrix loads an [out, in] matrix from rows in any order; fill must
	// put each row exactly once. put takes one row or several consecutive ones
	// from first on, is safe for concurrent use and copies its argument. It
	// returns ErrShape for rows that do not fit, ErrUnsupported for unknown
	// formats.
	LoadMatrix(format quant.Format, out, in int, fill func(put func(first int, r quant.Row) error) error) (Matrix, error)
	// LoadVector returns a kept array [n] of n little-endian floats, which it
	// copies; Release of any scope frees it. It returns ErrShape if raw is
	// empty or not a whole number of floats.
	LoadVector(t quant.Type, raw []byte) (Array, error)
	// NewCache returns an empty cache.
	NewCache(CacheSpec) (Cache, error)
	// NewScope begins a computation. Operations fail once ctx is done.
	NewScope(ctx context.Context) Scope
	// Close returns all memory; ErrLeak if something is still alive.
	Close() error
}

// RouteSpec describes how experts are chosen by their scores, and their weights
// in the result.
type RouteSpec struct {
	// K is the number of experts to choose.
	K int
	// Sigmoid uses the sigmoids of the scores; otherwise the softmax of the
	// whole row.
	Sigmoid bool
	// Bias [E] is added to the scores for the choice, not for the weights; nil
	// means none.
	Bias Array
	// Only experts of the best TopGroups of Groups, each of consecutive
	// experts, can be chosen. A group ranks by its largest score or, with
	// Pairs, by the sum of its two largest. 0 and 1 mean no groups.
	Groups, TopGroups int
	Pairs             bool
	// Normalized shares add up to one before Scale multiplies them; Scale 0 means 1.
	Normalized bool
	Scale      float32
	// Least is added to the sum of the shares that is divided by.
	Least float32
	// Each [E] multiplies the share of each expert; nil means 1.
	Each Array
	// Rounded weights are computed in the type of the scores, as models do that
	// convert nothing. It goes with K and Normalized alone, as SoftmaxLast does with K.
	Rounded bool
	// SoftmaxLast takes the softmax of the chosen scores: the same numbers as
	// normalized ones, but rounded as models that take the softmax last round them.
	SoftmaxLast bool
	// Jitter, unless 0, chooses by SparseMixer (https://arxiv.org/abs/2409.12136): the
	// best expert first, then the best of the others, and so on. The share of each is
	// its softmax among those not chosen before it whose score lies at most 2*Jitter
	// under its own, relative to the larger of its score and their magnitude. Nothing
	// else changes such shares.
	Jitter float32
}

// Check refuses a router that does not fit the number of experts.
func (s RouteSpec) Check(experts int) error {
	switch {
	case s.K < 1 || s.K > experts:
		return fmt.Errorf("%d of %d experts", s.K, experts)
	case s.Groups > 1 && (experts%s.Groups != 0 || s.TopGroups < 1 || s.TopGroups > s.Groups || s.K > experts/s.Groups*s.TopGroups):
		return fmt.Errorf("%d of %d experts in %d of %d groups", s.K, experts, s.TopGroups, s.Groups)
	case s.Groups > 1 && s.Pairs && experts/s.Groups < 2:
		return fmt.Errorf("pairs in groups of %d experts", experts/s.Groups)
	case s.Rounded && s != RouteSpec{K: s.K, Normalized: s.Normalized, Rounded: true}, s.SoftmaxLast && s != RouteSpec{K: s.K, SoftmaxLast: true}:
		return fmt.Errorf("weights of another precision in %+v", s)
	case s.Jitter < 0, s.Jitter > 0 && (s.Sigmoid || s.Normalized || s.Groups > 1 || s.Bias != nil || s.Each != nil || s.Scale != 0 || s.Least != 0):
		return fmt.Errorf("a jitter of %v in %+v", s.Jitter, s)
	}
	return nil
}

// Multiplies reports whether an array can be multiplied by another, by their shapes
// (Scope.Multiply).
func Multiplies(a, by []int) bool {
	switch {
	case slices.Equal(a, by):
		return true
	case len(a) != 2 || a[1] == 0:
		return false
	case len(by) == 1:
		return by[0] == a[1]
	}
	return len(by) == 2 && by[0] == a[0] && by[1] > 0 && a[1]%by[1] == 0
}

// CheckMix refuses operands that Scope.MixRuns cannot mix, and returns the number of runs
// of the result.
func CheckMix(x, by []int, n int) (m int, err error) {
	if n < 1 || x[0] != by[0] || x[1]%n != 0 || by[1] == 0 || by[1]%n != 0 {
		return 0, &ShapeError{Op: "MixRuns", Detail: fmt.Sprintf("%d runs of %v by %v", n, x, by)}
	}
	return by[1] / n, nil
}

// Arena owns the arrays of a computation, and moves numbers in and out. The first error
// sticks: later operations return unusable arrays, and Err returns the error. All arrays
// made in it are released when it closes, except those that Keep moved out.
type Arena interface {
	// Child opens a scope inside this one: Keep of the child moves into this.
	// The child closes first.
	Child() Scope
	// Keep moves a to the parent scope or, at the top level, to the caller, who
	// must release it.
	Keep(a Array) Array
	// Release frees an array before its scope closes, or one that a top scope's
	// Keep gave to the caller.
	Release(a Array)
	// Close frees what was not kept. Closing twice has no effect.
	Close()
	// Err is the first fault.
	Err() error

	// From copies values into a new float32 array.
	From(values []float32, shape ...int) Array
	// Read computes an array and copies it out; dst has its size.
	Read(a Array, dst []float32)
	// IDs copies token ids into a new array [n].
	IDs(ids []int32) Array
	// JoinIDs returns rows of the token ids a [n], which need not be computed
	// yet, followed by known ids: [len(rows)+len(ids)], of which the former are
	// not 0.
	JoinIDs(a Array, rows []int, ids []int32) Array
	// ReadIDs computes an array of token ids and copies it out.
	ReadIDs(a Array, dst []int32)
	// Start begins to compute arrays, and everything given to caches since the
	// last Start, Wait or read, without waiting for the result; Wait waits for
	// it. The list of arrays may be empty. On back ends that compute
	// immediately both have no effect.
	Start(arrays ...Array)
	Wait(arrays ...Array)
}

// Scope is one computation: an arena and the operations on its arrays.
//
// A back end may defer computing until Start, Wait, Read or ReadIDs. To
// minimize the peak of memory, build in a child scope, keep the results, close
// the child and read then: released arrays are reused while computing.
type Scope interface {
	Arena

	// Embed gathers rows of a matrix: [n, in] for ids [n]. Where Argmax found
	// nothing to choose (-1) the row is of no use; no other suffers.
	Embed(m Matrix, ids Array) Array
	// Linear multiplies x [T, in] by each matrix transposed: [T, out].
	Linear(x Array, ms ...Matrix) []Array
	// LinearBias is Linear, and adds to each row of a product the bias [out] that
	// belongs to its matrix.
	LinearBias(x Array, ms []Matrix, biases []Array) []Array
	// Route chooses experts for each row of scores [T, E] by spec: their ids
	// [T*k], row by row and in no particular order, and their weights [T, k].
	Route(scores Array, spec RouteSpec) (chosen, shares Array)
	// LinearOf multiplies each row of x [R, in] by its k chosen experts, ids
	// [R*k]: [R*k, out]. The experts are stacked in a matrix [experts*out, in].
	LinearOf(x, chosen Array, experts int, ms ...Matrix) []Array
	// LinearEach multiplies each head of x [T, heads*in] by its own matrix: [T,
	// heads*out]. The matrices are stacked in m [heads*out, in].
	LinearEach(x Array, m Matrix, heads int) Array
	// Combine adds up the k rows of y [T*k, D] that belong to a token, each times
	// its share [T, k]: [T, D].
	Combine(y, shares Array) Array
	// Rows gathers rows of x [T, D].
	Rows(x Array, rows []int) Array
	// Place is x [T, D], of which rows, in ascending order, are those of y [len(rows), D]
	// instead, in the type of x.
	Place(x Array, rows []int, y Array) Array
	// Argmax is the index of the largest of the first width elements of each
	// row of x [T, V], the lowest among equals: token ids [T]. It is -1 for a
	// row whose maximum is infinite, or that contains a NaN.
	Argmax(x Array, width int) Array
	// Add works element by element on equal shapes. So does Multiply, where b may also
	// be a number for each column [D], or for each of the n equal runs of a row [T, n].
	Add(a, b Array) Array
	Multiply(a, b Array) Array
	// Map computes f of each element.
	Map(x Array, f Function) Array
	// GLU works element by element on equal shapes.
	GLU(gate, up Array, g GLU) Array
	// Exceed is max(0, x - mean - by*deviation), by the mean and the standard deviation of
	// each row of x [T, D].
	Exceed(x Array, by float32) Array
	// MixRuns adds up the n equal runs of a row of x [T, n*D] with factors by [T, m*n]:
	// [T, m*D]. The i-th run of the result takes the j-th of x times by[i*n+j].
	MixRuns(x, by Array, n int) Array
	// Level scales each row of x [T, D] to the root mean square of that row of like [T,
	// D]. Mean squares of x that are less than least count as that.
	Level(x, like Array, least float32) Array
	// RMSNorm scales each run of N elements of a row of x [T, D] to unit root
	// mean square, then by weight [N]; N divides D.
	RMSNorm(x, weight Array, eps float32) Array
	// Rope turns each head of x [T, heads*headSize] by the position of its row.
	Rope(x Array, segments []Segment, headSize int, spec RopeSpec) Array
	// AppendAttend extends the cache and attends: [T, heads*size], of the size of
	// values.
	AppendAttend(AttendSpec) Array
	// Recur extends a recurrent state and reads it: [T, ValueHeads*ValueSize].
	Recur(RecurSpec) Array
	// Split cuts each row of x [T, n*sum] into n runs as long as widths in sum,
	// and each run into parts of these widths. The i-th result [T, n*widths[i]]
	// has the i-th part of every run.
	Split(x Array, widths ...int) []Array
	// Join is the inverse of Split: the i-th operand [T, n*widths[i]] has n parts of
	// a row, and the result [T, n*sum] has runs of one part of each.
	Join(xs []Array, widths ...int) Array
	// SigmoidGate is x * sigmoid(gate); gate has the shape of x [T, D], or one number
	// for each of the n equal runs of a row [T, n].
	SigmoidGate(x, gate Array) Array
	// AddGated is y + x*sigmoid(gate), where gate has one number for each row of y and x
	// [T, D]: [T, 1].
	AddGated(y, x, gate Array) Array
	// RMSNormGate is RMSNorm(x) * SiLU(gate), on equal shapes, in float32 in
	// between.
	RMSNormGate(x, gate, weight Array, eps float32) Array
	// AttendAll lets every token see all tokens of its segment: [T, heads*size].
	AttendAll(AttendAllSpec) Array
	// LayerNorm subtracts the mean of each row of x [T, D], scales it to unit
	// variance, then by weight [D], and adds bias [D].
	LayerNorm(x, weight, bias Array, eps float32) Array
	// Mean is the masked mean of the rows of each segment of x [T, D]:
	// [segments, D]. mask has one number per row, 0 or 1 (nil: all 1); the sum
	// of a segment's mask is at least 1e-9.
	Mean(x Array, segments []Segment, mask []float32) Array
	// Unit scales each row of x [T, D] to an L2 norm of 1; a row of zeros stays.
	Unit(x Array) Array
}
