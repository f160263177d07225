// Package bert is the BERT family: MiniLM, BGE, GTE and other encoders of texts,
// and cross-encoders, which score pairs of them.
//
// It owns nothing but the name: its layers are those of package nn's Encoder,
// with a pooler and a classifier behind them where it scores. Positions count
// from 0, and the texts of a pair are told apart by the types of their tokens.
//
// Start reading at Load.
package bert

import (
	"context"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Load reads every weight. After an error nothing stays loaded.
func Load(ctx context.Context, l *nn.Loader, d weights.Dimensions) (*nn.Encoder, error) {
	return nn.LoadEncoder(ctx, l, d)
}
