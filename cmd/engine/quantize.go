package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/weights/convert"
)

// quantizeModel writes a model with fewer bits a weight, as a folder that mlx-lm
// loads too.
func quantizeModel(ctx context.Context, e *env, args []string) error {
	f := e.flags("quantize")
	modelPath := f.String("model", "", modelHelp)
	out := f.String("out", "", "output folder; it must be empty or not exist (required)")
	mode := f.String("mode", "affine", "format of every matrix that no --layer matches: affine, mxfp4, mxfp8, nvfp4, or keep")
	bits := f.Int("bits", 4, "bits per affine weight: 2, 3, 4, 5, 6 or 8")
	group := f.Int("group", 64, "number of affine weights per scale: 32, 64 or 128")
	plan := f.String("plan", "", "file with one PATTERN=TARGET per line, applied after those of --layer")
	var rules []convert.Rule
	f.Func("layer", "PATTERN=TARGET for layers whose path matches, such as '*embed_tokens=8:64'; targets are BITS, BITS:GROUP, mxfp4, mxfp8, nvfp4 and keep; the first match applies; may be repeated", func(text string) error {
		r, err := convert.ParseRule(text)
		rules = append(rules, r)
		return err
	})
	again := f.Bool("dequantize", false, "quantise tensors that are already quantised again, from their dequantised values")
	dtype := f.String("dtype", "", "type of unquantised tensors and of affine scales: bfloat16, float16 or float32; empty keeps the source's type (GGUF: float32)")
	if err := parse(f, args, "model", "out"); err != nil {
		return err
	}
	o := convert.Options{Out: *out, Plan: convert.Plan{Rules: rules, Again: *again}}
	var err error
	if o.Plan.Rest, err = restOf(*mode, *bits, *group); err != nil {
		return err
	}
	if *plan != "" {
		more, err := rulesOf(*plan)
		if err != nil {
			return usageError{err}
		}
		o.Plan.Rules = append(o.Plan.Rules, more...)
	}
	if o.Type, err = floatType(*dtype); err != nil {
		return err
	}
	return runConversion(ctx, e, *modelPath, o)
}

// restOf is the target of --mode, --bits and --group.
func restOf(mode string, bits, group int) (convert.Target, error) {
	switch mode {
	case "affine":
		return convert.Affine(bits, group), nil
	case "mxfp4", "mxfp8", "nvfp4", "keep":
		return convert.ParseTarget(mode)
	}
	return convert.Target{}, usagef("--mode is %q, want affine, mxfp4, mxfp8, nvfp4 or keep", mode)
}

func rulesOf(path string) ([]convert.Rule, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	defer f.Close()
	rules, err := convert.ReadRules(f)
	if err != nil {
		return nil, fmt.Errorf("plan %s: %w", path, err)
	}
	return rules, nil
}

// runConversion converts and prints what was written.
func runConversion(ctx context.Context, e *env, path string, o convert.Options) error {
	file, err := weights.Open(path)
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
	fmt.Fprintf(e.stdout, "%s: %d tensors, %d bytes in %d files of weights, %.2f bits per weight\n", o.Out, report.Tensors, report.Bytes, report.Files, report.BitsPerWeight())
	var names []string
	for name := range report.Formats {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(e.stdout, "  %s: %d bytes\n", name, report.Formats[name])
	}
	for _, c := range file.Conversions() {
		fmt.Fprintf(e.stdout, "  source: %v\n", c)
	}
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
