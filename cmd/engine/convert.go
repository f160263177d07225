package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/weights/convert"
)

// convertModel writes a model as a folder that mlx-lm loads too.
func convertModel(ctx context.Context, e *env, args []string) error {
	f := e.flags("convert")
	modelPath := f.String("model", "", "GGUF file, or folder of a model (required)")
	out := f.String("out", "", "folder to write; it must not exist, or be empty (required)")
	bits := f.Int("quantize", 0, "quantise every matrix to this many bits: 2, 3, 4, 5, 6 or 8; 0 keeps the formats of the source")
	group := f.Int("group", 64, "how many weights share a scale: 32, 64 or 128; with --quantize")
	dtype := f.String("dtype", "", "type of what is not quantised, and of scales: bfloat16, float16 or float32; empty keeps the source's (GGUF: float32 scales, which lose nothing)")
	if err := parse(f, args, "model", "out"); err != nil {
		return err
	}
	o := convert.Options{Out: *out}
	if *bits != 0 {
		o.Bits, o.Group = *bits, *group
	}
	var err error
	if o.Type, err = floatType(*dtype); err != nil {
		return err
	}
	file, err := weights.Open(*modelPath)
	if err != nil {
		return err
	}
	defer file.Close()
	report, err := convert.Run(ctx, file, o)
	if errors.Is(err, convert.ErrOptions) || errors.Is(err, convert.ErrExists) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(e.stdout, "%s: %d tensors, %d bytes in %d files of weights\n", *out, report.Tensors, report.Bytes, report.Files)
	return nil
}

// floatType reads a type by name; nil for none.
func floatType(name string) (*quant.Type, error) {
	if name == "" {
		return nil, nil
	}
	var names []string
	for _, t := range []quant.Type{quant.BFloat16, quant.Float16, quant.Float32} {
		if t.String() == name {
			return &t, nil
		}
		names = append(names, t.String())
	}
	return nil, usagef("--dtype is %q, want one of %s", name, strings.Join(names, ", "))
}
