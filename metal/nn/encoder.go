package nn

import (
	"context"
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Dense is a product with a matrix, and a bias.
type Dense struct {
	Linear
	Bias tensor.Array
}

// Apply multiplies x [T, in] and adds the bias: [T, out].
func (d Dense) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	return s.LinearBias(x, []tensor.Matrix{d.Matrix}, []tensor.Array{d.Bias})[0]
}

// Dense declares path+".weight" and path+".bias".
func (l *Loader) Dense(path string, to *Dense) {
	l.Linear(path, &to.Linear)
	l.vector(path+".bias", func(v tensor.Array) { to.Bias = v })
}

// LayerNorm subtracts the mean of each row and scales it to unit variance.
type LayerNorm struct {
	Weight, Bias tensor.Array
	Eps          float32
}

// Apply normalises x [T, D].
func (n LayerNorm) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	return s.LayerNorm(x, n.Weight, n.Bias, n.Eps)
}

// LayerNorm declares the norm path+".weight" and path+".bias".
func (l *Loader) LayerNorm(path string, eps float64, to *LayerNorm) {
	to.Eps = float32(eps)
	l.vector(path+".weight", func(v tensor.Array) { to.Weight = v })
	l.vector(path+".bias", func(v tensor.Array) { to.Bias = v })
}

// Texts are concatenated whole texts for one pass of an encoder.
type Texts struct {
	// IDs are tokens, Types what kind each is of.
	IDs, Types []int32
	// Segments are the rows of each text; each starts at position 0.
	Segments []tensor.Segment
}

// Encoder is a stack of layers with bidirectional attention, as in BERT: norms
// follow the sums that they norm.
type Encoder struct {
	loader                  *Loader
	words, positions, types embedding
	norm                    LayerNorm
	layers                  []encoderLayer
	// head scores the state of each first token; nil where there is none.
	head *head
	dims family.Dimensions
}

// encoderLayer is one block.
type encoderLayer struct {
	q, k, v, o    Dense
	attentionNorm LayerNorm
	up, down      Dense
	norm          LayerNorm
}

// head is a layer, a tanh, and the layer that gives scores.
type head struct{ dense, out Dense }

// LoadEncoder loads an encoder in the names of Hugging Face's BERT. After an
// error nothing stays loaded.
func LoadEncoder(ctx context.Context, l *Loader, d family.Dimensions) (*Encoder, error) {
	e := &Encoder{loader: l, dims: d, layers: make([]encoderLayer, d.Layers)}
	l.Linear("embeddings.word_embeddings", &e.words.Linear)
	l.Linear("embeddings.position_embeddings", &e.positions.Linear)
	l.Linear("embeddings.token_type_embeddings", &e.types.Linear)
	l.LayerNorm("embeddings.LayerNorm", d.NormEps, &e.norm)
	for i := range e.layers {
		e.layers[i].declare(l, fmt.Sprintf("encoder.layer.%d.", i), d.NormEps)
	}
	if d.Encoder.Labels > 0 {
		first, last := d.HeadPaths()
		e.head = new(head)
		l.Dense(first, &e.head.dense)
		l.Dense(last, &e.head.out)
	}
	if err := l.Load(ctx); err != nil {
		l.Release()
		return nil, err
	}
	return e, nil
}

// declare declares the layer whose tensors have the prefix at.
func (e *encoderLayer) declare(l *Loader, at string, eps float64) {
	l.Dense(at+"attention.self.query", &e.q)
	l.Dense(at+"attention.self.key", &e.k)
	l.Dense(at+"attention.self.value", &e.v)
	l.Dense(at+"attention.output.dense", &e.o)
	l.LayerNorm(at+"attention.output.LayerNorm", eps, &e.attentionNorm)
	l.Dense(at+"intermediate.dense", &e.up)
	l.Dense(at+"output.dense", &e.down)
	l.LayerNorm(at+"output.LayerNorm", eps, &e.norm)
}

// Release frees the weights.
func (e *Encoder) Release() { e.loader.Release() }

// Hidden returns the states of the last layer: [T, hidden].
func (e *Encoder) Hidden(s tensor.Scope, t Texts) tensor.Array {
	p := e.Begin(s, t)
	for p.Next() {
	}
	return p.States()
}

