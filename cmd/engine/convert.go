package main

import (
	"context"

	"metalfleet.dev/metalfleet/metal/weights/convert"
)

// convertModel writes a model as a folder that mlx-lm loads too.
func convertModel(ctx context.Context, e *env, args []string) error {
	f := e.flags("convert")
	modelPath := f.String("model", "", "GGUF file, or folder of a model (required)")
	out := f.String("out", "", "folder to write; it must not exist, or be empty (required)")
	bits := f.Int("quantize", 0, "quantise every matrix to this many bits, also one that is quantised already: 2, 3, 4, 5, 6 or 8; 0 keeps the formats of the source (engine quantize does more)")
	group := f.Int("group", 64, "how many weights share a scale: 32, 64 or 128; with --quantize")
	dtype := f.String("dtype", "", "type of what is not quantised, and of scales: bfloat16, float16 or float32; empty keeps the source's (GGUF: float32 scales, which lose nothing)")
	if err := parse(f, args, "model", "out"); err != nil {
		return err
	}
	o := convert.Options{Out: *out}
	if *bits != 0 {
		o.Plan = convert.Plan{Rest: convert.Affine(*bits, *group), Again: true}
	}
	var err error
	if o.Type, err = floatType(*dtype); err != nil {
		return err
	}
	return runConversion(ctx, e, *modelPath, o)
}
