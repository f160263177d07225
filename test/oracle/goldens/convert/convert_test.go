//go:build oracle

package convert

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/weights/convert"
)

// converted is one conversion, as check.py reads it.
type converted struct {
	Name   string `json:"name"`
	Source string `json:"source"`
	Out    string `json:"out"`
	// Bits is 0 where the formats were kept.
	Bits  int `json:"bits"`
	Group int `json:"group"`
	// Type is empty where it was kept.
	Type string `json:"type"`
	// As is the plan of a model that check.py computes logits of; Logits are ours
	// after Prompt, and Bound is how far quantisation may move them.
	As     string    `json:"as,omitempty"`
	Bound  float64   `json:"bound,omitempty"`
	Prompt []int32   `json:"prompt,omitempty"`
	Logits []float32 `json:"logits,omitempty"`
}

var (
	model  = flag.String("model", "", "SmolLM2 as a GGUF file")
	folder = flag.String("folder", "", "where converted models are written")
	texts  = flag.String("texts", "", "texts for tokenizers, which check.py chose")
	record = flag.String("record", "../engine/testdata/smollm2.json", "prompts and logits of the reference")
)

// TestConvert writes what check.py judges: run.sh calls both.
func TestConvert(t *testing.T) {
	if *model == "" || *folder == "" || *texts == "" {
		t.Fatal("flags are missing: make test-oracle SUITE=convert passes them, and has check.py judge the results")
	}
	if err := run(t.Context(), *model, *folder, *texts); err != nil {
		t.Fatal(err)
	}
	if err := quantised(t.Context(), *model, *folder, *record); err != nil {
		t.Fatal(err)
	}
}

func run(ctx context.Context, smollm2, dir, texts string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	all := []converted{{Name: "smollm2", Source: smollm2}}
	made, err := sources(dir)
	if err != nil {
		return err
	}
	planned, err := families(dir)
	if err != nil {
		return err
	}
	all = append(append(all, made...), planned...)
	for i := range all {
		all[i].Out = filepath.Join(dir, all[i].Name)
		if err := all[i].run(ctx); err != nil {
			return fmt.Errorf("%s: %w", all[i].Name, err)
		}
	}
	if err := write(filepath.Join(dir, "list.json"), all); err != nil {
		return err
	}
	return tokenizers(ctx, smollm2, texts, dir)
}

// sources writes tiny models in every format and returns their conversions.
func sources(dir string) ([]converted, error) {
	var all []converted
	for _, family := range []tinymodel.Family{tinymodel.Llama, tinymodel.Qwen2, tinymodel.Qwen3, tinymodel.Qwen3MoE, tinymodel.Gemma3} {
		c := tinymodel.Default()
		c.Family, c.Hidden, c.FeedForward, c.NormSpread, c.Untied = family, 128, 256, 0.25, family == tinymodel.Llama
		c.QueryHeads, c.HeadSize = 4, 32
		switch family {
		case tinymodel.Qwen3MoE:
			c.Experts = tinymodel.Experts{Count: 4, PerToken: 2, FeedForward: 128}
		case tinymodel.Gemma3:
			c.Window, c.Pattern, c.LocalTheta = 16, 2, 2e4
		}
		for _, kind := range []weights.Type{weights.F32, weights.F16, weights.BF16, weights.Q4_0, weights.Q4_1, weights.Q8_0} {
			c.Type = kind
			path := filepath.Join(dir, fmt.Sprintf("%s-%v.gguf", family, kind))
			if err := tinymodel.Write(path, c); err != nil {
				return nil, err
			}
			all = append(all, converted{Name: fmt.Sprintf("%s-from-%v", family, kind), Source: path})
		}
		for _, kind := range []quant.Type{quant.Float32, quant.BFloat16} {
			path := filepath.Join(dir, fmt.Sprintf("%s-%v", family, kind))
			if err := tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(kind), Modern: kind == quant.Float32}); err != nil {
				return nil, err
			}
			for _, bits := range quant.Bits() {
				for _, group := range quant.Groups() {
					if kind == quant.BFloat16 && group != 64 {
						continue // what differs is the type of the scales
					}
					all = append(all, converted{Name: fmt.Sprintf("%s-%v-to-%d-%d", family, kind, bits, group), Source: path, Bits: bits, Group: group})
				}
			}
			all = append(all, converted{Name: fmt.Sprintf("%s-%v-to-float16", family, kind), Source: path, Type: "float16"},
				converted{Name: fmt.Sprintf("%s-%v-to-4-64-float16", family, kind), Source: path, Bits: 4, Group: 64, Type: "float16"})
		}
	}
	seeing, err := decoders(dir)
	return append(all, seeing...), err
}

