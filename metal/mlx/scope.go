//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// array is a handle of the bridge with its shape; h is nil once it was
// released.
type array struct {
	shape []int
	h     handle
	bytes int64
	// bound, for token ids, is one more than the largest can be; 0 for numbers.
	bound int
	scope *arena
}

// Shape of the array.
func (a *array) Shape() []int { return a.shape }

// width is how many bytes a number has.
func (a *array) width() int {
	n := int64(1)
	for _, d := range a.shape {
		n *= int64(d)
	}
	return int(a.bytes / n)
}

// arena has the arrays of one computation, or of a part of it. The first fault is
// shared by the whole tree.
type arena struct {
	b      *Backend
	ctx    context.Context
	parent *arena
	fault  *error
	live   map[*array]struct{}
	closed bool
}

// scope is an arena with the operations that make arrays in it.
type scope struct {
	*arena
	elementwise
	mixture
}

func newScope(a *arena) *scope { return &scope{a, elementwise{a}, mixture{elementwise{a}}} }

// elementwise has the operations on each number of an array, or of two.
type elementwise struct{ *arena }

// mixture has the operations of mixtures of experts.
type mixture struct{ elementwise }

// Child opens a scope inside this one.
func (s *scope) Child() tensor.Scope {
	return newScope(&arena{b: s.b, ctx: s.ctx, parent: s.arena, fault: s.fault})
}

// Err is the first fault.
func (s *arena) Err() error { return *s.fault }

func (s *arena) failed() bool { return *s.fault != nil }

func (s *arena) fail(err error) {
	if *s.fault == nil {
		*s.fault = err
	}
}

// begin comes first in every operation; after false it returns an array of no
// use.
func (s *arena) begin(op string) bool {
	if s.failed() {
		return false
	}
	if s.closed {
		s.fail(fmt.Errorf("%s in a scope: %w", op, tensor.ErrReleased))
		return false
	}
	if err := s.ctx.Err(); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return false
	}
	if err := s.b.enter(op); err != nil {
		s.fail(err)
		return false
	}
	return true
}

// misfit records operands that do not fit.
func (s *arena) misfit(op, format string, args ...any) *array {
	s.fail(&tensor.ShapeError{Op: op, Detail: fmt.Sprintf(format, args...)})
	return &array{}
}

// maxElements bounds one array, and a dimension what the framework counts in
// 32 bits.
const (
	maxElements  = 1 << 40
	maxDimension = 1<<31 - 1
)

// elements of a shape; false if there are none or too many.
func elements(shape []int) (int64, bool) {
	n := int64(1)
	for _, d := range shape {
		if d <= 0 || d > maxDimension || n > maxElements/int64(d) {
			return 0, false
		}
		n *= int64(d)
	}
	return n, len(shape) > 0
}

// made takes ownership of what the bridge made; an array that would exceed the
// limit is released before it is computed.
func (s *arena) made(op string, m C.bridge_made, shape ...int) *array {
	if err := fault(m.status); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return &array{}
	}
	a := &array{shape: shape, h: m.array, bytes: int64(m.bytes)}
	if err := s.b.admit(a.bytes); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		_ = s.b.free([]handle{a.h}, false) // the fault is reported already
		return &array{}
	}
	s.b.claimed += a.bytes
	s.b.gauges.live.Add(1)
	s.adopt(a)
	return a
}

func (s *arena) adopt(a *array) {
	if s.closed {
		s.fail(fmt.Errorf("scope: %w", tensor.ErrReleased))
	}
	if s.live == nil {
		s.live = make(map[*array]struct{})
	}
	s.live[a] = struct{}{}
	a.scope = s
}

// Keep moves an array to the parent scope, or to the caller.
func (s *arena) Keep(ta tensor.Array) tensor.Array {
	a, ok := ta.(*array)
	if !ok || a.h == nil || a.scope != s {
		s.fail(fmt.Errorf("Keep: %w", tensor.ErrReleased))
		return ta
	}
	delete(s.live, a)
	a.scope = nil
	if s.parent != nil {
		s.parent.adopt(a)
	}
	return a
}

