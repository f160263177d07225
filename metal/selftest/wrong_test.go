package selftest

import (
	"context"
	"errors"
	"math"
	"runtime"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// wrong is ref with one fault.
type wrong struct {
	*ref.Backend
	// op is the operation whose results are a thousandth too large, or that
	// does something else that is wrong.
	op       string
	computed bool
}

func opening(op string) func() (tensor.Backend, error) {
	return func() (tensor.Backend, error) { return &wrong{Backend: ref.New(ref.Options{Threads: 2}), op: op}, nil }
}

func (b *wrong) NewScope(ctx context.Context) tensor.Scope {
	return &wrongScope{Scope: b.Backend.NewScope(ctx), op: b.op}
}

func (b *wrong) SetLimits(active, pooled int64) {
	if b.op != "SetLimits" {
		b.Backend.SetLimits(active, pooled)
	}
}

func (b *wrong) SetPrecision(quant.Type) { b.computed = true }

func (b *wrong) Close() error {
	if b.op == "Close" && b.computed {
		return errors.Join(b.Backend.Close(), tensor.ErrLeak)
	}
	return b.Backend.Close()
}

func (b *wrong) LoadMatrix(f quant.Format, out, in int, fill func(func(int, quant.Row) error) error) (tensor.Matrix, error) {
	if b.op == "LoadMatrix" && f.Mode != quant.Dense {
		f.Bits = 8 // and reads past nothing: rows do not fit
	}
	return b.Backend.LoadMatrix(f, out, in, fill)
}

type wrongScope struct {
	tensor.Scope
	op string
}

func (s *wrongScope) Child() tensor.Scope { return &wrongScope{Scope: s.Scope.Child(), op: s.op} }

// more is a, or a thousandth more where op is the wrong one.
func (s *wrongScope) more(op string, a tensor.Array) tensor.Array {
	if op != s.op || s.Err() != nil {
		return a
	}
	n := 1
	for _, d := range a.Shape() {
		n *= d
	}
	values := make([]float32, n)
	s.Scope.Read(a, values)
	for i := range values {
		values[i] *= 1.001
	}
	return s.Scope.From(values, a.Shape()...)
}

func (s *wrongScope) From(v []float32, shape ...int) tensor.Array {
	if s.op == "panic" {
		panic("unexpected")
	}
	return s.Scope.From(v, shape...)
}

func (s *wrongScope) Release(a tensor.Array) {
	if s.op != "Release" {
		s.Scope.Release(a)
	}
}

func (s *wrongScope) ReadIDs(a tensor.Array, dst []int32) {
	s.Scope.ReadIDs(a, dst)
	if s.op == "ReadIDs" {
		dst[0]++
	}
}

func (s *wrongScope) Read(a tensor.Array, dst []float32) {
	s.Scope.Read(a, dst)
	if s.op == "Read" {
		dst[len(dst)-1] *= 1.001
	}
}

func (s *wrongScope) Embed(m tensor.Matrix, ids tensor.Array) tensor.Array {
	return s.more("Embed", s.Scope.Embed(m, ids))
}

func (s *wrongScope) Linear(x tensor.Array, ms ...tensor.Matrix) []tensor.Array {
	outs := s.Scope.Linear(x, ms...)
	for i := range outs {
		if s.op == "Linear" || s.op == "Linear of a chunk" && x.Shape()[0] > 8 {
			outs[i] = s.more(s.op, outs[i])
		}
	}
	return outs
}

func (s *wrongScope) Rows(x tensor.Array, rows []int) tensor.Array {
	return s.more("Rows", s.Scope.Rows(x, rows))
}

func (s *wrongScope) Argmax(x tensor.Array, width int) tensor.Array {
	if s.op == "Argmax" { // sees what does not count
		width = x.Shape()[1]
	}
	return s.Scope.Argmax(x, width)
}

func (s *wrongScope) Add(a, b tensor.Array) tensor.Array {
	if s.op == "no number" {
		return s.Scope.Multiply(a, s.Scope.From([]float32{float32(math.NaN())}, 1, 1))
	}
	return s.more("Add", s.Scope.Add(a, b))
}

func (s *wrongScope) Multiply(a, b tensor.Array) tensor.Array {
	return s.more("Multiply", s.Scope.Multiply(a, b))
}

func (s *wrongScope) Map(x tensor.Array, f tensor.Function) tensor.Array {
	return s.more(f.Function(), s.Scope.Map(x, f))
}

func (s *wrongScope) GLU(gate, up tensor.Array, g tensor.GLU) tensor.Array {
	return s.more(g.GLU(), s.Scope.GLU(gate, up, g))
}

func (s *wrongScope) RMSNorm(x, w tensor.Array, eps float32) tensor.Array {
	return s.more("RMSNorm", s.Scope.RMSNorm(x, w, eps))
}

func (s *wrongScope) Rope(x tensor.Array, g []tensor.Segment, head int, spec tensor.RopeSpec) tensor.Array {
	if s.op == "Rope factors" {
		spec.Factors = nil
	}
	if s.op == "Rope magnitude" {
		spec.Magnitude = 0
	}
	return s.more("Rope", s.Scope.Rope(x, g, head, spec))
}

func (s *wrongScope) AppendAttend(spec tensor.AttendSpec) tensor.Array {
	switch s.op {
	case "window":
		spec.Window = 0
	case "sinks":
		spec.Sinks = nil
	case "scale":
		spec.Scale *= 1.01
	}
	return s.more("AppendAttend", s.Scope.AppendAttend(spec))
}

func (s *wrongScope) Mean(x tensor.Array, g []tensor.Segment, mask []float32) tensor.Array {
	if s.op == "mask" {
		mask = nil
	}
	return s.more("Mean", s.Scope.Mean(x, g, mask))
}

func (s *wrongScope) Unit(x tensor.Array) tensor.Array { return s.more("Unit", s.Scope.Unit(x)) }

// called is ref as a backend that calls a framework, with the faults of such a
// backend.
type called struct {
	*wrong
	owner int64
}

func openingCalled(op string) func() (tensor.Backend, error) {
	return func() (tensor.Backend, error) {
		return &called{wrong: &wrong{Backend: ref.New(ref.Options{Threads: 1}), op: op}}, nil
	}
}

func (b *called) About() (map[string]string, error) {
	if b.op == "About" {
		return nil, errors.New("it says nothing")
	}
	return map[string]string{"version": "1.2.3", "device": "cpu", "compute_capability_major": "9"}, nil
}

// Ragged segments are its own kernel's, unless that is the fault.
func (b *called) Ragged() int64 {
	if b.op == "kernel" {
		return 0
	}
	return 7
}

func (b *called) Provoke() error {
	if b.op == "Provoke" {
		return nil
	}
	return errors.New("shapes do not fit")
}

func (b *called) LoadMatrix(f quant.Format, out, in int, fill func(func(int, quant.Row) error) error) (tensor.Matrix, error) {
	if int64(out)*int64(in) > 1<<36 && b.op != "too much" {
		return nil, tensor.ErrMemory
	}
	if b.op == "too much" {
		return nil, errors.New("it asked for the moon")
	}
	return b.wrong.LoadMatrix(f, out, in, fill)
}

// NewScope belongs to a thread, unless that is the fault.
func (b *called) NewScope(ctx context.Context) tensor.Scope {
	s := b.wrong.NewScope(ctx)
	if b.owner == 0 {
		b.owner = thread()
	}
	if b.op != "threads" && thread() != b.owner {
		return refused{s}
	}
	return s
}

// refused is the scope of another thread.
type refused struct{ tensor.Scope }

func (refused) Err() error { return tensor.ErrThread }

// thread tells goroutines of a test apart: by the number in its stack trace.
func thread() int64 {
	var text [64]byte
	n := runtime.Stack(text[:], false)
	var id int64
	for _, c := range text[len("goroutine "):n] {
		if c < '0' || c > '9' {
			break
		}
		id = id*10 + int64(c-'0')
	}
	return id
}
