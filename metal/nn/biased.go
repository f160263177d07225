package nn

import (
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Bias declares path+".bias", which is added to the products of a layer.
func (l *Loader) Bias(path string, to *Linear) {
	l.vector(path+".bias", func(v tensor.Array) { to.Bias = v })
}

// Sinks declares path+".sinks": of each query head a score that takes part in
// the softmax and adds nothing.
func (l *Loader) Sinks(path string, to *Attention) {
	l.host(path+".sinks", &to.Sinks)
}

// BiasedExperts are the stacked matrices of all experts of a mixture, and the
// biases of each.
type BiasedExperts struct {
	Linear
	// Biases have a row for each expert.
	Biases Linear
}

// add adds to each product of an expert what belongs to that one.
func (e *BiasedExperts) add(s tensor.Scope, product, chosen tensor.Array) tensor.Array {
	bias := s.Embed(e.Biases.Matrix, chosen)
	sum := s.Add(product, bias)
	s.Release(bias)
	s.Release(product)
	return sum
}

// BiasedExperts declares path+".weight", of three dimensions, and path+".bias".
func (l *Loader) BiasedExperts(path string, to *BiasedExperts) {
	l.stack(path, &to.Linear)
	l.whole(path+".bias", 2, func(m tensor.Matrix) { to.Biases.Matrix = m })
}

// PairedExperts declares two layers whose parameters alternate: path+".weight"
// has rows, and path+".bias" numbers, of first and second in turn.
func (l *Loader) PairedExperts(path string, first, second *BiasedExperts) {
	l.declare(path+".weight", 3, func(reading *weights.Reading, e weights.Entry) error {
		sizes, err := e.Format.Sizes(e.Columns())
		if err != nil {
			return err
		}
		return l.pair(e, e.Rows()/2, e.Columns(), &first.Linear, &second.Linear, func(put [2]putRows) error {
			return reading.Place(e, func(at int, r quant.Row) error {
				l.progress(int64(len(r.Raw) + len(r.Scales) + len(r.Biases)))
				for i := range len(r.Raw) / sizes.Raw {
					if err := put[(at+i)%2]((at+i)/2, r.At(i, sizes)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
	l.declare(path+".bias", 2, func(reading *weights.Reading, e weights.Entry) error {
		return l.pair(e, e.Rows(), e.Columns()/2, &first.Biases, &second.Biases, func(put [2]putRows) error {
			return reading.Rows(e, func(at int, r quant.Row) error {
				l.progress(int64(len(r.Raw)))
				for side, raw := range apart(r.Raw, e.Format.Type.Bytes()) {
					if err := put[side](at, quant.Row{Raw: raw}); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
}

// putRows is what LoadMatrix gives to fill a matrix with.
type putRows func(first int, r quant.Row) error

// apart separates two interleaved sequences of numbers of size bytes.
func apart(raw []byte, size int) (out [2][]byte) {
	for i := 0; i < len(raw); i += size {
		side := i / size % 2
		out[side] = append(out[side], raw[i:i+size]...)
	}
	return out
}

// ClampedExperts is the mixture of GPT-OSS: the router is a layer with a bias,
// shares are the softmax of the scores that are chosen, and every product of an
// expert has a bias.
type ClampedExperts struct {
	Router         Linear
	Gate, Up, Down BiasedExperts
	// Count of experts, of which a token sees PerToken.
	Count, PerToken int
	// Alpha sharpens the gate, Limit is where gate and up end.
	Alpha, Limit float32
}

// Apply runs the mixture on x [T, D].
func (e *ClampedExperts) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	scores := e.Router.Apply(s, x)
	chosen, shares := s.Route(scores, tensor.RouteSpec{K: e.PerToken, SoftmaxLast: true})
	s.Release(scores)
	gu := s.LinearOf(x, chosen, e.Count, e.Gate.Matrix, e.Up.Matrix)
	gate, up := e.Gate.add(s, gu[0], chosen), e.Up.add(s, gu[1], chosen)
	inner := s.GLU(gate, up, tensor.ClampedSwiGLU{Alpha: e.Alpha, Limit: e.Limit})
	s.Release(gate)
	s.Release(up)
	down := e.Down.add(s, s.LinearOf(inner, chosen, e.Count, e.Down.Matrix)[0], chosen)
	return s.Combine(down, shares)
}

// newClampedExperts declares a router and experts with the prefix path: gate_proj,
// up_proj and down_proj with mlx-lm's names, or gate_up_proj for both as
// published.
func newClampedExperts(l *Loader, path string, d family.Experts) *ClampedExperts {
	e := &ClampedExperts{Count: d.Count, PerToken: d.PerToken, Alpha: family.GateAlpha, Limit: family.GateLimit}
	l.Linear(path+".router", &e.Router)
	l.Bias(path+".router", &e.Router)
	if both := path + ".experts.gate_up_proj"; l.Has(both) {
		l.PairedExperts(both, &e.Gate, &e.Up)
	} else {
		l.BiasedExperts(path+".experts.gate_proj", &e.Gate)
		l.BiasedExperts(path+".experts.up_proj", &e.Up)
	}
	l.BiasedExperts(path+".experts.down_proj", &e.Down)
	return e
}
