// Package gptoss is the GPT-OSS family.
//
// It owns what its blocks are made of: Llama's block, in which every product of
// attention has a bias, every query head a sink, and the feed-forward of every
// layer is a mixture whose gate ends at a limit. Every second layer sees a
// window; which ones, and how positions are stretched, package weights says.
//
// Start reading at Load.
package gptoss

import (
	"context"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/weights"
)

// The gate's constants (mlx-lm 0.32.2, swiglu_oai); package weights refuses
// configurations that name others.
const alpha, limit = 1.702, 7

// Load reads every weight. After an error nothing stays loaded.
func Load(ctx context.Context, l *nn.Loader, d weights.Dimensions) (*nn.Decoder, error) {
	return nn.LoadDecoder(ctx, l, d, func(path string, spec nn.AttentionSpec) nn.Block {
		b := l.PreNormWith(path, d.NormEps, spec, l.ClampedExperts(path+".mlp", d.Experts, alpha, limit))
		attention := path + ".self_attn"
		l.Biases(attention, &b.Attention)
		l.Bias(attention+".o_proj", &b.Attention.O)
		l.Sinks(attention, &b.Attention)
		return b
	})
}
