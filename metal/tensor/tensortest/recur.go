package tensortest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

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

// recur runs random histories of ragged steps against the oracle: requests
// come, grow by chunks and single tokens in one step, and go.
func (s cacheSuite) recur(t *testing.T) {
	for _, c := range recurCases() {
		t.Run(c.name, func(t *testing.T) { s.recurHistory(t, c) })
	}
}

func (s cacheSuite) recurHistory(t *testing.T, c recurCase) {
	x := s.open(t)
	cache := x.recurrentCache(c)
	t.Cleanup(cache.Release)
	layers := make([]recurred, c.Layers)
	for i := range layers {
		layers[i] = x.recurWeights(c)
	}
	model := map[tensor.RequestID][]past{}
	next := tensor.RequestID(1)
	for step := range 14 {
		if step%3 == 0 {
			model[next] = make([]past, c.Layers)
			next++
		}
		if step == 7 { // a request goes in the middle
			cache.Drop(2)
			delete(model, 2)
		}
		var segments []tensor.Segment
		for id := next - 1; id > 0; id-- { // in another order than they came
			if p := model[id]; p != nil && (step%5 != 4 || id != 1) { // one waits now and then
				segments = append(segments, tensor.Segment{Request: id, Start: len(p[0].rows), Length: lengthOf(x, step)})
			}
		}
		for layer := range layers {
			s.recurStep(x, c, cache, model, segments, layer, &layers[layer])
		}
	}
	for id := range model {
		cache.Drop(id)
	}
	if n := cache.Bytes(); n != 0 || x.b.Memory().KV != 0 {
		t.Errorf("%d bytes are left after all requests were dropped, the gauge reports %d", n, x.b.Memory().KV)
	}
}

// recurring allows for what rounding does to a state that is read and written
// again and again.
func (s cacheSuite) recurring() cacheSuite {
	s.Tolerance *= 4
	return s
}

// lengthOf is how many tokens a segment has: one in half the steps, else
// anything up to more than a chunk of any back end.
func lengthOf(x *bench, step int) int {
	if step%2 == 1 {
		return 1
	}
	return 1 + x.rng.IntN(6)*x.rng.IntN(30)
}

func (s cacheSuite) recurStep(x *bench, c recurCase, cache tensor.Cache, model map[tensor.RequestID][]past, segments []tensor.Segment, layer int, r *recurred) {
	x.t.Helper()
	x.recurRows(r, c, tensor.Tokens(segments))
	r.arrays(x.s, c)
	r.spec.Cache, r.spec.Layer, r.spec.Segments = cache, layer, segments
	got := x.read(x.s.Recur(r.spec))
	var want []float64
	row := 0
	for _, g := range segments {
		for range g.Length {
			want = append(want, recurOracle(c, &model[g.Request][layer], r, row)...)
			row++
		}
	}
	s.recurring().near(x.t, fmt.Sprintf("recurrent layer %d, %v", layer, segments), got, want)
}

// recurChunks computes one request at once, in chunks, and token by token.
func (s cacheSuite) recurChunks(t *testing.T) {
	for _, c := range recurCases() {
		x := s.open(t)
		const rows = 150
		cache := x.recurrentCache(c)
		t.Cleanup(cache.Release)
		all := x.recurOperands(x.s, c, rows)
		var whole []float32
		for id, chunk := range []int{rows, 1, 7, 64, 100} {
			var got []float32
			for at := 0; at < rows; at += chunk {
				n := min(chunk, rows-at)
				part := all
				for _, f := range []struct {
					of *[]float32
					by int
				}{{&part.q, c.KeyHeads * c.KeySize}, {&part.k, c.KeyHeads * c.KeySize}, {&part.v, c.ValueHeads * c.ValueSize}, {&part.decay, c.decays()}, {&part.beta, c.ValueHeads}} {
					*f.of = (*f.of)[at*f.by : (at+n)*f.by]
				}
				part.arrays(x.s, c)
				part.spec.Cache, part.spec.Segments = cache, []tensor.Segment{{Request: tensor.RequestID(id), Start: at, Length: n}}
				got = append(got, x.read(x.s.Recur(part.spec))...)
			}
			if whole == nil {
				whole = got
				continue
			}
			s.recurring().same(t, fmt.Sprintf("%s, chunks of %d", c.name, chunk), got, whole)
		}
	}
}

