package main

import (
	"context"

	"metalfleet.dev/metalfleet/metal/weights/convert"
)

// convertModel writes a model as a folder that mlx-lm loads too.
func convertModel(ctx context.Context, e *env, args []string) error {
	f := e.flags("convert")
	modelPath := f.String("model", "", "GGUF file or model folder (required)")
	out := f.String("out", "", "output folder; it must be empty or not exist (required)")
	bits := f.Int("quantize", 0, "quantise every matrix to this many bits, including those that are already quantised: 2, 3, 4, 5, 6 or 8; 0 keeps the source's formats (engine quantize offers more)")
	group := f.Int("group", 64, "number of weights per scale: 32, 64 or 128; used with --quantize")
	dtype := f.String("dtype", "", "type of unquantised tensors and of scales: bfloat16, float16 or float32; empty keeps the source's type (GGUF: float32 scales, which are lossless)")
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
