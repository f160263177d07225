// Package qwen3next is the Qwen3-Next family, and Qwen3.5 that came of it.
//
// It owns what its blocks are made of and nothing below them: most layers are
// recurrent (a gated delta net), every so-manieth attends, with a gate on what
// its heads see; the feed-forward is dense or a mixture with one expert that
// every token goes through. The two differ in how a recurrent layer's
// projections are joined. Of a model that also has eyes the text alone is read.
//
// Start reading at Load.
package qwen3next

import (
	"context"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Load reads every weight. After an error nothing stays loaded.
func Load(ctx context.Context, l *nn.Loader, d weights.Dimensions) (*nn.Decoder, error) {
	return nn.LoadDecoder(ctx, l, d, func(path string, spec nn.AttentionSpec) nn.Block {
		b := new(block)
		l.RMSNorm(path+".input_layernorm", d.NormEps, &b.input)
		l.RMSNorm(path+".post_attention_layernorm", d.NormEps, &b.inner)
		if d.Hybrid.Recurs(spec.Index) {
			b.mixer = l.GatedDelta(path+".linear_attn", spec.Layer, d)
		} else {
			a := &nn.Attention{Gated: true}
			l.Attention(path+".self_attn", spec, a)
			l.HeadNorms(path+".self_attn", d.NormEps, a)
			b.mixer = a
		}
		if d.Experts.In(spec.Index) {
			b.mlp = l.Experts(path+".mlp", d.Experts)
		} else {
			dense := new(nn.GatedMLP)
			l.GatedMLP(path+".mlp", dense)
			b.mlp = dense
		}
		return b
	})
}

// mixer is what lets tokens see those before them.
type mixer interface {
	Attend(s tensor.Scope, x tensor.Array, p nn.Pass) tensor.Array
	Output() nn.Linear
}

// block is one layer.
type block struct {
	input, inner nn.RMSNorm
	mixer        mixer
	mlp          nn.FeedForward
}

// Apply runs the block (nn.Block). What is only passed on goes at once.
func (b *block) Apply(s tensor.Scope, x tensor.Array, p nn.Pass, rows []int) tensor.Array {
	normed := b.input.Apply(s, x)
	seen := b.mixer.Attend(s, normed, p)
	s.Release(normed)
	if rows != nil {
		if len(rows) == 0 {
			return nil
		}
		x, seen = s.Rows(x, rows), s.Rows(seen, rows)
	}
	mixed := b.mixer.Output().Apply(s, seen)
	s.Release(seen)
	x = s.Add(x, mixed)
	s.Release(mixed)
	normed = b.inner.Apply(s, x)
	defer s.Release(normed)
	return s.Add(x, b.mlp.Apply(s, normed))
}