// recurForgets wants a state that cannot go back to be forgotten with all else
// of its request, and the others to stay.
func (s cacheSuite) recurForgets(t *testing.T) {
	x := s.open(t)
	c := recurCases()[0]
	cache := x.recurrentCache(c)
	t.Cleanup(cache.Release)
	row := x.s.From(x.random(2*8), 8, 2)
	attend := func(segments []tensor.Segment) {
		n := tensor.Tokens(segments)
		part := x.s.Rows(row, []int{0, 1, 2, 3, 4, 5, 6, 7}[:n])
		x.read(x.s.AppendAttend(tensor.AttendSpec{Cache: cache, Segments: segments, Scale: 1, Q: part, K: part, V: part}))
	}
	recur := func(layer int, segments []tensor.Segment) []float32 {
		r := x.recurOperands(x.s, c, tensor.Tokens(segments))
		r.spec.Cache, r.spec.Layer, r.spec.Segments = cache, layer, segments
		return x.read(x.s.Recur(r.spec))
	}
	both := []tensor.Segment{{Request: 1, Length: 3}, {Request: 2, Length: 2}}
	attend(both)
	if got := cache.Length(1); got != 0 {
		t.Errorf("%d tokens are held by every layer before one recurred", got)
	}
	recur(0, both)
	recur(1, both)
	if a, b := cache.Length(1), cache.Length(2); a != 3 || b != 2 {
		t.Errorf("requests hold %d and %d tokens, want 3 and 2", a, b)
	}
	cache.Truncate(1, 3) // nothing is past them
	more := []tensor.Segment{{Request: 1, Start: 3, Length: 1}, {Request: 2, Start: 2, Length: 1}}
	recur(0, more[:1]) // the step fails in the second layer
	cache.Truncate(1, 3)
	cache.Truncate(2, 2)
	if a, b := cache.Length(1), cache.Length(2); a != 0 || b != 2 {
		t.Errorf("requests hold %d and %d tokens, want 0, as the state moved on, and 2", a, b)
	}
	attend(both[:1])
	r := x.recurOperands(x.s, c, 3)
	r.spec.Cache, r.spec.Segments = cache, both[:1]
	again := x.read(x.s.Recur(r.spec))
	r.spec.Segments = []tensor.Segment{{Request: 9, Length: 3}}
	s.same(t, "a request that began again", again, x.read(x.s.Recur(r.spec)))
	cache.Drop(2)
	if got, want := cache.Bytes(), x.b.Memory().KV; got != want || got < 2*c.StateBytes() || got >= 3*c.StateBytes() {
		t.Errorf("%d bytes are held, the gauge reports %d; two states have %d", got, want, 2*c.StateBytes())
	}
}

func (s cacheSuite) recurErrors(t *testing.T) {
	x := s.open(t)
	c := recurCases()[0]
	for name, change := range map[string]func(*tensor.RecurrentSpec){
		"heads that do not share keys evenly": func(r *tensor.RecurrentSpec) { r.ValueHeads = 5 },
		"no key heads":                        func(r *tensor.RecurrentSpec) { r.KeyHeads = 0 },
		"one tap":                             func(r *tensor.RecurrentSpec) { r.Taps = 1 },
		"a shape of no layers":                func(r *tensor.RecurrentSpec) { r.Layers = 0 },
	} {
		shape := c.RecurrentSpec
		change(&shape)
		if _, err := x.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 4, BlockTokens: 4, Recurrent: shape}); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	cache := x.recurrentCache(c)
	one, two := []tensor.Segment{{Request: 1, Length: 1}}, []tensor.Segment{{Request: 1, Length: 2}}
	for name, f := range map[string]struct {
		change func(sc tensor.Scope, r *tensor.RecurSpec)
		want   error
	}{
		"too few rows":             {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Segments = two }, tensor.ErrShape},
		"no such layer":            {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Layer = 2 }, tensor.ErrShape},
		"keys as wide as values":   {func(_ tensor.Scope, r *tensor.RecurSpec) { r.K = r.V }, tensor.ErrShape},
		"a decay of another width": {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Decay = r.Q }, tensor.ErrShape},
		"too few taps":             {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Kernel = r.Bias }, tensor.ErrShape},
		"a rate for each tap":      {func(_ tensor.Scope, r *tensor.RecurSpec) { r.LogRate = r.Kernel }, tensor.ErrShape},
		"ids":                      {func(sc tensor.Scope, r *tensor.RecurSpec) { r.Beta = sc.IDs([]int32{1}) }, tensor.ErrShape},
		"no operand":               {func(_ tensor.Scope, r *tensor.RecurSpec) { r.V = nil }, tensor.ErrReleased},
		"no cache":                 {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Cache = nil }, tensor.ErrReleased},
		"a start in the middle": {func(_ tensor.Scope, r *tensor.RecurSpec) {
			r.Segments = []tensor.Segment{{Request: 1, Start: 1, Length: 1}}
		}, tensor.ErrSegment},
	} {
		sc := x.b.NewScope(context.Background())
		r := x.recurOperands(sc, c, 1)
		r.spec.Cache, r.spec.Segments = cache, one
		f.change(sc, &r.spec)
		sc.Recur(r.spec)
		if err := sc.Err(); !errors.Is(err, f.want) {
			t.Errorf("%s: error %v, want %v", name, err, f.want)
		}
		sc.Close()
		if got := x.b.Memory().KV; got != 0 {
			t.Fatalf("%s: %d bytes of state are held", name, got)
		}
	}
	cache.Release()
}

