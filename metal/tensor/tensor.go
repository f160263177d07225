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
	"math"
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

// ShapeError describes operands that do not fit an operation.
type ShapeError struct{ Op, Detail string }

func (e *ShapeError) Error() string { return fmt.Sprintf("%s: %v: %s", e.Op, ErrShape, e.Detail) }

// Unwrap makes errors.Is(err, ErrShape) true.
func (e *ShapeError) Unwrap() error { return ErrShape }

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

// CacheSpec is the shape of what layers keep for every request.
type CacheSpec struct {
	// Layers that attend, each with keys and values: KVHeads of HeadSize elements,
	// and of ValueSize elements if that is not 0.
	Layers, KVHeads, HeadSize, ValueSize int
	// Within means that values are the first ValueSize elements of keys, and are
	// not stored again (multi-head latent attention).
	Within bool
	// Local is the shape of layers with a window; the zero value means the shape of
	// the others.
	Local HeadSpec
	// Windows are the windows of the attention layers in latest positions; a
	// cache forgets tokens that no window sees any more. 0, or an empty slice,
	// means all positions. Windows other than 0 are equal.
	Windows []int
	// BlockTokens is the granularity of allocation.
	BlockTokens int
	// Recurrent layers are numbered separately; the zero value means none.
	Recurrent RecurrentSpec
}

// HeadSpec is what an attending layer keeps of a token.
type HeadSpec struct {
	// KVHeads of keys have HeadSize elements each, and of values ValueSize.
	KVHeads, HeadSize, ValueSize int
	// Within is set where values are the first elements of keys.
	Within bool
}

// Heads is the shape of layers under a window, or of those that grow.
func (s CacheSpec) Heads(local bool) HeadSpec {
	h := HeadSpec{s.KVHeads, s.HeadSize, s.ValueSize, s.Within}
	if local && s.Local != (HeadSpec{}) {
		h = s.Local
	}
	if h.ValueSize == 0 {
		h.ValueSize = h.HeadSize
	}
	return h
}

// HeadsOf is the shape of an attending layer.
func (s CacheSpec) HeadsOf(layer int) HeadSpec { return s.Heads(s.WindowOf(layer) > 0) }

// Stored is how many elements of values a head has that are stored apart from keys.
func (h HeadSpec) Stored() int {
	if h.Within {
		return 0
	}
	return h.ValueSize
}

// Elements are those of a token in one layer.
func (h HeadSpec) Elements() int { return h.KVHeads * (h.HeadSize + h.Stored()) }

// Fits reports whether there can be such heads.
func (h HeadSpec) Fits() bool {
	return h.KVHeads > 0 && h.HeadSize > 0 && h.ValueSize > 0 && !(h.Within && h.ValueSize > h.HeadSize)
}

// RecurrentSpec is the shape of recurrent layers, and of the state that each
// keeps for every request, in float32 regardless of the type of activations:
// the last Taps-1 rows that its convolution saw, and a matrix [ValueSize,
// KeySize] for each value head. The size does not depend on the number of
// tokens.
type RecurrentSpec struct {
	Layers int
	// ValueHeads is a multiple of KeyHeads; as many consecutive ones share a key.
	KeyHeads, KeySize, ValueHeads, ValueSize int
	// Taps is the number of latest rows that the convolution reads, including
	// the newest.
	Taps int
}

// Channels is the input width of the convolution: queries, keys, values.
func (s RecurrentSpec) Channels() int { return 2*s.KeyHeads*s.KeySize + s.ValueHeads*s.ValueSize }

// StateElements is the number of elements of the state of one layer for one
// request.
func (s RecurrentSpec) StateElements() int {
	return (s.Taps-1)*s.Channels() + s.ValueHeads*s.ValueSize*s.KeySize
}

// StateBytes is the size of the states of all layers for one request.
func (s RecurrentSpec) StateBytes() int64 { return 4 * int64(s.Layers) * int64(s.StateElements()) }

// Fits reports whether the spec is valid; no layers are valid.
func (s RecurrentSpec) Fits() bool {
	keys := s.KeyHeads > 0 && s.KeySize > 0 && s.ValueHeads%s.KeyHeads == 0
	none := s.KeyHeads == 0 && s.KeySize == 0 // a convolution alone
	return s == RecurrentSpec{} || s.Layers > 0 && (keys || none) && s.ValueHeads > 0 && s.ValueSize > 0 && s.Taps > 1
}