// EncoderPass is a pass over texts, layer by layer. What it holds between two layers is in its
// scope.
type EncoderPass struct {
	encoder  *Encoder
	scope    tensor.Scope
	segments []tensor.Segment
	x        tensor.Array
	layer    int
}

// Begin looks up the tokens of texts.
func (e *Encoder) Begin(s tensor.Scope, t Texts) *EncoderPass {
	p := &EncoderPass{encoder: e, scope: s, segments: t.Segments}
	inner := s.Child()
	p.x = e.lookup(inner, t)
	if inner.Err() == nil {
		p.x = inner.Keep(p.x)
	}
	inner.Close()
	return p
}

// Next computes one more layer. It returns false after the last one, or after an error of the
// scope.
func (p *EncoderPass) Next() bool {
	if p.scope.Err() != nil || p.layer == len(p.encoder.layers) {
		return false
	}
	inner := p.scope.Child()
	next := p.encoder.apply(inner, &p.encoder.layers[p.layer], p.x, p.segments)
	if inner.Err() == nil {
		next = inner.Keep(next)
	}
	inner.Close()
	p.scope.Release(p.x)
	p.x = next
	p.layer++
	return p.scope.Err() == nil && p.layer < len(p.encoder.layers)
}

// Wait waits for the layers so far.
func (p *EncoderPass) Wait() { p.scope.Wait(p.x) }

// Layers returns how many layers were computed, of how many.
func (p *EncoderPass) Layers() (computed, all int) { return p.layer, len(p.encoder.layers) }

// States are those of the last layer that was computed: [T, hidden].
func (p *EncoderPass) States() tensor.Array { return p.x }

// Score returns the output of the scoring head for each text, of the states of the last layer:
// [texts, labels].
func (e *Encoder) Score(s tensor.Scope, states tensor.Array, segments []tensor.Segment) tensor.Array {
	firsts, at := make([]int, len(segments)), 0
	for i, g := range segments {
		firsts[i], at = at, at+g.Length
	}
	return e.head.out.Apply(s, s.Map(e.head.dense.Apply(s, s.Rows(states, firsts)), tensor.Tanh{}))
}

// lookup adds up what word, position and type say.
func (e *Encoder) lookup(s tensor.Scope, t Texts) tensor.Array {
	types := t.Types
	if e.dims.Encoder.Types == 1 { // XLM-RoBERTa's tokenizer gives no types
		types = make([]int32, len(t.IDs))
	}
	x := s.Add(e.words.Lookup(s, s.IDs(t.IDs)), e.types.Lookup(s, s.IDs(types)))
	return e.norm.Apply(s, s.Add(x, e.positions.Lookup(s, s.IDs(e.places(t)))))
}

// places are where tokens stand. In a RoBERTa padding stands at its own place
// and does not count (modeling_xlm_roberta.py, create_position_ids_from_input_ids).
func (e *Encoder) places(t Texts) []int32 {
	out, x := make([]int32, 0, len(t.IDs)), e.dims.Encoder
	for _, g := range t.Segments {
		next := int32(x.FirstPosition + g.Start)
		for _, id := range t.IDs[len(out) : len(out)+g.Length] {
			if id == x.Padding {
				out = append(out, x.Padding)
				continue
			}
			out, next = append(out, next), next+1
		}
	}
	return out
}

func (e *Encoder) apply(s tensor.Scope, l *encoderLayer, x tensor.Array, segments []tensor.Segment) tensor.Array {
	qkv := s.LinearBias(x, []tensor.Matrix{l.q.Matrix, l.k.Matrix, l.v.Matrix}, []tensor.Array{l.q.Bias, l.k.Bias, l.v.Bias})
	seen := s.AttendAll(tensor.AttendAllSpec{
		Segments: segments, Q: qkv[0], K: qkv[1], V: qkv[2], Heads: e.dims.QueryHeads,
		Scale: float32(1 / math.Sqrt(float64(e.dims.HeadSize))),
	})
	x = l.attentionNorm.Apply(s, s.Add(x, l.o.Apply(s, seen)))
	wide := s.Map(l.up.Apply(s, x), tensor.GELU{Tanh: e.dims.Encoder.TanhGELU})
	return l.norm.Apply(s, s.Add(x, l.down.Apply(s, wide)))
}
