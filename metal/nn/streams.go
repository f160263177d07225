package nn

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// leastSquare is the least mean square that a stream is divided by
// (transformers' modeling_gemma3n.py).
const leastSquare = 1e-5

// streams makes several residuals of an embedding, and one of them after the last layer
// (family.Streams). They lie next to one another: [T, count*hidden].
type streams struct {
	spreads, gathers []Linear
	widths           []int
}

// newStreams declares the projections of the residuals.
func newStreams(l *Loader, d family.Dimensions) *streams {
	n := d.Streams.Count
	m := &streams{spreads: make([]Linear, n-1), gathers: make([]Linear, n-1), widths: make([]int, n)}
	for i := range n {
		m.widths[i] = d.Hidden
	}
	for i := range n - 1 {
		l.Linear(fmt.Sprintf("model.altup_projections.%d", i), &m.spreads[i])
		l.Linear(fmt.Sprintf("model.altup_unembed_projections.%d", i), &m.gathers[i])
	}
	return m
}

// spread gives each token its residuals, all as large as the first, x, which is released.
func (m *streams) spread(s tensor.Scope, x tensor.Array) tensor.Array {
	inner := s.Child()
	defer inner.Close()
	all := []tensor.Array{x}
	for _, p := range m.spreads {
		all = append(all, inner.Level(p.Apply(inner, x), x, leastSquare))
	}
	out := inner.Keep(inner.Join(all, m.widths...))
	s.Release(x)
	return out
}

// gather is the mean of the residuals, all as large as the first. x is released.
func (m *streams) gather(s tensor.Scope, x tensor.Array) tensor.Array {
	inner := s.Child()
	defer inner.Close()
	all := inner.Split(x, m.widths...)
	sum := all[0]
	for i, p := range m.gathers {
		sum = inner.Add(sum, inner.Level(p.Apply(inner, all[i+1]), all[0], leastSquare))
	}
	out := inner.Keep(inner.Map(sum, tensor.ScaleShift{Scale: 1 / float32(len(all))}))
	s.Release(x)
	return out
}

// altUp is a layer of several residuals, of which it computes one.
type altUp struct {
	*block
	shape           family.Streams
	hidden          int
	router          Linear
	routerNorm      RMSNorm
	predict, adjust Linear
	scale           tensor.Array
	left, right     Linear
	aroundNorm      RMSNorm
}

// newAltUp declares what the layer under path has in addition to b.
func newAltUp(l *Loader, path string, b *block, d family.Dimensions) *altUp {
	a := &altUp{block: b, shape: *d.Streams, hidden: d.Hidden}
	l.Linear(path+".altup.modality_router", &a.router)
	l.RMSNorm(path+".altup.router_norm", d.NormEps, &a.routerNorm)
	l.bounded(path+".altup.prediction_coefs", float32(a.shape.Clip), &a.predict)
	l.bounded(path+".altup.correction_coefs", float32(a.shape.Clip), &a.adjust)
	l.vector(path+".altup.correct_output_scale", func(v tensor.Array) { a.scale = v })
	l.Linear(path+".laurel.linear_left", &a.left)
	l.Linear(path+".laurel.linear_right", &a.right)
	l.RMSNorm(path+".laurel.post_laurel_norm", d.NormEps, &a.aroundNorm)
	return a
}

// Apply runs the layer on the residuals x [T, count*hidden].
func (a *altUp) Apply(s tensor.Scope, x tensor.Array, p Pass, rows []int) tensor.Array {
	if len(rows) == 0 && rows != nil { // only what the cache keeps of them counts
		a.mixer.Attend(s, a.before.apply(s, a.active(s, a.predicted(s, x))), p)
		return nil
	}
	guess := a.predicted(s, x)
	now := a.active(s, guess)
	normed := a.before.apply(s, now)
	seen := a.mixer.Attend(s, normed, p)
	input := p.Inner[a.layer]
	if rows != nil {
		guess, now, normed, seen, input = s.Rows(guess, rows), s.Rows(now, rows), s.Rows(normed, rows), s.Rows(seen, rows), s.Rows(input, rows)
		s = only(s, rows)
	}
	around := s.Add(normed, a.aroundNorm.Apply(s, a.right.Apply(s, a.left.Apply(s, normed))))
	s.Release(normed)
	mixed := a.normed(s, a.after, a.mixer.Output().Apply(s, seen))
	s.Release(seen)
	h := s.Map(s.Add(s.Add(now, mixed), around), tensor.ScaleShift{Scale: math.Sqrt2 / 2})
	s.Release(around)
	s.Release(mixed)
	fed := a.normed(s, a.afterFeed, a.feed.Apply(s, a.beforeFeed.apply(s, h)))
	computed := s.Add(h, fed)
	s.Release(fed)
	return a.others(s, a.corrected(s, guess, now, computed), input)
}