// TokenBytes is the size of one token in all attention layers, for elements of
// this many bytes.
func (s CacheSpec) TokenBytes(elementBytes int) int64 {
	rotating, _ := s.Rotating()
	elements := (s.Layers-rotating)*s.Heads(false).Elements() + rotating*s.Heads(true).Elements()
	return int64(elements) * int64(elementBytes)
}

// RequestID names a request to a cache; the caller never uses one twice.
type RequestID int64

// Cache holds keys, values and recurrent states of running requests.
type Cache interface {
	// Length is the number of tokens of a request that every layer holds.
	Length(RequestID) int
	// Expect sets the minimum number of tokens that a request will hold, before
	// it holds any or later: a cache that makes room by copying then makes room
	// for all of them at once. No memory is taken before the first token. Drop
	// forgets it.
	Expect(id RequestID, tokens int)
	// Room is for how many tokens a request has room; 0 for unknown ones.
	Room(id RequestID) int
	// Stage announces that tokens [first, last) of a request will be saved
	// after a later step: a cache on a device that computes asynchronously
	// begins to copy them, so that Save does not have to wait for that step. It
	// may do nothing, as for tokens that cannot be saved. Drop, Truncate and
	// Save cancel it.
	Stage(id RequestID, first, last int)
	// Drop returns the blocks of a request; unknown requests are ignored.
	Drop(RequestID)
	// Truncate forgets what any layer holds of a request after its first
	// tokens, such as the result of a step that failed halfway. Blocks may stay
	// for later tokens. A recurrent state cannot go back, and a window only to
	// where it still holds all tokens that were seen: if one is past those
	// tokens, everything of the request is forgotten and its length is 0. A
	// window can always go back to before the last step.
	Truncate(id RequestID, tokens int)
	// Bytes held by requests.
	Bytes() int64
	// SliceBytes is the size of Save's output for this many tokens: 0 if no
	// layer can be divided, and as long as the cache does not know the width of
	// keys, which some back ends learn in the first step.
	SliceBytes(tokens int) int64
	// StateBytes is the size of SaveState's output for a request of this many
	// tokens: 0 if the caches of all layers can be divided.
	StateBytes(tokens int) int64
	// Save copies what layers that can be cut hold of tokens [first, last) into
	// dst, of SliceBytes(last-first) bytes, and waits for what computes it.
	// ErrSegment for tokens that are not held by every layer.
	Save(id RequestID, first, last int, dst []byte) error
	// SaveState copies the undividable state at Length into dst, of
	// StateBytes(Length) bytes. It returns ErrSegment if the layers have not
	// all computed the same number of tokens.
	SaveState(id RequestID, dst []byte) error
	// Restore makes an unknown request hold tokens, bit for bit as they were
	// saved: slices are blocks of BlockTokens in order, of which the last may
	// be shorter, and state is the output of SaveState after the last token,
	// nil if there is none. After an error the request holds nothing:
	// ErrSegment if the request is known, ErrShape if the bytes are not those
	// of this many tokens, ErrMemory if there is no room, ErrUnsupported if the
	// cache does not know the width of keys yet.
	Restore(id RequestID, tokens int, slices [][]byte, state []byte) error
	// Release drops all requests.
	Release()
}

// Segment means that Length rows of a flat step belong to Request at the
// positions from Start on. Segments follow one another without gaps.
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

// RopeSpec describes a rotary embedding: the pairs (i, i+Size/2) of the first
// Size elements are rotated by position/Linear * Theta^(-2i/Size) / Factors[i],
// and the rotated elements multiplied by Magnitude.
type RopeSpec struct {
	Theta float64
	Size  int
	// Linear and Magnitude 0 mean 1.
	Linear, Magnitude float64
	// Factors divide the frequencies; nil means 1.
	Factors []float32
	// Interleaved pairs are (2i, 2i+1) instead.
	Interleaved bool
	// Beta multiplies whole heads by 1 + Beta*ln(1 + floor(position/Every)),
	// even if Size is 0 and nothing is rotated. 0 means no scaling; Every is
	// then ignored.
	Beta  float64
	Every int
}

