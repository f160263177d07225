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
	unread := unreadParts(d)
	return c.nameBy(func(name string, t *shardTensor) (string, bool, error) {
		if slices.ContainsFunc(unread, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			c.unread += t.span.bytes
			return "", false, nil
		}
		return plainName(name), true, nil
	})
}

// unwrap names quantised layers as unwrapModel names their tensors.
func (g grouping) unwrap(memory *account) (grouping, error) {
	return g.namedBy(memory, func(name string) (string, bool) { return plainName(name), true })
}

// namedBy has the layers under the names that naming returns for them, without those for which ok is
// false, and those whose name is longer than that of any tensor.
func (g grouping) namedBy(memory *account, naming func(name string) (now string, ok bool)) (grouping, error) {
	layers := map[string]any{}
	for name, v := range g.layers {
		if len(name) > maxNameBytes {
			continue
		}
		now, ok := naming(name)
		if !ok {
			continue
		}
		if err := memory.take(keyMemory+int64(len(now)), 0); err != nil {
			return g, err
		}
		layers[now] = v
	}
	g.layers = layers
	return g, nil
}
