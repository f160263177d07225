package ref

import (
	"context"
	"fmt"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// array is a float32 array, or one of token ids; mem is nil once it was
// released.
type array struct {
	shape []int
	data  []float32
	ids   []int32
	// chosen ids come from Argmax, some of them at least.
	chosen bool
	mem    []byte
	scope  *arena
}

// Shape of the array.
func (a *array) Shape() []int { return a.shape }

// row is row i of a two-dimensional array.
func (a *array) row(i int) []float32 {
	d := a.shape[len(a.shape)-1]
	return a.data[i*d : (i+1)*d : (i+1)*d]
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
func (s *scope) Child() tensor.Scope { return newScope(s.child()) }

func (s *arena) child() *arena {
	return &arena{b: s.b, ctx: s.ctx, parent: s, fault: s.fault}
}

// Err is the first fault.
func (s *arena) Err() error { return *s.fault }

func (s *arena) failed() bool { return *s.fault != nil }

func (s *arena) fail(err error) {
	if *s.fault == nil {
		*s.fault = err
	}
}

// array makes room for one; the contents are arbitrary. After a fault it gives
// an array of no use.
func (s *arena) array(op string, shape ...int) *array {
	if s.failed() {
		return &array{}
	}
	if err := s.ctx.Err(); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return &array{}
	}
	n := int64(1)
	for _, d := range shape {
		if d <= 0 || n > 1<<40/int64(d) {
			s.fail(&tensor.ShapeError{Op: op, Detail: fmt.Sprintf("result of shape %v", shape)})
			return &array{}
		}
		n *= int64(d)
	}
	mem, err := s.b.mem.take(4 * n)
	if err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return &array{}
	}
	a := &array{shape: shape, data: floats(mem)[:n:n], mem: mem}
	s.adopt(a)
	return a
}

func (s *arena) adopt(a *array) {
	if s.closed {
		s.fail(fmt.Errorf("scope: %w", tensor.ErrReleased))
		s.b.free(a)
		return
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
	if !ok || a.mem == nil || a.scope != s {
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

// Release frees an array that was kept beyond its scope.
func (s *arena) Release(ta tensor.Array) {
	if a, ok := ta.(*array); ok && a.mem != nil {
		if a.scope != nil {
			delete(a.scope.live, a)
		}
		s.b.free(a)
	}
}

// Close frees what was not kept.
func (s *arena) Close() {
	for a := range s.live {
		s.b.free(a)
	}
	s.live, s.closed = nil, true
}

func (b *Backend) free(a *array) {
	b.mem.put(a.mem)
	a.mem, a.data, a.ids, a.scope = nil, nil, nil, nil
}

// operand checks that an array is alive, holds real numbers and has this many
// dimensions (0: any).
func (s *arena) operand(op string, ta tensor.Array, dims int) (*array, bool) {
	if s.failed() {
		return nil, false
	}
	a, ok := ta.(*array)
	if !ok || a.mem == nil {
		s.fail(fmt.Errorf("%s: %w", op, tensor.ErrReleased))
		return nil, false
	}
	if a.ids != nil {
		s.fail(&tensor.ShapeError{Op: op, Detail: "got token ids, want numbers"})
		return nil, false
	}
	if dims > 0 && len(a.shape) != dims {
		s.fail(&tensor.ShapeError{Op: op, Detail: fmt.Sprintf("%v, want %d dimensions", a.shape, dims)})
		return nil, false
	}
	return a, true
}

// From copies values into a new array.
func (s *arena) From(values []float32, shape ...int) tensor.Array {
	out := s.array("From", shape...)
	if s.failed() {
		return out
	}
	if len(values) != len(out.data) {
		s.fail(&tensor.ShapeError{Op: "From", Detail: fmt.Sprintf("%d values for %v", len(values), shape)})
		return out
	}
	copy(out.data, values)
	return out
}

// Read copies an array out.
func (s *arena) Read(ta tensor.Array, dst []float32) {
	a, ok := s.operand("Read", ta, 0)
	if !ok {
		return
	}
	if len(dst) != len(a.data) {
		s.fail(&tensor.ShapeError{Op: "Read", Detail: fmt.Sprintf("%v into %d values", a.shape, len(dst))})
		return
	}
	copy(dst, a.data)
}
