package profile

import (
	"time"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// scope measures every operation; what it does not name is passed on.
type scope struct {
	tensor.Scope
	b *Backend
}

// Child measures too.
func (s *scope) Child() tensor.Scope { return &scope{Scope: s.Scope.Child(), b: s.b} }

// several runs an operation and waits for its results. extra is the number of
// bytes in addition to those of operands and results.
func (s *scope) several(name string, extra int64, run func() []tensor.Array, operands ...tensor.Array) []tensor.Array {
	bytes := extra + s.b.bytes(operands...)
	began := time.Now()
	out := run()
	if s.Err() == nil {
		s.Wait(out...)
	}
	took := time.Since(began)
	if s.Err() == nil {
		s.b.note(name, took, bytes+s.b.bytes(out...))
	}
	return out
}

// one is several for a single result.
func (s *scope) one(name string, extra int64, run func() tensor.Array, operands ...tensor.Array) tensor.Array {
	return s.several(name, extra, func() []tensor.Array { return []tensor.Array{run()} }, operands...)[0]
}

// shape of an array, if it is one.
func shape(a tensor.Array) []int {
	if a == nil {
		return nil
	}
	return a.Shape()
}

// bytes of arrays.
func (b *Backend) bytes(arrays ...tensor.Array) (n int64) {
	for _, a := range arrays {
		if a == nil {
			continue
		}
		size := b.width()
		for _, d := range a.Shape() {
			size *= int64(d)
		}
		n += size
	}
	return n
}

// matrices are bytes of weights that are read whole.
func matrices(ms []tensor.Matrix) (n int64) {
	for _, m := range ms {
		if m != nil { // one that is none is the back end's to refuse
			n += m.Bytes()
		}
	}
	return n
}

func (s *scope) Embed(m tensor.Matrix, ids tensor.Array) tensor.Array {
	read := int64(0)
	if of := shape(ids); m != nil && len(of) > 0 {
		out, _ := m.Shape()
		read = m.Bytes() / int64(max(1, out)) * int64(of[0])
	}
	return s.one("Embed", read, func() tensor.Array { return s.Scope.Embed(m, ids) })
}

func (s *scope) Linear(x tensor.Array, ms ...tensor.Matrix) []tensor.Array {
	return s.several("Linear", matrices(ms), func() []tensor.Array { return s.Scope.Linear(x, ms...) }, x)
}

func (s *scope) LinearBias(x tensor.Array, ms []tensor.Matrix, biases []tensor.Array) []tensor.Array {
	return s.several("LinearBias", matrices(ms), func() []tensor.Array { return s.Scope.LinearBias(x, ms, biases) }, append([]tensor.Array{x}, biases...)...)
}

func (s *scope) Route(scores tensor.Array, spec tensor.RouteSpec) (chosen, shares tensor.Array) {
	out := s.several("Route", 0, func() []tensor.Array {
		c, p := s.Scope.Route(scores, spec)
		return []tensor.Array{c, p}
	}, scores)
	return out[0], out[1]
}

func (s *scope) LinearOf(x, chosen tensor.Array, experts int, ms ...tensor.Matrix) []tensor.Array {
	read := int64(0)
	if of := shape(chosen); len(of) > 0 && experts > 0 {
		read = matrices(ms) / int64(experts) * int64(min(of[0], experts))
	}
	return s.several("LinearOf", read, func() []tensor.Array { return s.Scope.LinearOf(x, chosen, experts, ms...) }, x)
}

func (s *scope) LinearEach(x tensor.Array, m tensor.Matrix, heads int) tensor.Array {
	return s.one("LinearEach", matrices([]tensor.Matrix{m}), func() tensor.Array { return s.Scope.LinearEach(x, m, heads) }, x)
}

func (s *scope) Join(xs []tensor.Array, widths ...int) tensor.Array {
	return s.one("Join", 0, func() tensor.Array { return s.Scope.Join(xs, widths...) }, xs...)
}

func (s *scope) Combine(y, shares tensor.Array) tensor.Array {
	return s.one("Combine", 0, func() tensor.Array { return s.Scope.Combine(y, shares) }, y, shares)
}

func (s *scope) Rows(x tensor.Array, rows []int) tensor.Array {
	return s.one("Rows", 0, func() tensor.Array { return s.Scope.Rows(x, rows) })
}

func (s *scope) Place(x tensor.Array, rows []int, y tensor.Array) tensor.Array {
	return s.one("Place", 0, func() tensor.Array { return s.Scope.Place(x, rows, y) }, x, y)
}

func (s *scope) Argmax(x tensor.Array, width int) tensor.Array {
	return s.one("Argmax", 0, func() tensor.Array { return s.Scope.Argmax(x, width) }, x)
}

func (s *scope) Add(a, b tensor.Array) tensor.Array {
	return s.one("Add", 0, func() tensor.Array { return s.Scope.Add(a, b) }, a, b)
}

func (s *scope) Multiply(a, b tensor.Array) tensor.Array {
	return s.one("Multiply", 0, func() tensor.Array { return s.Scope.Multiply(a, b) }, a, b)
}

func (s *scope) Map(x tensor.Array, f tensor.Function) tensor.Array {
	return s.one(f.Function(), 0, func() tensor.Array { return s.Scope.Map(x, f) }, x)
}

func (s *scope) GLU(gate, up tensor.Array, g tensor.GLU) tensor.Array {
	return s.one(g.GLU(), 0, func() tensor.Array { return s.Scope.GLU(gate, up, g) }, gate, up)
}

func (s *scope) Exceed(x tensor.Array, by float32) tensor.Array {
	return s.one("Exceed", 0, func() tensor.Array { return s.Scope.Exceed(x, by) }, x)
}

func (s *scope) MixRuns(x, by tensor.Array, n int) tensor.Array {
	return s.one("MixRuns", 0, func() tensor.Array { return s.Scope.MixRuns(x, by, n) }, x, by)
}

func (s *scope) Level(x, like tensor.Array, least float32) tensor.Array {
	return s.one("Level", 0, func() tensor.Array { return s.Scope.Level(x, like, least) }, x, like)
}

func (s *scope) RMSNorm(x, weight tensor.Array, eps float32) tensor.Array {
	return s.one("RMSNorm", 0, func() tensor.Array { return s.Scope.RMSNorm(x, weight, eps) }, x, weight)
}

func (s *scope) Rope(x tensor.Array, segments []tensor.Segment, headSize int, spec tensor.RopeSpec) tensor.Array {
	return s.one("Rope", 0, func() tensor.Array { return s.Scope.Rope(x, segments, headSize, spec) }, x)
}

// AppendAttend also counts the cached keys and values of the segments' requests
// in one layer.
func (s *scope) AppendAttend(spec tensor.AttendSpec) tensor.Array {
	seen := int64(0)
	for _, g := range spec.Segments {
		n := g.Start + g.Length
		if spec.Window > 0 {
			n = min(n, spec.Window+g.Length-1)
		}
		seen += int64(n)
	}
	held := seen * int64(s.b.spec.HeadsOf(spec.Layer).Elements()) * s.b.width()
	return s.one("AppendAttend", held, func() tensor.Array { return s.Scope.AppendAttend(spec) }, spec.Q, spec.K, spec.V)
}

// Recur also reads and writes the state of one layer for each segment.
func (s *scope) Recur(spec tensor.RecurSpec) tensor.Array {
	state := 2 * 4 * int64(s.b.spec.Recurrent.StateElements()) * int64(len(spec.Segments))
	return s.one("Recur", state, func() tensor.Array { return s.Scope.Recur(spec) }, spec.Q, spec.K, spec.V, spec.Decay, spec.Beta, spec.Kernel)
}

func (s *scope) Split(x tensor.Array, widths ...int) []tensor.Array {
	return s.several("Split", 0, func() []tensor.Array { return s.Scope.Split(x, widths...) }, x)
}

func (s *scope) SigmoidGate(x, gate tensor.Array) tensor.Array {
	return s.one("SigmoidGate", 0, func() tensor.Array { return s.Scope.SigmoidGate(x, gate) }, x, gate)
}

func (s *scope) AddGated(y, x, gate tensor.Array) tensor.Array {
	return s.one("AddGated", 0, func() tensor.Array { return s.Scope.AddGated(y, x, gate) }, y, x, gate)
}

func (s *scope) RMSNormGate(x, gate, weight tensor.Array, eps float32) tensor.Array {
	return s.one("RMSNormGate", 0, func() tensor.Array { return s.Scope.RMSNormGate(x, gate, weight, eps) }, x, gate, weight)
}

func (s *scope) AttendAll(spec tensor.AttendAllSpec) tensor.Array {
	return s.one("AttendAll", 0, func() tensor.Array { return s.Scope.AttendAll(spec) }, spec.Q, spec.K, spec.V)
}

func (s *scope) LayerNorm(x, weight, bias tensor.Array, eps float32) tensor.Array {
	return s.one("LayerNorm", 0, func() tensor.Array { return s.Scope.LayerNorm(x, weight, bias, eps) }, x, weight, bias)
}

func (s *scope) Mean(x tensor.Array, segments []tensor.Segment, mask []float32) tensor.Array {
	return s.one("Mean", 0, func() tensor.Array { return s.Scope.Mean(x, segments, mask) }, x)
}

func (s *scope) Unit(x tensor.Array) tensor.Array {
	return s.one("Unit", 0, func() tensor.Array { return s.Scope.Unit(x) }, x)
}