// Growth is the factor of a head at a position.
func (s RopeSpec) Growth(position int) float64 {
	if s.Beta == 0 || position < s.Every {
		return 1
	}
	return 1 + s.Beta*math.Log(1+float64(position/s.Every))
}

// Check returns an error if a head of the given size cannot be rotated so.
func (s RopeSpec) Check(headSize int) error {
	switch {
	case headSize <= 0 || s.Size < 0 || s.Size > headSize || s.Size%2 != 0 || s.Size == 0 && s.Beta == 0:
		return fmt.Errorf("%d of %d elements of a head", s.Size, headSize)
	case s.Factors != nil && len(s.Factors) != s.Size/2:
		return fmt.Errorf("%d factors for %d elements", len(s.Factors), s.Size)
	case s.Beta != 0 && s.Every < 1:
		return fmt.Errorf("growth every %d positions", s.Every)
	}
	return nil
}

// AttendSpec is one layer's attention over a flat step. Q is [T, heads*size], K
// and V are [T, kvHeads*size] of their sizes; K and V are appended before
// attending. V is nil where values are within keys. Without K nothing is appended:
// the layer holds the tokens of the step already, and another one reads them.
type AttendSpec struct {
	Cache    Cache
	Layer    int
	Segments []Segment
	Q, K, V  Array
	// Scale multiplies scores.
	Scale float32
	// Window is the number of latest positions that a token sees, including
	// itself; 0 means all. A rotating layer sees no more than the window of its
	// cache.
	Window int
	// Sinks is a score per query head that joins the softmax without a value;
	// nil means none.
	Sinks []float32
	// Cap bounds scores, after Scale, to Cap*tanh(score/Cap); 0 means that it does
	// not.
	Cap float32
	// Mutual are runs of rows, each within a segment, whose tokens also see those of their
	// run that come after them. They are in ascending order and do not overlap.
	Mutual []Run
	// Indexer selects the tokens that each row sees; nil means all.
	Indexer *Indexer
}

// Indexer selects, for each row, the TopK tokens up to its own with the highest
// sum over its heads of weight * max(0, q.k): sparse attention of DeepSeek V3.2
// (https://arxiv.org/abs/2512.02556). The keys k are the last Size elements of
// the keys of the layer, which has one KV head and no window; heads of
// AttendSpec.Q are shorter than keys by these elements.
type Indexer struct {
	// Q is [T, heads*Size], Weights are [T, heads].
	Q, Weights Array
	Size, TopK int
}

// Fits reports whether an indexer fits a step of a layer, where nil always does.
// If not, the operands may not be used.
func (x *Indexer) Fits(s AttendSpec, h HeadSpec) bool {
	if x == nil {
		return true
	}
	q, w, tokens := x.Q.Shape(), x.Weights.Shape(), Tokens(s.Segments)
	return h.KVHeads == 1 && s.Window == 0 && len(s.Mutual) == 0 && x.Size > 0 && x.Size < h.HeadSize && h.ValueSize <= h.HeadSize-x.Size && x.TopK > 0 &&
		len(q) == 2 && len(w) == 2 && q[0] == tokens && w[0] == tokens && w[1] > 0 && q[1] == w[1]*x.Size
}

// QuerySize is the size of a head of queries.
func (s AttendSpec) QuerySize(h HeadSpec) int {
	if s.Indexer == nil {
		return h.HeadSize
	}
	return max(1, h.HeadSize-s.Indexer.Size)
}

// Run is rows [First, First+Length) of a step.
type Run struct{ First, Length int }

