package nn

import (
	"math"

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
	// Each multiplies the share of each expert; nil means 1.
	Each tensor.Array
	// GELU replaces SiLU. If Gate has no matrix the activation is ReLU2.
	GELU bool
	// Limit bounds both factors (family.Feed.Limit); 0 means no bound.
	Limit float32
	// Into makes what experts read, and Back the output of their sum; without matrices they
	// read and return what the mixture does.
	Into, Back Linear
	// Shared is an additional expert that every token uses; nil means none. Its
	// weight is the sigmoid of SharedGate's score, or 1 without SharedGate.
	Shared     FeedForward
	SharedGate Linear
}

// Apply runs the mixture on x [T, D]. What is only passed on is released at once.
func (e *Experts) Apply(s tensor.Scope, x tensor.Array) tensor.Array { return e.of(s, x, x) }

// inner is what the chosen experts compute between their matrices.
func (e *Experts) inner(s tensor.Scope, x, chosen tensor.Array) tensor.Array {
	if e.Gate.Matrix == nil {
		up := s.LinearOf(x, chosen, e.Count, e.Up.Matrix)[0]
		defer s.Release(up)
		return s.Map(up, tensor.ReLU2{})
	}
	gu := s.LinearOf(x, chosen, e.Count, e.Gate.Matrix, e.Up.Matrix)
	defer s.Release(gu[0])
	defer s.Release(gu[1])
	switch {
	case e.GELU:
		return s.GLU(gu[0], gu[1], tensor.GeGLU{})
	case e.Limit > 0:
		return s.GLU(gu[0], gu[1], tensor.LimitedSwiGLU{Limit: e.Limit})
	}
	return s.GLU(gu[0], gu[1], tensor.SwiGLU{})
}

// of runs the mixture on x, whose experts are chosen by another array.
func (e *Experts) of(s tensor.Scope, x, by tensor.Array) tensor.Array {
	scores := e.Router.Apply(s, by)
	if by := float32(e.By.Cap); by > 0 {
		scores = s.Map(s.Map(s.Map(scores, tensor.ScaleShift{Scale: 1 / by}), tensor.Tanh{}), tensor.ScaleShift{Scale: by})
	}
	chosen, shares := e.route(s, scores)
	s.Release(scores)
	read := x
	switch {
	case e.By.Input:
		read = s.Multiply(x, shares)
	case e.Into.Matrix != nil:
		read = e.Into.Apply(s, x)
	}
	inner := e.inner(s, read, chosen)
	out := s.LinearOf(inner, chosen, e.Count, e.Down.Matrix)[0]
	s.Release(inner)
	s.Release(chosen)
	if read != x {
		s.Release(read)
	}
	if !e.By.Input {
		down := out
		out = s.Combine(down, shares)
		s.Release(down)
	}
	s.Release(shares)
	if e.Back.Matrix != nil {
		sum := out
		out = e.Back.Apply(s, sum)
		s.Release(sum)
	}
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
	defer s.Release(out)
	defer s.Release(shared)
	defer s.Release(gate)
	return s.AddGated(out, shared, gate)
}

// route chooses experts and gives their shares.
func (e *Experts) route(s tensor.Scope, scores tensor.Array) (chosen, shares tensor.Array) {
	if e.By.Plain() && e.Each == nil {
		return s.Route(scores, tensor.RouteSpec{K: e.PerToken, Normalized: e.Normalized, Rounded: true})
	}
	return s.Route(scores, tensor.RouteSpec{
		K: e.PerToken, Sigmoid: e.By.Sigmoid, Bias: e.Bias, Groups: e.By.Groups, TopGroups: e.By.TopGroups, Pairs: e.By.Pairs,
		Normalized: e.Normalized, Scale: float32(e.By.Scale), Least: float32(e.By.Least), Each: e.Each, Jitter: float32(e.By.Jitter),
	})
}

// stack declares the matrices of all experts.
func (l *Loader) stack(path string, to *Linear) {
	l.matrix(path, 3, func(m tensor.Matrix) { to.Matrix, l.layers[path] = m, m })
}

// newExperts declares a router, gate, with the prefix path, and the stacked
// experts of switch_mlp, with mlx-lm's names.
func newExperts(l *Loader, path string, d family.Experts) *Experts {
	e := &Experts{Count: d.Count, PerToken: d.PerToken, Normalized: d.Normalized, By: d.Router, GELU: d.Activation == family.GELUTanh, Limit: float32(d.Limit)}
	if name := path + "." + d.Router.Bias; d.Router.Bias != "" && l.holds(name, !d.Router.MayLack) {
		l.vector(name, func(v tensor.Array) { e.Bias = v })
	}
	l.Linear(path+".gate", &e.Router)
	if !d.Plain {
		l.stack(path+".switch_mlp.gate_proj", &e.Gate)
	}
	l.stack(path+".switch_mlp.up_proj", &e.Up)
	l.stack(path+".switch_mlp.down_proj", &e.Down)
	if d.Latent > 0 {
		l.Linear(path+".fc1_latent_proj", &e.Into)
		l.Linear(path+".fc2_latent_proj", &e.Back)
	}
	if d.Shared > 0 {
		e.Shared = newFeed(l, path+"."+d.SharedName(), family.Feed{Plain: d.Plain, Activation: d.Activation, Limit: d.SharedLimit})
		if !d.SharedWhole {
			l.Linear(path+"."+d.SharedName()+"_gate", &e.SharedGate)
		}
	}
	return e
}

// Aside is a mixture next to a dense feed-forward (Gemma 4). Each half norms what it
// reads and what it returns; the router reads the residual by a norm of its own.
type Aside struct {
	Dense   FeedForward
	Experts *Experts
	// Norms are those before and after the one, then those of the other; By is the
	// router's, whose weight is Scale over the root of the width.
	Norms [4]RMSNorm
	By    RMSNorm
}

// newAside declares both halves in the layer at path.
func newAside(l *Loader, path string, d family.Dimensions, e family.Experts) *Aside {
	a := &Aside{Dense: newFeed(l, path+".mlp", family.Feed{Activation: e.Activation}), Experts: newExperts(l, path+"."+e.Prefix(), e)}
	for i, name := range e.AsideNorms() {
		l.RMSNorm(path+"."+name, d.NormEps, &a.Norms[i])
	}
	a.By.Eps = float32(d.NormEps)
	l.vector(path+"."+e.Prefix()+".router_scale", func(v tensor.Array) { a.By.Weight = l.scaled(v, float32(1/math.Sqrt(float64(d.Hidden))), 0) })
	l.vector(path+"."+e.Prefix()+".per_expert_scale", func(v tensor.Array) { a.Experts.Each = v })
	return a
}

// Apply runs both on x [T, D], which is not normed.
func (a *Aside) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	dense := a.Norms[1].Apply(s, a.Dense.Apply(s, a.Norms[0].Apply(s, x)))
	mixed := a.Norms[3].Apply(s, a.Experts.of(s, a.Norms[2].Apply(s, x), a.By.Apply(s, x)))
	return s.Add(dense, mixed)
}
