package tensortest

import (
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// recurCase is one shape of recurrent layers.
type recurCase struct {
	tensor.RecurrentSpec
	name string
	rule tensor.RecurRule
	// byChannel forgets each column of a state by itself; shifted convolutions add a
	// bias.
	byChannel, shifted bool
	// rate is what LogRate lies around: how fast states are forgotten.
	rate float64
	// alike makes keys of a request nearly equal, so that what was written is
	// taken back again and again.
	alike bool
}

func recurCases() []recurCase {
	shape := func(keyHeads, keySize, valueHeads, valueSize, taps int) tensor.RecurrentSpec {
		return tensor.RecurrentSpec{Layers: 2, KeyHeads: keyHeads, KeySize: keySize, ValueHeads: valueHeads, ValueSize: valueSize, Taps: taps}
	}
	return []recurCase{
		{name: "shared keys", RecurrentSpec: shape(2, 8, 6, 4, 4)},
		{name: "odd sizes", RecurrentSpec: shape(3, 5, 3, 7, 2)},
		{name: "long memory", RecurrentSpec: shape(1, 16, 2, 8, 3), rate: -6},
		{name: "short memory", RecurrentSpec: shape(2, 6, 2, 6, 4), rate: 4},
		{name: "state space", RecurrentSpec: shape(2, 8, 6, 4, 4), rule: tensor.StateSpace, shifted: true},
		{name: "state space that forgets slowly", RecurrentSpec: shape(1, 5, 3, 7, 2), rule: tensor.StateSpace, rate: -5},
		{name: "convolution", RecurrentSpec: shape(0, 0, 1, 24, 3), rule: tensor.Convolution},
		{name: "convolution with a bias", RecurrentSpec: shape(0, 0, 2, 5, 4), rule: tensor.Convolution, shifted: true},
		{name: "forgotten by channel", RecurrentSpec: shape(3, 8, 3, 6, 4), byChannel: true},
		{name: "forgotten by channel, at once", RecurrentSpec: shape(2, 6, 4, 6, 4), byChannel: true, rate: 4},
		{name: "keys alike", RecurrentSpec: shape(1, 32, 2, 8, 4), rate: -8, alike: true},
	}
}

// recurrentCache is an empty cache for the layers of a case.
func (x *bench) recurrentCache(c recurCase) tensor.Cache {
	x.t.Helper()
	cache, err := x.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 2, BlockTokens: 4, Recurrent: c.RecurrentSpec})
	if err != nil {
		x.t.Fatal(err)
	}
	return cache
}

// recurred is a layer's operands: the values, and their arrays.
type recurred struct {
	q, k, v, decay, beta, kernel, rate, bias []float32
	shift, skip                              []float32
	spec                                     tensor.RecurSpec
}

// decays is how many numbers a row of Decay has.
func (c recurCase) decays() int {
	if c.byChannel {
		return c.ValueHeads * c.KeySize
	}
	return c.ValueHeads
}

// recurWeights are the weights of a layer.
func (x *bench) recurWeights(c recurCase) recurred {
	r := recurred{kernel: x.random(c.Channels() * c.Taps), rate: x.random(c.ValueHeads), bias: x.random(c.decays()), skip: x.random(c.ValueHeads), shift: make([]float32, c.Channels())}
	if c.shifted {
		r.shift = x.random(c.Channels())
	}
	for i := range r.rate {
		r.rate[i] += float32(c.rate)
	}
	return r
}

// recurOperands are random weights and rows.
func (x *bench) recurOperands(sc tensor.Scope, c recurCase, rows int) recurred {
	r := x.recurWeights(c)
	x.recurRows(&r, c, rows)
	r.arrays(sc, c)
	return r
}

func (x *bench) recurRows(r *recurred, c recurCase, rows int) {
	r.q, r.k, r.v = x.random(rows*c.KeyHeads*c.KeySize), x.random(rows*c.KeyHeads*c.KeySize), x.random(rows*c.ValueHeads*c.ValueSize)
	r.decay, r.beta = x.random(rows*c.decays()), x.random(rows*c.ValueHeads)
	if !c.alike {
		return
	}
	for i := range r.k {
		r.k[i] = 2 + r.k[i]/64
	}
	for i := range r.beta {
		r.beta[i] += 6
	}
}

// operand is the values of one operand, and how many there are of a row.
type operand struct {
	of *[]float32
	by int
}

// widths lists the operands that have rows.
func (r *recurred) widths(c recurCase) []operand {
	return []operand{{&r.q, c.KeyHeads * c.KeySize}, {&r.k, c.KeyHeads * c.KeySize}, {&r.v, c.ValueHeads * c.ValueSize}, {&r.decay, c.decays()}, {&r.beta, c.ValueHeads}}
}

