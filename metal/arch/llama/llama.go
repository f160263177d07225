// Package llama is the Llama family: Llama 2 and 3, Mistral, SmolLM.
//
// It owns the order of layers and nothing below them. Rotary pairs are the
// halves of a head (the original layout); files that interleave them are put
// in order by package weights.
//
// Start reading at Model.Step.
package llama

import (
	"context"
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// blockTokens is the granularity of the KV cache.
const blockTokens = 256

// Model is a loaded network of this family.
type Model struct {
	loader *nn.Loader
	dim    weights.Dimensions
	rope   tensor.RopeSpec
	embed  nn.Embedding
	layers []layer
	norm   nn.RMSNorm
	head   nn.Linear
}

// layer is one transformer block.
type layer struct {
	inputNorm, postNorm nn.RMSNorm
	q, k, v, o          nn.Linear
	mlp                 nn.GatedMLP
}

// Load reads every weight. After an error nothing stays loaded.
func Load(ctx context.Context, l *nn.Loader, d weights.Dimensions) (*Model, error) {
	m := &Model{loader: l, dim: d, rope: tensor.RopeSpec{Theta: d.Rope.Theta, Size: d.Rope.Size, Linear: d.Rope.Linear, Magnitude: d.Rope.Magnitude, Factors: d.Rope.Factors}}
	if err := m.load(ctx); err != nil {
		m.Release()
		return nil, err
	}
	return m, nil
}

func (m *Model) load(ctx context.Context) error {
	var err error
	if m.embed, err = m.loader.Embedding(ctx, "model.embed_tokens"); err != nil {
		return err
	}
	m.head = m.embed.Linear // tied, unless the file has a head of its own
	if m.loader.Has("lm_head") {
		if m.head, err = m.loader.Linear(ctx, "lm_head"); err != nil {
			return err
		}
	}
	if m.norm, err = m.loader.RMSNorm(ctx, "model.norm", m.dim.NormEps); err != nil {
		return err
	}
	if m.loader.Has("model.rope_freqs") {
		if m.rope.Factors, err = m.loader.Values(ctx, "model.rope_freqs"); err != nil {
			return err
		}
	}
	m.layers = make([]layer, m.dim.Layers)
	for i := range m.layers {
		if err := m.loadLayer(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) loadLayer(ctx context.Context, i int) error {
	l, path := &m.layers[i], fmt.Sprintf("model.layers.%d.", i)
	for name, to := range map[string]*nn.Linear{"q": &l.q, "k": &l.k, "v": &l.v, "o": &l.o} {
		lin, err := m.loader.Linear(ctx, path+"self_attn."+name+"_proj")
		if err != nil {
			return err
		}
		*to = lin
	}
	for name, to := range map[string]*nn.RMSNorm{"input_layernorm": &l.inputNorm, "post_attention_layernorm": &l.postNorm} {
		n, err := m.loader.RMSNorm(ctx, path+name, m.dim.NormEps)
		if err != nil {
			return err
		}
		*to = n
	}
	var err error
	l.mlp, err = m.loader.GatedMLP(ctx, path+"mlp")
	return err
}

// Release frees the weights.
func (m *Model) Release() { m.loader.Release() }

// CacheSpec is the shape of the cache.
func (m *Model) CacheSpec() tensor.CacheSpec {
	return tensor.CacheSpec{Layers: m.dim.Layers, KVHeads: m.dim.KVHeads, HeadSize: m.dim.HeadSize, BlockTokens: blockTokens}
}

// Step runs flat tokens through the network.
func (m *Model) Step(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int) tensor.Array {
	x := m.stack(s, cache, ids, segments)
	if rows == nil || s.Err() != nil {
		return nil
	}
	return m.head.Apply(s, m.norm.Apply(s, s.Rows(x, rows)))
}

// Hidden gives the states that the head would read.
func (m *Model) Hidden(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment) tensor.Array {
	return m.norm.Apply(s, m.stack(s, cache, ids, segments))
}

// stack runs embedding and layers: [T, hidden].
func (m *Model) stack(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment) tensor.Array {
	x := m.embed.Lookup(s, ids)
	for i := range m.layers {
		inner := s.Child()
		next := inner.Keep(m.block(inner, i, x, cache, segments))
		inner.Close()
		s.Release(x)
		x = next
		if s.Err() != nil {
			break
		}
	}
	return x
}

// block is attention and feed-forward, each added to what came in.
func (m *Model) block(s tensor.Scope, i int, x tensor.Array, cache tensor.Cache, segments []tensor.Segment) tensor.Array {
	l := &m.layers[i]
	qkv := s.Linear(l.inputNorm.Apply(s, x), l.q.Matrix, l.k.Matrix, l.v.Matrix)
	attended := s.AppendAttend(tensor.AttendSpec{
		Cache: cache, Layer: i, Segments: segments,
		Q:     s.Rope(qkv[0], segments, m.dim.HeadSize, m.rope),
		K:     s.Rope(qkv[1], segments, m.dim.HeadSize, m.rope),
		V:     qkv[2],
		Scale: float32(1 / math.Sqrt(float64(m.dim.HeadSize))),
	})
	x = s.Add(x, l.o.Apply(s, attended))
	return s.Add(x, l.mlp.Apply(s, l.postNorm.Apply(s, x)))
}
