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

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// model is one to measure.
type model struct {
	name string
	// family of metal/arch whose code it runs, and also who else runs that code:
	// what holds for the row holds for them.
	family, also string
	// quick is what is promised on a quick back end, slow on a slow one: MLX on a
	// processor computes a token a second or two where numbers have 16 bits.
	quick, slow promise
	// reads says that it reads texts and writes none.
	reads bool
	// ready fetches, converts or writes it, unless it is there, and returns its
	// path.
	ready func(context.Context) (string, error)
}

// promise is a context that is promised and filled.
type promise struct{ tokens, sequences int }

// models lists what is measured: every family of metal/arch at least once.
func models(o options) []model {
	out := realModels(o)
	for _, r := range random() {
		path := filepath.Join(o.dir, r.config.Name)
		out = append(out, model{
			name: r.config.Name, family: string(r.config.Family), also: r.also, quick: r.quick, slow: r.slow,
			ready: func(context.Context) (string, error) { return path, r.write(path) },
		})
	}
	for _, r := range readers() {
		path := filepath.Join(o.dir, r.reader.Name)
		out = append(out, model{
			name: r.reader.Name, family: r.reader.Family, also: r.also, quick: r.quick, slow: r.slow, reads: true,
			ready: func(context.Context) (string, error) { return path, r.write(path) },
		})
	}
	return out
}

// realModels are those that people serve, as they are and converted.
func realModels(o options) []model {
	long := promise{512, 2}
	smol := func(ctx context.Context) (string, error) { return fetch(ctx, "smollm2") }
	converted := func(name string, slow promise, args ...string) model {
		path := filepath.Join(o.dir, strings.ReplaceAll(name, " ", "-"))
		return model{name: name, family: "llama", quick: long, slow: slow, ready: func(ctx context.Context) (string, error) {
			from, err := smol(ctx)
			if err != nil {
				return "", err
			}
			return path, convert(ctx, o.engine, from, path, args)
		}}
	}
	read := promise{256, 4} // it reads no more of a text
	return []model{
		{name: "SmolLM2-135M Q4_1", family: "llama", also: "Llama 2 and 3, Mistral", quick: long, slow: promise{256, 1}, ready: smol},
		converted("SmolLM2-135M 4-bit", promise{64, 1}, "--quantize", "4", "--dtype", "bfloat16"),
		converted("SmolLM2-135M bfloat16", promise{32, 1}, "--dtype", "bfloat16"),
		{name: "all-MiniLM-L6-v2", family: "bert", quick: read, slow: read, reads: true,
			ready: func(ctx context.Context) (string, error) { return fetch(ctx, "minilm") }},
	}
}

// open makes a model ready and wants it to be of the family that its row says.
func (m model) open(ctx context.Context) (string, error) {
	path, err := m.ready(ctx)
	if err != nil {
		return "", err
	}
	f, err := weights.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if f.Dim.Architecture != m.family {
		return "", fmt.Errorf("%s is a %s, its row says %s", path, f.Dim.Architecture, m.family)
	}
	return path, nil
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
	also        string
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
	both := recurrent(of("qwen3-next-32000-states-of-128-4-bit", tinymodel.Qwen3Next, 4, 1, 256))
	both.Experts = tinymodel.Experts{Count: 8, PerToken: 2, FeedForward: 512, Shared: 512}
	window := deep(of("gemma3-32000-windows-of-256-4-bit", tinymodel.Gemma3, 4, 1, 256))
	window.Window = 256
	quick, slow, half, brief := promise{1024, 1}, promise{256, 1}, promise{64, 1}, promise{32, 1}
	packed := folder(quant.AffineOf(4, 64, quant.BFloat16))
	return []written{
		{of("llama-32000-heads-of-64-bfloat16", tinymodel.Llama, 8, 8, 64), folder(quant.DenseOf(quant.BFloat16)), quick, half, "Mistral Small 3 and Ministral 3, whose decoder it is"},
		{deep(of("llama-32000-heads-of-80-6-bit", tinymodel.Llama, 8, 2, 80)), folder(quant.AffineOf(6, 64, quant.BFloat16)), quick, half, ""},
		{gguf(of("llama-32000-heads-of-96-Q8_0.gguf", tinymodel.Llama, 6, 3, 96), weights.Q8_0), nil, quick, slow, ""},
		{deep(of("qwen3-32000-heads-of-256-4-bit-bfloat16", tinymodel.Qwen3, 4, 1, 256)), packed, quick, brief, ""},
		{of("qwen2-32000-heads-of-64-8-bit", tinymodel.Qwen2, 8, 2, 64), folder(quant.AffineOf(8, 64, quant.BFloat16)), quick, brief, "Qwen2.5"},
		{mixture, packed, quick, brief, ""},
		{window, packed, quick, brief, "Gemma 3 inside a model that sees"},
		{wide, packed, quick, half, ""},
		{experts, folder(quant.DenseOf(quant.BFloat16)), quick, half, ""},
		{recurrent(of("qwen3.5-32000-states-of-128-4-bit", tinymodel.Qwen35, 4, 1, 256)), packed, quick, half, "Qwen3.5 inside a model that sees; with experts it runs those of Qwen3-Next"},
		{both, packed, quick, half, ""},
		{large, folder(quant.DenseOf(quant.Float32)), promise{256, 1}, promise{256, 1}, ""},
	}
}

// reader is a random model that reads.
type reader struct {
	reader      tinymodel.Reader
	quick, slow promise
	also        string
}

func (r reader) write(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fmt.Fprintln(os.Stderr, "writing", path)
	return r.reader.Write(path)
}

// readers are one of each family beside the real one: an encoder in float32 with
// the vocabulary of XLM-RoBERTa, one in half precision with a head, and a decoder
// that makes vectors, whose texts lie in its cache while they are read.
func readers() []reader {
	many := tinymodel.Reader{Name: "xlm-roberta-250002-float32", Family: "xlm-roberta", Pooling: "mean",
		Size: tinymodel.Size{Hidden: 256, Inner: 1024, Heads: 8, Layers: 12, Positions: 512, Vocabulary: 250_002}}
	half := tinymodel.Reader{Name: "bert-30522-rerank-bfloat16", Family: "bert", Rerank: true, Type: quant.BFloat16,
		Size: tinymodel.Size{Hidden: 512, Inner: 2048, Heads: 8, Layers: 12, Positions: 512, Vocabulary: 30_522}}
	decoder := tinymodel.Reader{Name: "qwen3-embedding-32000-bfloat16", Family: "qwen3", Pooling: "lasttoken", Type: quant.BFloat16,
		Size: tinymodel.Size{Hidden: 512, Inner: 2048, Heads: 8, Layers: 12, Positions: 4096, Vocabulary: 32_000}}
	return []reader{
		{many, promise{512, 4}, promise{512, 1}, "BGE-M3 and its reranker"}, {half, promise{512, 4}, promise{64, 1}, "cross-encoders of MiniLM"},
		{decoder, promise{512, 1}, promise{32, 1}, "Qwen3-Reranker, which scores what a decoder reads"},
	}
}
