package weights

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

const gatePart, upPart, bothParts = "gate_proj", "up_proj", "gate_up_proj"

// published names the tensors of a GPT-OSS as OpenAI published it in the words
// of mlx-lm: blocks of 16 bytes are words of mxfp4. It reports whether the gate
// and up of experts are one tensor, in which their rows take turns.
func (c *collection) published(d family.Dimensions) (together bool, err error) {
	if !d.Layout().Blocks {
		return false, nil
	}
	err = c.nameBy(func(name string, t *shardTensor) (string, bool, error) {
		layer, is := strings.CutSuffix(name, "_blocks")
		switch {
		case !strings.Contains(name, ".mlp.experts."):
		case is:
			last := len(t.shape) - 1
			if t.kind.name != "U8" || last < 1 || t.shape[last] != 16 {
				return "", false, family.Invalidf("tensor %s has type %s and shape %v, want bytes in blocks of 16", family.Quoted(name), t.kind.name, t.shape)
			}
			t.kind, t.shape = element{"U32", 4}, append(slices.Clone(t.shape[:last-1]), t.shape[last-1]*4)
			name, together = layer+".weight", true
		case strings.HasSuffix(name, "_scales"):
			name = strings.TrimSuffix(name, "_scales") + ".scales"
		case strings.HasSuffix(name, "_bias"):
			name = strings.TrimSuffix(name, "_bias") + ".bias"
		case strings.HasSuffix(name, bothParts):
			return "", false, fmt.Errorf("tensor %s: %w", family.Quoted(name), family.Unsupported("layout of experts", "floats in columns", []string{"mxfp4 blocks", "mlx-lm's"}))
		}
		return name, true, nil
	})
	return together, err
}

// paired are the slots where gate and up of experts are one tensor.
func paired(slots []family.Slot) []family.Slot {
	var out []family.Slot
	for _, s := range slots {
		if strings.Contains(s.Path, ".mlp.experts."+upPart) {
			continue
		}
		if strings.Contains(s.Path, ".mlp.experts."+gatePart) {
			s.Path, s.Shape = strings.Replace(s.Path, gatePart, bothParts, 1), slices.Clone(s.Shape)
			s.Shape[1] *= 2
		}
		out = append(out, s)
	}
	return out
}
