package weights

import (
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// unreadParts are the parts of a wrapper that are not read: vision encoders, and
// what the family ignores too.
func unreadParts(d family.Dimensions) []string {
	return append([]string{"vision_tower.", "vision_model.", "multi_modal_projector.", "mm_projector.", "model.vision_tower.", "model.multi_modal_projector."}, d.Layout().Ignored...)
}

// plainName is the name that a wrapper's tensor, or layer, has in a folder that
// holds the decoder alone: transformers 4 and mlx-lm write
// language_model.model.layers.0, transformers 5 model.language_model.layers.0.
func plainName(name string) string {
	if rest, ok := strings.CutPrefix(name, "model.language_model."); ok {
		return "model." + rest
	}
	return strings.TrimPrefix(name, "language_model.")
}

// unwrapModel names the tensors of the decoder as if it stood alone, and leaves
// the rest out.
func (c *collection) unwrapModel(d family.Dimensions) error {
	named, unread := make(map[string]shardTensor, len(c.tensors)), unreadParts(d)
	for _, name := range sortedKeys(c.tensors) {
		if slices.ContainsFunc(unread, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			c.unread += c.tensors[name].span.bytes
			continue
		}
		plain := plainName(name)
		if _, twice := named[plain]; twice {
			return family.Invalidf("tensor %s exists under two names", family.Quoted(plain))
		}
		named[plain] = c.tensors[name]
	}
	c.tensors = named
	return nil
}

// unwrap names quantised layers as unwrapModel names their tensors.
func (g grouping) unwrap() grouping {
	layers := make(map[string]any, len(g.layers))
	for name, v := range g.layers {
		layers[plainName(name)] = v
	}
	g.layers = layers
	return g
}
