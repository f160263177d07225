//go:build !race

package tinymodel_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

func TestFoldersOpenAndRoundTripText(t *testing.T) {
	for name, c := range map[string]struct {
		family tinymodel.Family
		layout tinymodel.Layout
		want   string
	}{
		"Hugging Face, float16": {family: tinymodel.Llama, layout: tinymodel.Layout{Matrices: quant.DenseOf(quant.Float16)}, want: "float16"},
		"MLX, 4 bits":           {family: tinymodel.Qwen3, layout: tinymodel.Layout{Matrices: quant.AffineOf(4, 32, quant.BFloat16)}, want: "affine 4-bit group 32"},
		"in shards":             {family: tinymodel.Qwen3, layout: tinymodel.Layout{Matrices: quant.AffineOf(6, 64, quant.BFloat16), ShardBytes: 20_000}, want: "affine 6-bit group 64"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "model")
			config := tinymodel.Default()
			config.Family = c.family
			if err := tinymodel.WriteFolder(dir, config, c.layout); err != nil {
				t.Fatal(err)
			}
			f, err := weights.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if facts, err := f.Facts(); err != nil || facts.Quantization != c.want {
				t.Errorf("facts %+v, %v; want %s", facts, err, c.want)
			}
			source, err := text.Open(context.Background(), f)
			if err != nil {
				t.Fatal(err)
			}
			const sample = "The capital of France is Paris. 東京 🙂\n\x00"
			ids, err := source.Tokenizer.Encode(sample, tokenizer.EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if back, err := source.Tokenizer.Decode(ids, false); err != nil || back != sample || len(ids) > 40 {
				t.Errorf("text came back as %q from %d tokens (%v)", back, len(ids), err)
			}
		})
	}
}

func TestAFolderIsWrittenWholeOrNotAtAll(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "model")
	plain := tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)}
	if err := tinymodel.WriteFolder(dir, tinymodel.Default(), plain); err != nil {
		t.Fatal(err)
	}
	before, err := tinymodel.Digest(dir)
	if err != nil {
		t.Fatal(err)
	}
	other := tinymodel.Default()
	other.Seed = 2
	if err := tinymodel.WriteFolder(dir, other, plain); err == nil {
		t.Error("a folder that holds a model was replaced")
	}
	if after, err := tinymodel.Digest(dir); err != nil || after != before {
		t.Errorf("the model in the folder has changed (%v)", err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 1 {
		t.Errorf("left next to the model: %v (%v)", left, err)
	}
}

func TestAnEndlessFolderEndsWithTheTokenThatNobodyScores(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	c := tinymodel.Default()
	c.Endless = true
	if err := tinymodel.WriteFolder(dir, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 32, quant.Float16)}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "generation_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		EOS int `json:"eos_token_id"`
	}
	if err := json.Unmarshal(b, &got); err != nil || got.EOS != c.Vocabulary-1 {
		t.Errorf("the turn ends with %d (%v), want %d", got.EOS, err, c.Vocabulary-1)
	}
}

func TestWhatCannotBeWrittenIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*tinymodel.Config)
		layout quant.Format
	}{
		"an unknown family":            {change: func(c *tinymodel.Config) { c.Family = "gpt2" }, layout: quant.DenseOf(quant.Float32)},
		"a window in a Llama":          {change: func(c *tinymodel.Config) { c.Window = 8 }, layout: quant.DenseOf(quant.Float32)},
		"experts in a Llama":           {change: func(c *tinymodel.Config) { c.Experts.Count = 2 }, layout: quant.DenseOf(quant.Float32)},
		"a mixture of nothing":         {change: func(c *tinymodel.Config) { c.Family = tinymodel.Qwen3MoE }, layout: quant.DenseOf(quant.Float32)},
		"a Gemma of no window":         {change: func(c *tinymodel.Config) { c.Family = tinymodel.Gemma3 }, layout: quant.DenseOf(quant.Float32)},
		"a pattern in a Llama":         {change: func(c *tinymodel.Config) { c.Pattern = 2 }, layout: quant.DenseOf(quant.Float32)},
		"a Qwen2 of wide heads":        {change: func(c *tinymodel.Config) { c.Family, c.HeadSize = tinymodel.Qwen2, 32 }, layout: quant.DenseOf(quant.Float32)},
		"factors that GGUF alone has":  {change: func(c *tinymodel.Config) { c.RopeFactors = true }, layout: quant.DenseOf(quant.Float32)},
		"a format that GGUF alone has": {change: func(*tinymodel.Config) {}, layout: quant.SymmetricOf(4, 32, quant.Float16)},
		"groups wider than rows":       {change: func(*tinymodel.Config) {}, layout: quant.AffineOf(4, 128, quant.Float16)},
	} {
		config := tinymodel.Default()
		c.change(&config)
		if err := tinymodel.WriteFolder(filepath.Join(t.TempDir(), "model"), config, tinymodel.Layout{Matrices: c.layout}); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	for name, change := range map[string]func(*tinymodel.Config){
		"a window of a Mistral": func(c *tinymodel.Config) { c.Family, c.Window = tinymodel.Mistral, 8 },
		"a query scalar":        func(c *tinymodel.Config) { c.Family, c.Window, c.QueryScalar = tinymodel.Gemma3, 8, 24 },
		"a dense layer of a mixture": func(c *tinymodel.Config) {
			c.Family, c.Experts = tinymodel.Qwen3MoE, tinymodel.Experts{Count: 2, PerToken: 1, FeedForward: 32, Dense: []int{0}}
		},
	} {
		c := tinymodel.Default()
		change(&c)
		if err := tinymodel.Write(filepath.Join(t.TempDir(), "x.gguf"), c); err == nil {
			t.Errorf("%s was written as GGUF", name)
		}
	}
}

func TestShapesHaveTheSizesOfTheirNames(t *testing.T) {
	for name, want := range map[string]struct {
		weights, off float64
	}{
		"qwen3-0.6b": {weights: 0.596e9, off: 0.01}, "qwen3-8b": {weights: 8.19e9, off: 0.01}, "llama-4gb": {weights: 4e9 * 8 / 4.5, off: 0.02},
		"qwen3-30b-a3b": {weights: 30.5e9, off: 0.01}, "gemma3-1b": {weights: 1e9, off: 0.01}, "qwen3.5-0.8b": {weights: 0.752e9, off: 0.01}, "gpt-oss-20b": {weights: 20.9e9, off: 0.01},
		"qwen3.5-35b-a3b": {weights: 35e9, off: 0.02},
	} {
		c, err := tinymodel.Shape(name, 4.5)
		if err != nil {
			t.Fatal(err)
		}
		q, kv := c.QueryHeads*c.HeadSize, c.KVHeads*c.HeadSize
		inner := c.FeedForward
		if x := c.Experts; x.Count > 0 {
			inner = x.Count*x.FeedForward + x.Shared
		}
		n := float64(c.Layers*c.Hidden*(2*q+2*kv+3*inner) + c.Vocabulary*c.Hidden)
		if h := c.Hybrid; h.Interval > 0 { // a gate for each query; queries, keys, values and gates of recurrent layers
			attention, keys, values := c.Layers/h.Interval, h.KeyHeads*h.KeySize, h.ValueHeads*h.ValueSize
			recurs := c.Layers - attention
			n = float64(c.Hidden * (c.Vocabulary + c.Layers*3*inner + attention*(3*q+2*kv) + recurs*(2*keys+3*values+2*h.ValueHeads)))
		}
		if c.Untied {
			n += float64(c.Vocabulary * c.Hidden)
		}
		if n < want.weights*(1-want.off) || n > want.weights*(1+want.off) {
			t.Errorf("%s has %.3g weights, want %.3g", name, n, want.weights)
		}
	}
	if _, err := tinymodel.Shape("qwen3", 4); err == nil || !strings.Contains(err.Error(), "gemma3-1b, gpt-oss-20b, llama-4gb, qwen3-0.6b, qwen3-30b-a3b, qwen3-8b, qwen3.5-0.8b, qwen3.5-35b-a3b, tiny") {
		t.Errorf("error %v, want one that lists the shapes", err)
	}
}
