package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/hack/tinymodel"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// model is one to measure.
type model struct {
	name, path string
	// quick is what is promised on a quick back end, slow on a slow one: MLX on a
	// processor computes a token a second or two where numbers have 16 bits.
	quick, slow promise
	// reads says that it reads texts and writes none.
	reads bool
}

// promise is a context that is promised and filled.
type promise struct{ tokens, sequences int }

// prepare fetches, converts and writes the models that are not there yet.
func prepare(ctx context.Context, o options) ([]model, error) {
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder of models: %w", err)
	}
	smol, err := fetch(ctx, "smollm2")
	if err != nil {
		return nil, err
	}
	minilm, err := fetch(ctx, "minilm")
	if err != nil {
		return nil, err
	}
	long := promise{512, 2}
	out := []model{{name: "SmolLM2-135M Q4_1", path: smol, quick: long, slow: promise{256, 1}}}
	for _, c := range []struct {
		name string
		args []string
		slow promise
	}{
		{"SmolLM2-135M 4-bit", []string{"--quantize", "4", "--dtype", "bfloat16"}, promise{64, 1}},
		{"SmolLM2-135M bfloat16", []string{"--dtype", "bfloat16"}, promise{32, 1}},
	} {
		path := filepath.Join(o.dir, strings.ReplaceAll(c.name, " ", "-"))
		if err := convert(ctx, o.engine, smol, path, c.args); err != nil {
			return nil, err
		}
		out = append(out, model{name: c.name, path: path, quick: long, slow: c.slow})
	}
	for _, r := range random() {
		path := filepath.Join(o.dir, r.config.Name)
		if err := r.write(path); err != nil {
			return nil, err
		}
		out = append(out, model{name: r.config.Name, path: path, quick: r.quick, slow: r.slow})
	}
	read := promise{256, 4} // it reads no more of a text
	out = append(out, model{name: "all-MiniLM-L6-v2", path: minilm, quick: read, slow: read, reads: true})
	for _, r := range encoders() {
		path := filepath.Join(o.dir, r.reader.Name)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintln(os.Stderr, "writing", path)
			if err := r.reader.Write(path); err != nil {
				return nil, err
			}
		}
		out = append(out, model{name: r.reader.Name, path: path, quick: r.quick, slow: r.slow, reads: true})
	}
	return out, nil
}

// fetch gets the real weights and returns their path.
func fetch(ctx context.Context, name string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", filepath.Join("hack", "models", "fetch.sh"), name)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("fetch the model: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1], nil
}

// convert writes a model in another format, once. Q4_1 has few bits and no
// float type of its own: what it means is written in the wanted one.
func convert(ctx context.Context, engine, from, to string, args []string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	args = append([]string{"convert", "--model", from, "--out", to}, args...)
	if out, err := exec.CommandContext(ctx, engine, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("convert %s: %w\n%s", from, err, out)
	}
	return nil
}

// written is a random model.
type written struct {
	config      tinymodel.Config
	layout      *tinymodel.Layout // nil for a GGUF file
	quick, slow promise
}

func (w written) write(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fmt.Fprintln(os.Stderr, "writing", path)
	if w.layout == nil {
		return tinymodel.Write(path, w.config)
	}
	return tinymodel.WriteFolder(path, w.config, *w.layout)
}