// Release frees an array before its scope closes, or one that was kept.
func (s *arena) Release(ta tensor.Array) {
	a, ok := ta.(*array)
	if !ok || a.h == nil {
		return
	}
	if err := s.b.drop([]*array{a}, false); err != nil {
		s.fail(fmt.Errorf("release: %w", err))
	}
}

// Close frees what was not kept. If a top-level scope closes without an error,
// the arrays that it gave to caches and that were not read are computed now, so
// that the next step does not extend this graph.
func (s *arena) Close() {
	if s.closed {
		return
	}
	s.closed = true
	all := make([]*array, 0, len(s.live))
	for a := range s.live {
		all = append(all, a)
	}
	top := s.parent == nil
	if len(all) > 0 || top && s.b.owner.Load() != 0 {
		if err := s.b.drop(all, top); err != nil {
			s.fail(fmt.Errorf("close scope: %w", err))
		}
	}
	if top && !s.failed() && len(s.b.pending) > 0 {
		if err := s.b.compute(nil, false); err != nil {
			s.fail(fmt.Errorf("close scope: %w", err))
		}
	}
}

// drop releases arrays.
func (b *Backend) drop(all []*array, last bool) error {
	hs := make([]handle, len(all))
	for i, a := range all {
		hs[i] = a.h
	}
	if err := b.free(hs, last); err != nil {
		return err
	}
	for _, a := range all {
		if a.scope != nil {
			delete(a.scope.live, a)
		}
		b.claimed -= a.bytes
		a.h, a.scope = nil, nil
	}
	b.gauges.live.Add(-int64(len(all)))
	return nil
}

// operand checks that an array is alive, holds numbers and has this many
// dimensions (0: any).
func (s *arena) operand(op string, ta tensor.Array, dims int) (*array, bool) {
	if s.failed() {
		return nil, false
	}
	a, ok := ta.(*array)
	switch {
	case !ok || a.h == nil:
		s.fail(fmt.Errorf("%s: %w", op, tensor.ErrReleased))
	case a.bound != 0:
		s.misfit(op, "got token ids, want numbers")
	case dims > 0 && len(a.shape) != dims:
		s.misfit(op, "%v, want %d dimensions", a.shape, dims)
	default:
		return a, true
	}
	return nil, false
}

// idOperand checks that an array is alive and holds token ids.
func (s *arena) idOperand(op string, ta tensor.Array) (*array, bool) {
	if s.failed() {
		return nil, false
	}
	a, ok := ta.(*array)
	switch {
	case !ok || a.h == nil:
		s.fail(fmt.Errorf("%s: %w", op, tensor.ErrReleased))
	case a.bound == 0:
		s.misfit(op, "got numbers, want token ids")
	default:
		return a, true
	}
	return nil, false
}

// From copies values into a new array.
func (s *arena) From(values []float32, shape ...int) tensor.Array {
	const op = "From"
	n, ok := elements(shape)
	switch {
	case !s.begin(op):
		return &array{}
	case !ok || int64(len(values)) != n:
		return s.misfit(op, "%d values for %v", len(values), shape)
	case !s.fits(op, 4*n):
		return &array{}
	}
	dims := numbers(shape)
	return s.made(op, C.bridge_floats(s.b.token(), (*C.float)(unsafe.SliceData(values)), unsafe.SliceData(dims), C.int32_t(len(dims))), slices.Clone(shape)...)
}

// fits is asked before bytes are allocated at once.
func (s *arena) fits(op string, n int64) bool {
	if err := s.b.admit(n); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return false
	}
	return true
}

// IDs copies token ids into a new array.
func (s *arena) IDs(ids []int32) tensor.Array {
	const op = "IDs"
	switch {
	case !s.begin(op):
		return &array{}
	case len(ids) == 0:
		return s.misfit(op, "no ids")
	case !s.fits(op, 4*int64(len(ids))):
		return &array{}
	}
	a := s.made(op, C.bridge_ids(s.b.token(), (*C.int32_t)(unsafe.SliceData(ids)), C.int32_t(len(ids))), len(ids))
	a.bound = boundOf(ids)
	return a
}

