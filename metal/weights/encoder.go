package weights

import (
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// encoderNames names the tensors of an encoder as if it stood alone, in the
// words of today, and leaves out what neither vectors nor scores are made with:
// counters, heads for training, and the pooler where nothing reads it.
func (c *collection) encoderNames(d family.Dimensions) error {
	return c.nameBy(func(name string, _ *shardTensor) (string, bool, error) {
		for _, prefix := range []string{"bert.", "roberta."} {
			name = strings.TrimPrefix(name, prefix)
		}
		for old, now := range map[string]string{".gamma": ".weight", ".beta": ".bias"} {
			if s, ok := strings.CutSuffix(name, "LayerNorm"+old); ok {
				name = s + "LayerNorm" + now
			}
		}
		return name, !unreadByEncoder(d, name), nil
	})
}

func unreadByEncoder(d family.Dimensions, name string) bool {
	if slices.Contains([]string{"embeddings.position_ids", "embeddings.token_type_ids"}, name) {
		return true
	}
	if strings.HasPrefix(name, "pooler.") {
		return d.Encoder.Labels == 0 || d.Architecture == "xlm-roberta"
	}
	return strings.HasPrefix(name, "cls.") || strings.HasPrefix(name, "lm_head.")
}

// encoderPart is the part of an encoder to which a tensor belongs.
func encoderPart(path string) string {
	switch {
	case strings.Contains(path, "LayerNorm"):
		return "norms"
	case strings.Contains(path, ".attention."):
		return "attention"
	case strings.HasPrefix(path, "encoder."):
		return "feed-forward"
	case strings.HasPrefix(path, "embeddings."):
		return "embedding"
	case strings.HasPrefix(path, "pooler."), strings.HasPrefix(path, "classifier."):
		return "head"
	}
	return ""
}