// random models have every head size that kernels tell apart, with and without
// grouped heads, in several formats; vocabularies of two sizes, both in use,
// tell what a tokenizer takes. None ends its turn by itself, and none is smaller
// than the smallest that people serve, SmolLM2 in 4 bits with its 76 MB: beside
// less, what a process takes by itself and what its collector leaves would be
// all that a ratio tells.
func random() []written {
	base := tinymodel.Config{Seed: 1, Layers: 12, Hidden: 512, FeedForward: 2048, Context: 4096, Vocabulary: 32000, Merged: true, NormEps: 1e-5, Theta: 10000, Endless: true}
	of := func(name string, family tinymodel.Family, heads, kvHeads, size int) tinymodel.Config {
		c := base
		c.Name, c.Family, c.QueryHeads, c.KVHeads, c.HeadSize = name, family, heads, kvHeads, size
		return c
	}
	deep := func(c tinymodel.Config) tinymodel.Config {
		c.Layers = 28
		return c
	}
	folder := func(f quant.Format) *tinymodel.Layout { return &tinymodel.Layout{Matrices: f, ShardBytes: 5e9} }
	gguf := func(c tinymodel.Config, t weights.Type) tinymodel.Config {
		c.Type = t
		return c
	}
	wide := of("qwen3-151936-heads-of-128", tinymodel.Qwen3, 8, 2, 128)
	wide.Vocabulary = 151936
	large := tinymodel.Sized(1e9, 32)
	large.Name, large.Context, large.Endless, large.Merged, large.Seed = "llama-1-gigabyte-float32", 4096, true, true, 1
	experts := of("gpt-oss-32000-heads-of-64-mxfp4", tinymodel.GPTOSS, 16, 4, 64)
	experts.Window, experts.FeedForward = 128, 512
	experts.Experts, experts.Scaling = tinymodel.Experts{Count: 8, PerToken: 2, FeedForward: 512}, tinymodel.Scaling{Kind: "yarn", Factor: 32, Original: 4096, Fractional: true}
	recurrent := func(c tinymodel.Config) tinymodel.Config {
		c.Layers, c.Hybrid = 28, tinymodel.Hybrid{Interval: 4, KeyHeads: 4, KeySize: 128, ValueHeads: 8, ValueSize: 128, Taps: 4, Rotary: 0.25}
		return c
	}
	mixture := deep(of("qwen3-moe-32000-heads-of-128-4-bit", tinymodel.Qwen3MoE, 8, 2, 128))
	mixture.Experts = tinymodel.Experts{Count: 8, PerToken: 2, FeedForward: 512}
	window := deep(of("gemma3-32000-windows-of-256-4-bit", tinymodel.Gemma3, 4, 1, 256))
	window.Window = 256
	quick, slow, half, brief := promise{1024, 1}, promise{256, 1}, promise{64, 1}, promise{32, 1}
	return []written{
		{of("llama-32000-heads-of-64-bfloat16", tinymodel.Llama, 8, 8, 64), folder(quant.DenseOf(quant.BFloat16)), quick, half},
		{deep(of("llama-32000-heads-of-80-6-bit", tinymodel.Llama, 8, 2, 80)), folder(quant.AffineOf(6, 64, quant.BFloat16)), quick, half},
		{gguf(of("llama-32000-heads-of-96-Q8_0.gguf", tinymodel.Llama, 6, 3, 96), weights.Q8_0), nil, quick, slow},
		{deep(of("qwen3-32000-heads-of-256-4-bit-bfloat16", tinymodel.Qwen3, 4, 1, 256)), folder(quant.AffineOf(4, 64, quant.BFloat16)), quick, brief},
		{of("qwen2-32000-heads-of-64-8-bit", tinymodel.Qwen2, 8, 2, 64), folder(quant.AffineOf(8, 64, quant.BFloat16)), quick, brief},
		{mixture, folder(quant.AffineOf(4, 64, quant.BFloat16)), quick, brief},
		{window, folder(quant.AffineOf(4, 64, quant.BFloat16)), quick, brief},
		{wide, folder(quant.AffineOf(4, 64, quant.BFloat16)), quick, half},
		{experts, folder(quant.DenseOf(quant.BFloat16)), quick, half},
		{recurrent(of("qwen3.5-32000-states-of-128-4-bit", tinymodel.Qwen35, 4, 1, 256)), folder(quant.AffineOf(4, 64, quant.BFloat16)), quick, half},
		{large, folder(quant.DenseOf(quant.Float32)), promise{256, 1}, promise{256, 1}},
	}
}

// encoder is a random model that reads.
type encoder struct {
	reader      tinymodel.Reader
	quick, slow promise
}

// encoders are one of each family beside the real one, in float32 with the
// vocabulary of XLM-RoBERTa, and in half precision with a head.
func encoders() []encoder {
	many := tinymodel.Reader{Name: "xlm-roberta-250002-float32", Family: "xlm-roberta", Pooling: "mean",
		Size: tinymodel.Size{Hidden: 256, Inner: 1024, Heads: 8, Layers: 12, Positions: 512, Vocabulary: 250_002}}
	half := tinymodel.Reader{Name: "bert-30522-rerank-bfloat16", Family: "bert", Rerank: true, Type: quant.BFloat16,
		Size: tinymodel.Size{Hidden: 512, Inner: 2048, Heads: 8, Layers: 12, Positions: 512, Vocabulary: 30_522}}
	return []encoder{{many, promise{512, 4}, promise{512, 1}}, {half, promise{512, 4}, promise{64, 1}}}
}
