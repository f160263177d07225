package tensortest

import (
	"context"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// Faulty returns a back end whose operations fail if fault returns an error, and wait while
// fault does. fault is called wherever an operation looks at its context, which is before
// it makes an array, with the name of the operation.
func Faulty(b tensor.Backend, fault func(op string) error) tensor.Backend {
	return &faulty{b, fault}
}

type faulty struct {
	tensor.Backend
	fault func(op string) error
}

func (b *faulty) NewScope(ctx context.Context) tensor.Scope {
	f := &faultContext{Context: ctx, fault: b.fault}
	return faultyScope{b.Backend.NewScope(f), f}
}

// faultContext ends with a fault.
type faultContext struct {
	context.Context
	op    string
	fault func(op string) error
}

func (c *faultContext) Err() error {
	if err := c.Context.Err(); err != nil || c.op == "" {
		return err
	}
	return c.fault(c.op)
}

// faultyScope notes which operation runs.
type faultyScope struct {
	tensor.Scope
	context *faultContext
}

// in notes that an operation runs until the result is called.
func (s faultyScope) in(op string) (done func()) {
	s.context.op = op
	return func() { s.context.op = "" }
}

func (s faultyScope) Child() tensor.Scope { return faultyScope{s.Scope.Child(), s.context} }

func (s faultyScope) From(values []float32, shape ...int) tensor.Array {
	defer s.in("From")()
	return s.Scope.From(values, shape...)
}

func (s faultyScope) IDs(ids []int32) tensor.Array {
	defer s.in("IDs")()
	return s.Scope.IDs(ids)
}

func (s faultyScope) JoinIDs(a tensor.Array, rows []int, ids []int32) tensor.Array {
	defer s.in("JoinIDs")()
	return s.Scope.JoinIDs(a, rows, ids)
}

func (s faultyScope) Embed(m tensor.Matrix, ids tensor.Array) tensor.Array {
	defer s.in("Embed")()
	return s.Scope.Embed(m, ids)
}

func (s faultyScope) Linear(x tensor.Array, ms ...tensor.Matrix) []tensor.Array {
	defer s.in("Linear")()
	return s.Scope.Linear(x, ms...)
}

func (s faultyScope) LinearBias(x tensor.Array, ms []tensor.Matrix, biases []tensor.Array) []tensor.Array {
	defer s.in("LinearBias")()
	return s.Scope.LinearBias(x, ms, biases)
}

func (s faultyScope) Route(scores tensor.Array, spec tensor.RouteSpec) (chosen, shares tensor.Array) {
	defer s.in("Route")()
	return s.Scope.Route(scores, spec)
}

func (s faultyScope) LinearOf(x, chosen tensor.Array, experts int, ms ...tensor.Matrix) []tensor.Array {
	defer s.in("LinearOf")()
	return s.Scope.LinearOf(x, chosen, experts, ms...)
}

func (s faultyScope) Combine(y, shares tensor.Array) tensor.Array {
	defer s.in("Combine")()
	return s.Scope.Combine(y, shares)
}

func (s faultyScope) Place(x tensor.Array, rows []int, y tensor.Array) tensor.Array {
	defer s.in("Place")()
	return s.Scope.Place(x, rows, y)
}

func (s faultyScope) Rows(x tensor.Array, rows []int) tensor.Array {
	defer s.in("Rows")()
	return s.Scope.Rows(x, rows)
}

func (s faultyScope) Argmax(x tensor.Array, width int) tensor.Array {
	defer s.in("Argmax")()
	return s.Scope.Argmax(x, width)
}

func (s faultyScope) Add(a, b tensor.Array) tensor.Array {
	defer s.in("Add")()
	return s.Scope.Add(a, b)
}

func (s faultyScope) Multiply(a, b tensor.Array) tensor.Array {
	defer s.in("Multiply")()
	return s.Scope.Multiply(a, b)
}

func (s faultyScope) Map(x tensor.Array, f tensor.Function) tensor.Array {
	defer s.in(f.Function())()
	return s.Scope.Map(x, f)
}

func (s faultyScope) GLU(gate, up tensor.Array, g tensor.GLU) tensor.Array {
	defer s.in(g.GLU())()
	return s.Scope.GLU(gate, up, g)
}

func (s faultyScope) Exceed(x tensor.Array, by float32) tensor.Array {
	defer s.in("Exceed")()
	return s.Scope.Exceed(x, by)
}

func (s faultyScope) MixRuns(x, by tensor.Array, n int) tensor.Array {
	defer s.in("MixRuns")()
	return s.Scope.MixRuns(x, by, n)
}

func (s faultyScope) Level(x, like tensor.Array, least float32) tensor.Array {
	defer s.in("Level")()
	return s.Scope.Level(x, like, least)
}

func (s faultyScope) RMSNorm(x, weight tensor.Array, eps float32) tensor.Array {
	defer s.in("RMSNorm")()
	return s.Scope.RMSNorm(x, weight, eps)
}

func (s faultyScope) Rope(x tensor.Array, segments []tensor.Segment, headSize int, spec tensor.RopeSpec) tensor.Array {
	defer s.in("Rope")()
	return s.Scope.Rope(x, segments, headSize, spec)
}

func (s faultyScope) AppendAttend(spec tensor.AttendSpec) tensor.Array {
	defer s.in("AppendAttend")()
	return s.Scope.AppendAttend(spec)
}

func (s faultyScope) Recur(spec tensor.RecurSpec) tensor.Array {
	defer s.in("Recur")()
	return s.Scope.Recur(spec)
}

func (s faultyScope) Split(x tensor.Array, widths ...int) []tensor.Array {
	defer s.in("Split")()
	return s.Scope.Split(x, widths...)
}

func (s faultyScope) SigmoidGate(x, gate tensor.Array) tensor.Array {
	defer s.in("SigmoidGate")()
	return s.Scope.SigmoidGate(x, gate)
}

func (s faultyScope) AddGated(y, x, gate tensor.Array) tensor.Array {
	defer s.in("AddGated")()
	return s.Scope.AddGated(y, x, gate)
}

func (s faultyScope) RMSNormGate(x, gate, weight tensor.Array, eps float32) tensor.Array {
	defer s.in("RMSNormGate")()
	return s.Scope.RMSNormGate(x, gate, weight, eps)
}

func (s faultyScope) AttendAll(spec tensor.AttendAllSpec) tensor.Array {
	defer s.in("AttendAll")()
	return s.Scope.AttendAll(spec)
}

func (s faultyScope) LayerNorm(x, weight, bias tensor.Array, eps float32) tensor.Array {
	defer s.in("LayerNorm")()
	return s.Scope.LayerNorm(x, weight, bias, eps)
}

func (s faultyScope) Mean(x tensor.Array, segments []tensor.Segment, mask []float32) tensor.Array {
	defer s.in("Mean")()
	return s.Scope.Mean(x, segments, mask)
}

func (s faultyScope) Unit(x tensor.Array) tensor.Array {
	defer s.in("Unit")()
	return s.Scope.Unit(x)
}
