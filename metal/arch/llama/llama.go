// Package llama is the Llama family: Llama 2 and 3, Mistral, SmolLM.
//
// It owns what its blocks are made of and nothing below them. Rotary pairs are
// the halves of a head (the original layout); files that interleave them are
// put in order by package weights.
//
// Start reading at Load.
package llama

import (
	"context"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Load reads every weight. After an error nothing stays loaded.
func Load(ctx context.Context, l *nn.Loader, d weights.Dimensions) (*nn.Decoder, error) {
	return nn.LoadDecoder(ctx, l, d, func(path string, spec nn.AttentionSpec) nn.Block {
		return l.PreNorm(path, d.NormEps, spec)
	})
}
