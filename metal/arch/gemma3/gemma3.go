// Package gemma3 is the text part of the Gemma 3 family.
//
// It owns what its blocks are made of: attention and feed-forward are normed
// before and behind, the feed-forward's gate is a GELU,
// and the embedding is scaled. Most layers see a window and turn heads by
// a base of their own; which ones, package weights says.
//
// Start reading at Load.
package gemma3

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
		l.Attention(path+".self_attn", spec, &b.attention)
		l.HeadNorms(path+".self_attn", d.NormEps, &b.attention)
		l.RMSNorm(path+".post_attention_layernorm", d.NormEps, &b.attended)
		l.RMSNorm(path+".pre_feedforward_layernorm", d.NormEps, &b.inner)
		l.GatedMLP(path+".mlp", &b.mlp)
		b.mlp.GELU = true
		l.RMSNorm(path+".post_feedforward_layernorm", d.NormEps, &b.output)
		return b
	})
}

// block is one layer.
type block struct {
	input, attended, inner, output nn.RMSNorm
	attention                      nn.Attention
	mlp                            nn.GatedMLP
}

// Apply runs the block (nn.Block). What is only passed on goes at once, so that
// no more lives than in a block of two norms.
func (b *block) Apply(s tensor.Scope, x tensor.Array, p nn.Pass, rows []int) tensor.Array {
	normed := b.input.Apply(s, x)
	seen := b.attention.Attend(s, normed, p)
	s.Release(normed)
	if rows != nil {
		if len(rows) == 0 {
			return nil
		}
		x, seen = s.Rows(x, rows), s.Rows(seen, rows)
	}
	x = add(s, x, b.attended, b.attention.O.Apply(s, seen))
	return add(s, x, b.output, b.mlp.Apply(s, b.inner.Apply(s, x)))
}

// add adds the normed y to x.
func add(s tensor.Scope, x tensor.Array, norm nn.RMSNorm, y tensor.Array) tensor.Array {
	normed := norm.Apply(s, y)
	s.Release(y)
	defer s.Release(normed)
	return s.Add(x, normed)
}
