package nn

import (
	"context"
	"fmt"

	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// blockTokens is the granularity of the KV cache.
const blockTokens = 256

// Block is one layer of a decoder.
type Block interface {
	// Apply runs x [T, hidden] through the layer and extends its cache. The
	// result has the given rows, or all T where rows is nil; where rows is
	// empty only the cache counts, and the result is nil.
	Apply(s tensor.Scope, x tensor.Array, p Pass, rows []int) tensor.Array
}

// PreNorm is the block of most decoders: attention and feed-forward, each on
// the normed input and added to it.
type PreNorm struct {
	InputNorm, PostNorm RMSNorm
	Attention           Attention
	MLP                 FeedForward
}

// PreNorm declares a block below path, in the names of Hugging Face's Llama.
func (l *Loader) PreNorm(path string, eps float64, spec AttentionSpec) *PreNorm {
	mlp := new(GatedMLP)
	l.GatedMLP(path+".mlp", mlp)
	return l.PreNormWith(path, eps, spec, mlp)
}

// PreNormWith is PreNorm with a feed-forward that is declared already.
func (l *Loader) PreNormWith(path string, eps float64, spec AttentionSpec, mlp FeedForward) *PreNorm {
	b := &PreNorm{MLP: mlp}
	l.RMSNorm(path+".input_layernorm", eps, &b.InputNorm)
	l.Attention(path+".self_attn", spec, &b.Attention)
	l.RMSNorm(path+".post_attention_layernorm", eps, &b.PostNorm)
	return b
}

// Apply runs the block.
func (b *PreNorm) Apply(s tensor.Scope, x tensor.Array, p Pass, rows []int) tensor.Array {
	attended := b.Attention.Attend(s, b.InputNorm.Apply(s, x), p)
	if rows != nil {
		if len(rows) == 0 {
			return nil
		}
		x, attended = s.Rows(x, rows), s.Rows(attended, rows)
	}
	x = s.Add(x, b.Attention.O.Apply(s, attended))
	return s.Add(x, b.MLP.Apply(s, b.PostNorm.Apply(s, x)))
}

// Decoder is a stack of blocks between an embedding and an output head. It is
// what a family's Load returns.
type Decoder struct {
	loader *Loader
	cache  tensor.CacheSpec
	embed  Embedding
	blocks []Block
	norm   RMSNorm
	head   Linear
}

// LoadDecoder loads a decoder: embedding, final norm and head under Hugging
// Face's names, and the blocks that block declares, one per layer; path is
// where the layer's tensors lie. A file without lm_head has a tied head. After
// an error nothing stays loaded.
func LoadDecoder(ctx context.Context, l *Loader, d weights.Dimensions, block func(path string, spec AttentionSpec) Block) (*Decoder, error) {
	m := &Decoder{loader: l, cache: cacheSpec(d)}
	if err := m.load(ctx, d, block); err != nil {
		m.Release()
		return nil, err
	}
	return m, nil
}

// cacheSpec is the shape of the cache: layers that attend, what they see, and
// those that recur.
func cacheSpec(d weights.Dimensions) tensor.CacheSpec {
	spec := tensor.CacheSpec{Layers: d.Layers, KVHeads: d.KVHeads, HeadSize: d.HeadSize, BlockTokens: blockTokens}
	if h, n := d.Hybrid, d.Hybrid.Layers(d.Layers); n > 0 {
		spec.Layers -= n
		spec.Recurrent = tensor.RecurrentSpec{Layers: n, KeyHeads: h.KeyHeads, KeySize: h.KeySize, ValueHeads: h.ValueHeads, ValueSize: h.ValueSize, Taps: h.Taps}
	}
	for i := range d.Layers {
		if !d.Hybrid.Recurs(i) {
			spec.Windows = append(spec.Windows, d.WindowOf(i))
		}
	}
	return spec
}

func (m *Decoder) load(ctx context.Context, d weights.Dimensions, block func(string, AttentionSpec) Block) error {
	rope, err := m.loader.Rope(ctx, d.Rope)
	if err != nil {
		return err
	}
	m.loader.Linear("model.embed_tokens", &m.embed.Linear)
	m.embed.Scale = float32(d.EmbedScale)
	for i := range d.Layers {
		spec := AttentionSpec{Layer: i - d.Hybrid.Layers(i), Index: i, HeadSize: d.HeadSize, Rope: rope, Scale: float32(d.ScoreScale()), Window: d.WindowOf(i), Temper: d.Temper}
		if d.Hybrid.Recurs(i) {
			spec.Layer = d.Hybrid.Layers(i)
		}
		if local := d.LocalRope; local != nil && spec.Window > 0 {
			spec.Rope = ropeSpec(*local)
		}
		m.blocks = append(m.blocks, block(fmt.Sprintf("model.layers.%d", i), spec))
	}
	m.loader.RMSNorm("model.norm", d.NormEps, &m.norm)
	tied := !m.loader.Has("lm_head")
	if !tied {
		m.loader.Linear("lm_head", &m.head)
	}
	if err := m.loader.Load(ctx); err != nil {
		return err
	}
	if tied {
		m.head = m.embed.Linear
	}
	return nil
}

// Release frees the weights.
func (m *Decoder) Release() { m.loader.Release() }

// CacheSpec is the shape of the cache.
func (m *Decoder) CacheSpec() tensor.CacheSpec { return m.cache }

// Step runs flat tokens through the network: logits [len(rows), vocabulary],
// or nil for nil rows. The last block works on the wanted rows alone.
func (m *Decoder) Step(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int) tensor.Array {
	if rows == nil {
		m.stack(s, cache, ids, segments, []int{})
		return nil
	}
	if inOrder(rows, tensor.Tokens(segments)) {
		rows = nil
	}
	x := m.stack(s, cache, ids, segments, rows)
	if s.Err() != nil {
		return nil
	}
	return m.head.Apply(s, m.norm.Apply(s, x))
}

// inOrder reports whether rows are all n rows in their order.
func inOrder(rows []int, n int) bool {
	for i, r := range rows {
		if r != i {
			return false
		}
	}
	return len(rows) == n
}

// Hidden gives the normed states that the head would read: [T, hidden].
func (m *Decoder) Hidden(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment) tensor.Array {
	return m.norm.Apply(s, m.stack(s, cache, ids, segments, nil))
}

// stack runs embedding and blocks; rows are those wanted of the last one.
func (m *Decoder) stack(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int) tensor.Array {
	x, pass := m.embed.Lookup(s, ids), Pass{cache, segments}
	for i, b := range m.blocks {
		var want []int
		if i == len(m.blocks)-1 {
			want = rows
		}
		inner := s.Child()
		next := b.Apply(inner, x, pass, want)
		if next != nil {
			next = inner.Keep(next)
		}
		inner.Close()
		s.Release(x)
		x = next
		if s.Err() != nil {
			break
		}
	}
	return x
}