// active is the residual that the layer computes.
func (a *altUp) active(s tensor.Scope, x tensor.Array) tensor.Array {
	at := a.shape.Active
	var widths []int
	for _, n := range []int{at, 1, a.shape.Count - at - 1} {
		if n > 0 {
			widths = append(widths, n*a.hidden)
		}
	}
	parts := s.Split(x, widths...)
	which := min(at, 1)
	for i, p := range parts {
		if i != which {
			s.Release(p)
		}
	}
	return parts[which]
}

// modes returns the modalities of each token (AltUp), of which coefficients are computed.
func (a *altUp) modes(s tensor.Scope, x tensor.Array) tensor.Array {
	normed := a.routerNorm.Apply(s, x)
	scaled := s.Map(normed, tensor.ScaleShift{Scale: 1 / float32(a.hidden)})
	s.Release(normed)
	defer s.Release(scaled)
	return s.Map(a.router.Apply(s, scaled), tensor.Tanh{})
}

// predicted returns the residuals that the layer predicts.
func (a *altUp) predicted(s tensor.Scope, x tensor.Array) tensor.Array {
	was := a.active(s, x)
	more := s.MixRuns(x, a.predict.Apply(s, a.modes(s, was)), a.shape.Count)
	s.Release(was)
	defer s.Release(more)
	return s.Add(x, more)
}

// corrected corrects the predicted residuals by the error of the active one, which was now and
// is computed. guess and now are released.
func (a *altUp) corrected(s tensor.Scope, guess, now, computed tensor.Array) tensor.Array {
	new := s.Add(computed, s.Map(now, tensor.ScaleShift{Scale: -1}))
	s.Release(now)
	factors := s.Map(a.adjust.Apply(s, a.modes(s, computed)), tensor.ScaleShift{Scale: 1, Shift: 1})
	more := s.MixRuns(new, factors, 1)
	s.Release(new)
	out := s.Add(guess, more)
	s.Release(guess)
	s.Release(more)
	return out
}

// others adds to all residuals but the first what the active one and the input of the
// layer make. x is released.
func (a *altUp) others(s tensor.Scope, x, input tensor.Array) tensor.Array {
	from := a.active(s, x)
	if a.shape.Scaled {
		from = s.Multiply(from, a.scale)
	}
	add := a.input.apply(s, from, input)
	widths := make([]int, a.shape.Count)
	for i := range widths {
		widths[i] = a.hidden
	}
	parts := s.Split(x, widths...)
	s.Release(x)
	for i := 1; i < len(parts); i++ {
		part := parts[i]
		parts[i] = s.Add(part, add)
		s.Release(part)
	}
	out := s.Join(parts, widths...)
	for _, p := range parts {
		s.Release(p)
	}
	return out
}

// bounded declares the matrix path+".weight" of floats, which are clipped to [-by, by]; by 0
// means no bound. They are kept in float32.
func (l *Loader) bounded(path string, by float32, to *Linear) {
	l.declare(path+".weight", 2, func(reading *weights.Reading, e weights.Entry) error {
		values := make([]float32, e.Columns())
		m, err := l.backend.LoadMatrix(quant.DenseOf(quant.Float32), e.Rows(), e.Columns(), func(put func(int, quant.Row) error) error {
			return reading.Rows(e, func(row int, r quant.Row) error {
				l.progress(int64(len(r.Raw) + len(r.Scales) + len(r.Biases)))
				if err := e.Format.Dequantize(r, values); err != nil {
					return err
				}
				for i, v := range values {
					if by > 0 {
						values[i] = min(max(v, -by), by)
					}
				}
				return put(row, quant.Row{Raw: rawFloats(values)})
			})
		})
		if err != nil {
			return err
		}
		l.matrices = append(l.matrices, m)
		to.Matrix = m
		return nil
	})
}

// padded declares the matrix path+".weight" of an embedding for this many tokens. Tokens
// without a row have the first one.
func (l *Loader) padded(path string, tokens int, to *embedding) {
	l.declare(path+".weight", 2, func(reading *weights.Reading, e weights.Entry) error {
		m, err := l.backend.LoadMatrix(e.Format, max(tokens, e.Rows()), e.Columns(), func(put func(int, quant.Row) error) error {
			sizes, err := e.Format.Sizes(e.Columns())
			if err != nil {
				return err
			}
			return reading.Place(e, func(first int, r quant.Row) error {
				l.progress(int64(len(r.Raw) + len(r.Scales) + len(r.Biases)))
				if first == 0 {
					for row := e.Rows(); row < tokens; row++ {
						if err := put(row, r.At(0, sizes)); err != nil {
							return err
						}
					}
				}
				return put(first, r)
			})
		})
		if err != nil {
			return err
		}
		l.matrices = append(l.matrices, m)
		to.Matrix = m
		return nil
	})
}
