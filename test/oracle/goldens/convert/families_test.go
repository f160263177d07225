//go:build oracle

package convert

import (
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// plans are what becomes of a hybrid and of a GPT-OSS, and how far that may move
// its logits: the root mean square of the change over that of the logits. The
// models are random, so nothing in them is redundant. Seen: 0.097, 0.19, 0.85, 0.51,
// 0.93 and 0.97.
func plans() map[string]float64 {
	return map[string]float64{"keep": 0, "8:64": 0.13, "6:32": 0.25, "4:32": 1.1, "mxfp8": 0.65, "mxfp4": 1.2, "nvfp4": 1.25}
}

// families are those whose folders mlx-lm words otherwise than they came: hybrids
// of both layouts, with and without experts, with and without a vision tower, and GPT-OSS as
// mlx-lm converts it (published folders and GGUF files of it are not converted).
func families(dir string) ([]converted, error) {
	var out []converted
	for _, c := range tinymodel.Cases() {
		switch c.Name {
		case "qwen3_next/hf float32", "qwen3_next/hf bfloat16 sharded", "qwen3_next/hf float32 dense first layer", "qwen3_next/mlx 8 bits by 32 float16",
			"qwen3_5/hf float32", "qwen3_5/hf bfloat16 with eyes", "qwen3_5/hf float32 experts", "qwen3_5/mlx 4 bits by 64 bfloat16 with eyes",
			"gpt_oss/mlx 8 bits by 32 float32", "gpt_oss/mlx mxfp4":
		default:
			continue
		}
		name := strings.NewReplacer("/", "-", " ", "-").Replace(c.Name)
		source := filepath.Join(dir, name)
		if err := tinymodel.WriteFolder(source, c.Config, *c.Layout); err != nil {
			return nil, err
		}
		for as, bound := range plans() {
			if as == "6:32" && c.Layout.Matrices != quant.DenseOf(quant.Float32) {
				continue // one plan of such bits is enough
			}
			out = append(out, converted{
				Name: name + "-as-" + strings.ReplaceAll(as, ":", "-"), Source: source, As: as, Bound: bound, Prompt: c.Prompts()[1],
			})
		}
	}
	return out, nil
}
