// Package qwen3 is the dense Qwen3 family.
//
// It owns what its blocks are made of and nothing below them: Llama's block,
// in which every head of queries and keys is normed before it is turned. The
// size of a head is a number of its own, not hidden width by heads.
//
// Start reading at Load.
package qwen3

import (
	"context"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Load reads every weight. After an error nothing stays loaded.
func Load(ctx context.Context, l *nn.Loader, d weights.Dimensions) (*nn.Decoder, error) {
	return nn.LoadDecoder(ctx, l, d, func(path string, spec nn.AttentionSpec) nn.Block {
		b := l.PreNorm(path, d.NormEps, spec)
		l.HeadNorms(path+".self_attn", d.NormEps, &b.Attention)
		return b
	})
}
