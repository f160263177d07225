// Package qwen3moe is the Qwen3 family with a mixture of experts.
//
// It owns what its blocks are made of and nothing below them: Qwen3's block,
// whose feed-forward is a mixture in every layer but those that the
// configuration makes dense.
//
// Start reading at Load.
package qwen3moe

import (
	"context"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Load reads every weight. After an error nothing stays loaded.
func Load(ctx context.Context, l *nn.Loader, d weights.Dimensions) (*nn.Decoder, error) {
	return nn.LoadDecoder(ctx, l, d, func(path string, spec nn.AttentionSpec) nn.Block {
		var b *nn.PreNorm
		if d.Experts.In(spec.Index) {
			b = l.PreNormWith(path, d.NormEps, spec, l.Experts(path+".mlp", d.Experts))
		} else {
			b = l.PreNorm(path, d.NormEps, spec)
		}
		l.HeadNorms(path+".self_attn", d.NormEps, &b.Attention)
		return b
	})
}
