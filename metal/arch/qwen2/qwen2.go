// Package qwen2 is the dense Qwen2 and Qwen2.5 family.
//
// It owns what its blocks are made of and nothing below them: Llama's block,
// in which queries, keys and values have biases. It knows no window: files that
// switch theirs on are refused by package weights.
//
// Start reading at Load.
package qwen2

import (
	"context"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Load reads every weight. After an error nothing stays loaded.
func Load(ctx context.Context, l *nn.Loader, d weights.Dimensions) (*nn.Decoder, error) {
	return nn.LoadDecoder(ctx, l, d, func(path string, spec nn.AttentionSpec) nn.Block {
		b := l.PreNorm(path, d.NormEps, spec)
		l.Biases(path+".self_attn", &b.Attention)
		return b
	})
}