// Positions are those of each run, start and end, by the segment that it lies in. ok is
// false if a run does not lie in one, or not after the run before it.
func Positions(runs []Run, segments []Segment) (of map[int][][2]int, ok bool) {
	of, row, at := map[int][][2]int{}, 0, 0
	for i, g := range segments {
		for before := row; at < len(runs) && runs[at].First < row+g.Length; at++ {
			r := runs[at]
			if r.Length < 1 || r.First < before || r.First+r.Length > row+g.Length {
				return nil, false
			}
			before = r.First + r.Length
			start := g.Start + r.First - row
			of[i] = append(of[i], [2]int{start, start + r.Length})
		}
		row += g.Length
	}
	return of, at == len(runs)
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

// AttendAllSpec is the bidirectional attention of one layer of an encoder:
// every token sees all of its segment and nothing else, and nothing is kept. Q,
// K and V are [T, heads*size].
type AttendAllSpec struct {
	Segments []Segment
	Q, K, V  Array
	Heads    int
	// Scale multiplies scores.
	Scale float32
}

// RecurRule is how the state of a recurrent layer changes.
type RecurRule int

// The rules. Let q, k and v be SiLU of the convolution of the last Taps rows. Then,
// for each value head and its key head, the delta rule
// (https://arxiv.org/abs/2412.06464) is
//
//	q, k = q/sqrt(|q|^2+1e-6)/sqrt(KeySize), k/sqrt(|k|^2+1e-6)
//	S    = exp(-exp(LogRate) * softplus(Decay+Bias)) * S
//	S    = S + sigmoid(Beta) * (v - S k) k^T
//	out  = S q
//
// where Decay and Bias may have a number for each element of a key, by which its
// column of S is forgotten (https://arxiv.org/abs/2510.26692). A state space
// (https://arxiv.org/abs/2405.21060) is
//
//	d   = softplus(Decay+Bias) within Low and High
//	S   = exp(-exp(LogRate) * d) * S + d v k^T
//	out = S q + Skip * v
//
// and a convolution alone has neither keys nor a matrix, and takes no SiLU.
const (
	DeltaRule RecurRule = iota
	StateSpace
	Convolution
)

// RecurSpec is one recurrent layer over a flat step: a causal convolution over
// queries, keys and values, channel by channel, and a rule over what comes of it,
// for each request in the order of its tokens.
type RecurSpec struct {
	Rule  RecurRule
	Cache Cache
	// Layer counts recurrent layers alone.
	Layer    int
	Segments []Segment
	// Q and K are [T, KeyHeads*KeySize], V is [T, ValueHeads*ValueSize].
	Q, K, V Array
	// Decay and Beta are [T, ValueHeads]; Decay may be [T, ValueHeads*KeySize].
	Decay, Beta Array
	// Kernel has the taps of each channel, the tap of the oldest row first:
	// [channels*Taps]. Shift [channels] is added to the convolution; nil means none.
	Kernel, Shift Array
	// LogRate and Skip are [ValueHeads], Bias has as many as a row of Decay.
	LogRate, Bias, Skip Array
	// Low and High bound the steps of a state space.
	Low, High float32
}

// Check refuses operands that do not fit the rule and the shape of the layers.
func (s RecurSpec) Check(r RecurrentSpec) error {
	tokens, keys, values := Tokens(s.Segments), r.KeyHeads*r.KeySize, r.ValueHeads*r.ValueSize
	decay := r.ValueHeads
	if s.Rule == DeltaRule && s.Decay != nil && len(s.Decay.Shape()) == 2 && s.Decay.Shape()[1] != decay {
		decay *= r.KeySize
	}
	fits := s.Layer >= 0 && s.Layer < r.Layers && (r.KeyHeads == 0) == (s.Rule == Convolution)
	for _, g := range s.Segments {
		fits = fits && g.Length >= 0 && g.Start >= 0
	}
	for _, o := range []struct {
		a      Array
		wanted bool
		shape  []int
	}{
		{s.Q, s.Rule != Convolution, []int{tokens, keys}}, {s.K, s.Rule != Convolution, []int{tokens, keys}}, {s.V, true, []int{tokens, values}},
		{s.Decay, s.Rule != Convolution, []int{tokens, decay}}, {s.Beta, s.Rule == DeltaRule, []int{tokens, r.ValueHeads}},
		{s.Kernel, true, []int{r.Channels() * r.Taps}}, {s.Shift, s.Shift != nil, []int{r.Channels()}},
		{s.LogRate, s.Rule != Convolution, []int{r.ValueHeads}}, {s.Bias, s.Rule != Convolution, []int{decay}}, {s.Skip, s.Rule == StateSpace, []int{r.ValueHeads}},
	} {
		fits = fits && o.wanted == (o.a != nil) && (!o.wanted || slices.Equal(o.a.Shape(), o.shape))
	}
	if !fits {
		return &ShapeError{Op: "Recur", Detail: fmt.Sprintf("rule %d, %d rows in segments, layer %d of %+v", s.Rule, tokens, s.Layer, r)}
	}
	return nil
}

// Operands are all arrays of the layer; those that the rule does not have are nil.
func (s RecurSpec) Operands() []Array {
	return []Array{s.Q, s.K, s.V, s.Decay, s.Beta, s.Kernel, s.Shift, s.LogRate, s.Bias, s.Skip}
}

// Scope is one computation. The first error sticks: later operations return
// unusable arrays, and Err returns the error. All arrays made in a scope are
// released when it closes, except those that Keep moved out.
//
// A back end may defer computing until Start, Wait, Read or ReadIDs. To
// minimize the peak of memory, build in a child scope, keep the results, close
// the child and read then: released arrays are reused while computing.
type Scope interface {
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

	// Embed gathers rows of a matrix: [n, in] for ids [n]. Where Argmax found
	// nothing to choose (-1) the row is of no use; no other suffers.
	Embed(m Matrix, ids Array) Array
	// Linear multiplies x [T, in] by each matrix transposed: [T, out].
	Linear(x Array, ms ...Matrix) []Array
	// LinearBias is Linear, and adds to each row of a product the bias [out] that
	// belongs to its matrix.
	LinearBias(x Array, ms []Matrix, biases []Array) []Array
	// Route chooses the k largest of each row of scores [T, E]: their ids
	// [T*k], row by row and in no particular order, and their weights [T, k],
	// which are the softmax of the whole row or, if normalized, of the chosen
	// ones only.
	Route(scores Array, k int, normalized bool) (chosen, shares Array)
	// RouteTop is Route with weights that are the softmax of the chosen scores:
	// the same numbers as normalized ones, but rounded as models that take the
	// softmax last round them.
	RouteTop(scores Array, k int) (chosen, shares Array)
	// RouteBy chooses experts for each row of scores [T, E] by spec: their ids
	// [T*k], row by row and in no particular order, and their weights [T, k].
	RouteBy(scores Array, spec RouteSpec) (chosen, shares Array)
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
	// SiLU is x * sigmoid(x).
	SiLU(x Array) Array
	// SwiGLU is SiLU(gate) * up, on equal shapes.
	SwiGLU(gate, up Array) Array
	// GeGLU is GELU(gate) * up, on equal shapes, with GELU in the form of tanh:
	// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
	GeGLU(gate, up Array) Array
	// ClampedSwiGLU is g * sigmoid(alpha*g) * (u + 1) on equal shapes, where g
	// = min(gate, limit) and u is up clamped to [-limit, limit].
	ClampedSwiGLU(gate, up Array, alpha, limit float32) Array
	// LimitedSwiGLU is min(SiLU(gate), limit) * u on equal shapes, where u is up
	// clamped to [-limit, limit].
	LimitedSwiGLU(gate, up Array, limit float32) Array
	// Softplus is ln(1 + e^x), computed in float32.
	Softplus(x Array) Array
	// ReLU2 is the square of max(0, x).
	ReLU2(x Array) Array
	// XIELU is positive*x^2 + beta*x where x is more than 0, and
	// negative*(e^min(x, eps) - 1 - x) + beta*x elsewhere (eps is 0 or less).
	XIELU(x Array, positive, negative, beta, eps float32) Array
	// ScaleShift is scale*x + shift, element by element.
	ScaleShift(x Array, scale, shift float32) Array
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
	// RMSNormGate is RMSNorm(x) * SiLU(gate), on equal shapes, in float32 in
	// between.
	RMSNormGate(x, gate, weight Array, eps float32) Array
	// AttendAll lets every token see all tokens of its segment: [T, heads*size].
	AttendAll(AttendAllSpec) Array
	// LayerNorm subtracts the mean of each row of x [T, D], scales it to unit
	// variance, then by weight [D], and adds bias [D].
	LayerNorm(x, weight, bias Array, eps float32) Array
	// GELU is x/2 * (1 + erf(x/sqrt(2))), or in the form of tanh that GeGLU has.
	GELU(x Array, tanh bool) Array
	// Tanh is the hyperbolic tangent, element by element.
	Tanh(x Array) Array
	// Mean is the masked mean of the rows of each segment of x [T, D]:
	// [segments, D]. mask has one number per row, 0 or 1 (nil: all 1); the sum
	// of a segment's mask is at least 1e-9.
	Mean(x Array, segments []Segment, mask []float32) Array
	// Unit scales each row of x [T, D] to an L2 norm of 1; a row of zeros stays.
	Unit(x Array) Array
}
