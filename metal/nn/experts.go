package nn

import (
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Experts is a mixture of gated feed-forwards: a router scores them for each
// token, and those that it likes best are added up by their shares.
type Experts struct {
	Router Linear
	// Gate, Up and Down are the stacked matrices of all experts.
	Gate, Up, Down Linear
	// Count of them, of which a token sees PerToken.
	Count, PerToken int
	// Normalized shares add up to one.
	Normalized bool
	// By is how experts are chosen, Bias is added to the scores for the choice;
	// nil means none.
	By   family.Router
	Bias tensor.Array
	// Shared is an additional expert that every token uses; nil means none. Its
	// weight is the sigmoid of SharedGate's score, or 1 without SharedGate.
	Shared     FeedForward
	SharedGate Linear
}

// Apply runs the mixture on x [T, D]. Intermediate arrays are released as soon
// as possible.
func (e *Experts) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	scores := e.Router.Apply(s, x)
	chosen, shares := e.route(s, scores)
	s.Release(scores)
	gu := s.LinearOf(x, chosen, e.Count, e.Gate.Matrix, e.Up.Matrix)
	inner := s.SwiGLU(gu[0], gu[1])
	s.Release(gu[0])
	s.Release(gu[1])
	down := s.LinearOf(inner, chosen, e.Count, e.Down.Matrix)[0]
	s.Release(inner)
	s.Release(chosen)
	out := s.Combine(down, shares)
	s.Release(shares)
	s.Release(down)
	if e.Shared == nil {
		return out
	}
	if e.SharedGate.Matrix == nil {
		shared := e.Shared.Apply(s, x)
		defer s.Release(out)
		defer s.Release(shared)
		return s.Add(out, shared)
	}
	shared, gate := e.Shared.Apply(s, x), e.SharedGate.Apply(s, x)
	gated := s.SigmoidGate(shared, gate)
	s.Release(shared)
	defer s.Release(out)
	defer s.Release(gated)
	return s.Add(out, gated)
}

// route chooses experts and gives their shares.
func (e *Experts) route(s tensor.Scope, scores tensor.Array) (chosen, shares tensor.Array) {
	if e.By.Plain() {
		return s.Route(scores, e.PerToken, e.Normalized)
	}
	return s.RouteBy(scores, tensor.RouteSpec{
		K: e.PerToken, Sigmoid: e.By.Sigmoid, Bias: e.Bias, Groups: e.By.Groups, TopGroups: e.By.TopGroups, Pairs: e.By.Pairs,
		Normalized: e.Normalized, Scale: float32(e.By.Scale),
	})
}

// stack declares the matrices of all experts.
func (l *Loader) stack(path string, to *Linear) {
	l.matrix(path, 3, func(m tensor.Matrix) { to.Matrix = m })
}

// Experts declares a router, gate, with the prefix path, and the stacked
// experts of switch_mlp, with mlx-lm's names.
func (l *Loader) Experts(path string, d family.Experts) *Experts {
	e := &Experts{Count: d.Count, PerToken: d.PerToken, Normalized: d.Normalized, By: d.Router}
	if name := path + "." + d.Router.Bias; d.Router.Bias != "" && l.holds(name, !d.Router.MayLack) {
		l.vector(name, func(v tensor.Array) { e.Bias = v })
	}
	l.Linear(path+".gate", &e.Router)
	l.stack(path+".switch_mlp.gate_proj", &e.Gate)
	l.stack(path+".switch_mlp.up_proj", &e.Up)
	l.stack(path+".switch_mlp.down_proj", &e.Down)
	if d.Shared > 0 {
		e.Shared = l.feed(path+"."+d.SharedName(), family.Feed{})
		if !d.SharedWhole {
			l.Linear(path+"."+d.SharedName()+"_gate", &e.SharedGate)
		}
	}
	return e
}