// JoinIDs returns rows of token ids followed by known ones.
func (s *arena) JoinIDs(ta tensor.Array, rows []int, ids []int32) tensor.Array {
	const op = "JoinIDs"
	in, ok := s.idOperand(op, ta)
	switch {
	case !ok || !s.begin(op):
		return &array{}
	case len(rows) == 0 || slices.Min(rows) < 0 || slices.Max(rows) >= in.shape[0]:
		return s.misfit(op, "rows %v of %d", rows, in.shape[0])
	}
	n := len(rows) + len(ids)
	if !s.fits(op, 4*int64(n)) {
		return &array{}
	}
	wanted := numbers(rows)
	a := s.made(op, C.bridge_join_ids(s.b.token(), in.h, unsafe.SliceData(wanted), C.int32_t(len(wanted)), (*C.int32_t)(unsafe.SliceData(ids)), C.int32_t(len(ids))), n)
	a.bound = max(in.bound, boundOf(ids))
	return a
}

// boundOf ids is one more than the largest, or what fits no matrix; 0 of none.
func boundOf(ids []int32) int {
	switch {
	case len(ids) == 0:
		return 0
	case slices.Min(ids) < 0:
		return maxDimension
	}
	return int(slices.Max(ids)) + 1
}

// Read computes an array and copies it out.
func (s *arena) Read(ta tensor.Array, dst []float32) {
	const op = "Read"
	a, ok := s.operand(op, ta, 0)
	if !ok || !s.begin(op) {
		return
	}
	if n, _ := elements(a.shape); int64(len(dst)) != n {
		s.misfit(op, "%v into %d values", a.shape, len(dst))
		return
	}
	if err := s.b.compute([]handle{a.h}, true); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return
	}
	if err := fault(C.bridge_read_floats(s.b.token(), a.h, (*C.float)(unsafe.SliceData(dst)), C.int64_t(len(dst)))); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
	}
}

// ReadIDs computes an array of token ids and copies it out.
func (s *arena) ReadIDs(ta tensor.Array, dst []int32) {
	const op = "ReadIDs"
	a, ok := s.idOperand(op, ta)
	if !ok || !s.begin(op) {
		return
	}
	if len(dst) != a.shape[0] {
		s.misfit(op, "%v into %d ids", a.shape, len(dst))
		return
	}
	if err := s.b.compute([]handle{a.h}, true); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return
	}
	if err := fault(C.bridge_read_ids(s.b.token(), a.h, (*C.int32_t)(unsafe.SliceData(dst)), C.int64_t(len(dst)))); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
	}
}

// Start begins to compute arrays and pending caches.
func (s *arena) Start(arrays ...tensor.Array) { s.run("Start", false, arrays) }

// Wait computes arrays and pending caches.
func (s *arena) Wait(arrays ...tensor.Array) { s.run("Wait", true, arrays) }

func (s *arena) run(op string, wait bool, arrays []tensor.Array) {
	if !s.begin(op) {
		return
	}
	hs := make([]handle, len(arrays))
	for i, ta := range arrays {
		a, ok := ta.(*array)
		if !ok || a.h == nil {
			s.fail(fmt.Errorf("%s: %w", op, tensor.ErrReleased))
			return
		}
		hs[i] = a.h
	}
	if err := s.b.compute(hs, wait); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
	}
}

// compute evaluates handles and every row of a cache that is pending. Rows that
// were part of a failure are not used again.
func (b *Backend) compute(hs []handle, wait bool) error {
	rows := make([]*C.bridge_slab, 0, len(b.pending))
	for h := range b.pending {
		rows = append(rows, h.row)
	}
	if err := b.check(); err != nil {
		return err
	}
	err := b.ask("evaluate")
	if err == nil {
		err = b.evaluate(hs, rows, wait)
	}
	for h := range b.pending {
		h.broken = err
	}
	clear(b.pending)
	if err != nil {
		return err
	}
	return b.settle()
}