// decoders are those inside models that see.
func decoders(dir string) ([]converted, error) {
	var all []converted
	for _, family := range []tinymodel.Family{tinymodel.Gemma3, tinymodel.Mistral, tinymodel.Ministral3} {
		c := tinymodel.Default()
		c.Family, c.Hidden, c.FeedForward, c.NormSpread, c.Untied, c.QueryHeads, c.HeadSize = family, 128, 256, 0.25, family != tinymodel.Gemma3, 4, 32
		switch family {
		case tinymodel.Gemma3:
			c.Window, c.Pattern, c.LocalTheta = 16, 2, 2e4
		case tinymodel.Ministral3:
			c.Scaling, c.Growth = tinymodel.Scaling{Kind: "yarn", Factor: 8, Original: 16}, 0.3
		}
		path := filepath.Join(dir, string(family)+"-that-sees")
		if err := tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16), Sees: true}); err != nil {
			return nil, err
		}
		all = append(all, converted{Name: string(family) + "-that-sees-kept", Source: path}, converted{Name: string(family) + "-that-sees-to-4-64", Source: path, Bits: 4, Group: 64})
	}
	return all, nil
}

func (c *converted) run(ctx context.Context) error {
	f, err := weights.Open(c.Source)
	if err != nil {
		return err
	}
	defer f.Close()
	o := convert.Options{Out: c.Out}
	if c.Bits > 0 {
		o.Plan = convert.Plan{Rest: convert.Affine(c.Bits, c.Group), Again: true}
	}
	if c.Type != "" {
		t := quant.Float16
		o.Type = &t
	}
	if c.As != "" {
		o.Plan.Again = true
		if o.Plan.Rest, err = convert.ParseTarget(c.As); err != nil {
			return err
		}
	}
	if _, err := convert.Run(ctx, f, o); err != nil || c.Prompt == nil {
		return err
	}
	c.Logits, err = logits(ctx, c.Out, c.Prompt)
	return err
}

// logits after a prompt, as our engine computes them from a folder.
func logits(ctx context.Context, folder string, prompt []int32) ([]float32, error) {
	s, err := engine.OpenSession(ctx, folder, ref.New(ref.Options{}))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Evaluate(ctx, prompt)
}

// tokenizers converts the vocabulary of a file under each pre-tokenizer, and
// writes what our tokenizer, read from the file, makes of each text.
func tokenizers(ctx context.Context, model, texts, dir string) error {
	data, err := os.ReadFile(texts)
	if err != nil {
		return err
	}
	var list []string
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("%s: %w", texts, err)
	}
	all := map[string][][]int32{}
	for _, pre := range []string{"gpt-2", "llama-bpe", "qwen2", "smollm"} {
		if all[pre], err = ids(ctx, model, pre, list, filepath.Join(dir, "tokenizer-"+pre)); err != nil {
			return fmt.Errorf("pre-tokenizer %s: %w", pre, err)
		}
	}
	return write(filepath.Join(dir, "ids.json"), map[string]any{"texts": list, "ids": all})
}

func ids(ctx context.Context, model, pre string, texts []string, out string) ([][]int32, error) {
	f, err := weights.Open(model)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	f.Metadata["tokenizer.ggml.pre"] = pre
	if _, err := convert.Run(ctx, f, convert.Options{Out: out}); err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Join(out, "model.safetensors")); err != nil { // only the tokenizer is wanted
		return nil, err
	}
	tok, err := tokenizer.FromGGUF(f.Metadata)
	if err != nil {
		return nil, err
	}
	all := make([][]int32, len(texts))
	for i, text := range texts {
		if all[i], err = tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true}); err != nil {
			return nil, fmt.Errorf("text %d: %w", i, err)
		}
	}
	return all, nil
}

func write(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