// part is n rows of the operands from one on.
func (r recurred) part(c recurCase, at, n int) recurred {
	for _, f := range r.widths(c) {
		*f.of = (*f.of)[at*f.by : (at+n)*f.by]
	}
	return r
}

// arrays of the operands, in a scope.
func (r *recurred) arrays(sc tensor.Scope, c recurCase) {
	rows := len(r.beta) / c.ValueHeads
	r.spec.Rule = c.rule
	r.spec.V, r.spec.Kernel = sc.From(r.v, rows, c.ValueHeads*c.ValueSize), sc.From(r.kernel, len(r.kernel))
	if c.shifted {
		r.spec.Shift = sc.From(r.shift, len(r.shift))
	}
	if c.rule == tensor.Convolution {
		return
	}
	r.spec.Q, r.spec.K = sc.From(r.q, rows, c.KeyHeads*c.KeySize), sc.From(r.k, rows, c.KeyHeads*c.KeySize)
	r.spec.Decay = sc.From(r.decay, rows, c.decays())
	r.spec.LogRate, r.spec.Bias = sc.From(r.rate, c.ValueHeads), sc.From(r.bias, c.decays())
	if c.rule == tensor.DeltaRule {
		r.spec.Beta = sc.From(r.beta, rows, c.ValueHeads)
		return
	}
	r.spec.Skip, r.spec.Low, r.spec.High = sc.From(r.skip, c.ValueHeads), lowStep, highStep
}

// lowStep and highStep bound the steps of state spaces.
const lowStep, highStep = 0.25, 2

// past is the plain model of one layer of one request.
type past struct {
	rows   [][]float32 // queries, keys and values as they came
	matrix []float64
}

// recurOracle computes one row and returns what is read after it.
func recurOracle(c recurCase, p *past, r *recurred, row int) []float64 {
	keys, values := c.KeyHeads*c.KeySize, c.ValueHeads*c.ValueSize
	p.rows = append(p.rows, slices.Concat(r.q[row*keys:(row+1)*keys], r.k[row*keys:(row+1)*keys], r.v[row*values:(row+1)*values]))
	mixed := make([]float64, c.Channels())
	for i := range mixed {
		for j := range c.Taps {
			if at := len(p.rows) - c.Taps + j; at >= 0 {
				mixed[i] += float64(r.kernel[i*c.Taps+j]) * float64(p.rows[at][i])
			}
		}
		mixed[i] += float64(r.shift[i])
		if c.rule != tensor.Convolution {
			mixed[i] /= 1 + math.Exp(-mixed[i])
		}
	}
	if c.rule == tensor.Convolution {
		return mixed
	}
	if p.matrix == nil {
		p.matrix = make([]float64, c.ValueHeads*c.ValueSize*c.KeySize)
	}
	out := make([]float64, values)
	for h := range c.ValueHeads {
		at := h / (c.ValueHeads / c.KeyHeads) * c.KeySize
		q, k := mixed[at:at+c.KeySize], mixed[keys+at:keys+at+c.KeySize]
		if c.rule == tensor.DeltaRule {
			q, k = unitOf(q), unitOf(k)
			for j := range q {
				q[j] /= math.Sqrt(float64(c.KeySize))
			}
		}
		stays, takes := recurGates(c, r, row, h)
		for i := range c.ValueSize {
			s, value := p.matrix[(h*c.ValueSize+i)*c.KeySize:][:c.KeySize], mixed[2*keys+h*c.ValueSize+i]
			said, dst := 0.0, &out[h*c.ValueSize+i]
			for j := range s {
				s[j] *= stays[j]
				said += s[j] * k[j]
			}
			if c.rule == tensor.StateSpace {
				said = 0
				*dst = float64(r.skip[h]) * value
			}
			for j := range s {
				s[j] += takes * (value - said) * k[j]
				*dst += s[j] * q[j]
			}
		}
	}
	return out
}

// recurGates are how much of each column of a head's state stays after a row, and how much
// of what is new it takes.
func recurGates(c recurCase, r *recurred, row, h int) (stays []float64, takes float64) {
	stays = make([]float64, c.KeySize)
	takes = 1 / (1 + math.Exp(-float64(r.beta[row*c.ValueHeads+h])))
	for j := range stays {
		n := h
		if c.byChannel {
			n = h*c.KeySize + j
		}
		d := math.Log1p(math.Exp(float64(r.decay[row*c.decays()+n]) + float64(r.bias[n])))
		if c.rule == tensor.StateSpace {
			d = math.Min(math.Max(d, lowStep), highStep)
			takes = d
		}
		stays[j] = math.Exp(-math.Exp(float64(r.rate[h])) * d)
	}
	return stays, takes
}

func unitOf(v []float64) []float64 {
	sum := 1e-6
	for _, f := range v {
		sum += f * f
	}
	out := make([]float64, len(v))
	for i, f := range v {
		out[i] = f / math.Sqrt(sum)
	}
	return out
}
