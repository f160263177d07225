// Package xlmroberta is the XLM-RoBERTa family: BGE-M3, multilingual E5, and
// rerankers made of them.
//
// It owns nothing but the name: its layers are those of package nn's Encoder.
// Positions begin behind the number of the padding token, and a head that scores
// has two layers of its own in place of a pooler (weights.Dimensions.HeadPaths).
//
// Start reading at Load.
package xlmroberta

import (
	"context"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Load reads every weight. After an error nothing stays loaded.
func Load(ctx context.Context, l *nn.Loader, d weights.Dimensions) (*nn.Encoder, error) {
	return nn.LoadEncoder(ctx, l, d)
}