// split cuts runs of each row into parts.
func (s elementSuite) split(t *testing.T) {
	x := s.open(t)
	const rows = 3
	for _, widths := range [][]int{{12}, {4, 8}, {1, 2, 3}, {2, 2}, {3, 1, 5, 3}} {
		v := x.random(rows * 12)
		run, first := 0, 0
		for _, w := range widths {
			run += w
		}
		for i, part := range x.s.Split(x.s.From(v, rows, 12), widths...) {
			var want []float64
			for at := 0; at < len(v); at += run {
				for _, f := range v[at+first : at+first+widths[i]] {
					want = append(want, float64(f))
				}
			}
			first += widths[i]
			if shape := part.Shape(); shape[0] != rows || shape[1] != 12/run*widths[i] {
				t.Errorf("part %d of %v has shape %v", i, widths, shape)
			}
			s.near(t, fmt.Sprintf("part %d of %v", i, widths), x.read(part), want)
		}
	}
}

// join puts together what Split cut, and refuses what does not fit.
func (s elementSuite) join(t *testing.T) {
	x := s.open(t)
	const rows = 3
	for _, widths := range [][]int{{12}, {4, 8}, {1, 2, 3}, {2, 2}, {3, 1, 5, 3}} {
		v := x.random(rows * 12)
		want := make([]float64, len(v))
		for i, f := range v {
			want[i] = float64(f)
		}
		joined := x.s.Join(x.s.Split(x.s.From(v, rows, 12), widths...), widths...)
		s.near(t, fmt.Sprint(widths), x.read(joined), want)
	}
	for name, widths := range map[string][]int{"a width of none": {0, 4}, "one width": {4}, "another number of parts": {4, 3}} {
		y := s.open(t)
		y.s.Join([]tensor.Array{y.s.From(y.random(8), 1, 8), y.s.From(y.random(8), 1, 8)}, widths...)
		if !errors.Is(y.s.Err(), tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, y.s.Err())
		}
	}
}

func (s elementSuite) sigmoidGate(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 2730
	for _, columns := range []int{width, 1, 7} {
		v, gate, want := x.random(rows*width), x.random(rows*columns), make([]float64, rows*width)
		gate[0], gate[len(gate)-1] = 100, -100
		for i := range want {
			g := gate[i/width*columns+i%width/(width/columns)]
			want[i] = float64(v[i]) / (1 + math.Exp(-float64(g)))
		}
		s.near(t, "SigmoidGate", x.read(x.s.SigmoidGate(x.s.From(v, rows, width), x.s.From(gate, rows, columns))), want)
	}
}

func (s elementSuite) addGated(t *testing.T) {
	x := s.open(t)
	const rows, width = 3, 2730
	to, v, gate, want := x.random(rows*width), x.random(rows*width), []float32{100, 0.5, -100}, make([]float64, rows*width)
	for i := range want {
		want[i] = float64(to[i]) + float64(v[i])/(1+math.Exp(-float64(gate[i/width])))
	}
	s.near(t, "AddGated", x.read(x.s.AddGated(x.s.From(to, rows, width), x.s.From(v, rows, width), x.s.From(gate, rows, 1))), want)
	for name, shapes := range map[string][3][2]int{"a sum of other rows": {{4, 2}, {2, 4}, {2, 1}}, "a gate of runs": {{2, 4}, {2, 4}, {2, 2}}, "a gate of other rows": {{2, 4}, {2, 4}, {4, 1}}} {
		y := s.open(t)
		var in [3]tensor.Array
		for i, shape := range shapes {
			in[i] = y.s.From(y.random(shape[0]*shape[1]), shape[0], shape[1])
		}
		if y.s.AddGated(in[0], in[1], in[2]); !errors.Is(y.s.Err(), tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, y.s.Err())
		}
	}
}

// rmsNormGate norms whole rows, and each head of a row by itself.
func (s elementSuite) rmsNormGate(t *testing.T) {
	x := s.open(t)
	const rows, width, eps = 5, 134, 1e-5
	for _, run := range []int{width, width / 2, 1} {
		v, gate, w := x.random(rows*width), x.random(rows*width), x.random(run)
		want := make([]float64, rows*width)
		for at := 0; at < len(v); at += run {
			var mean float64
			for _, f := range v[at : at+run] {
				mean += float64(f) * float64(f) / float64(run)
			}
			for i := range run {
				g := float64(gate[at+i])
				want[at+i] = float64(v[at+i]) / math.Sqrt(mean+eps) * float64(w[i]) * g / (1 + math.Exp(-g))
			}
		}
		s.near(t, "RMSNormGate", x.read(x.s.RMSNormGate(x.s.From(v, rows, width), x.s.From(gate, rows, width), x.s.From(w, run), eps)), want)
	}
}
