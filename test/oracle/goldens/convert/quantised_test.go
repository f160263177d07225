//go:build oracle

package convert

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/weights/convert"
)

// quantisation is SmolLM2 under a plan, as check.py reads it.
type quantisation struct {
	Name          string  `json:"name"`
	Out           string  `json:"out"`
	BitsPerWeight float64 `json:"bitsPerWeight"`
	// Logits after each prompt, as our engine computes them from the folder.
	Logits [][]float32 `json:"logits"`
}

// mostTokens of a prompt: MLX computes ten a second on a processor.
const mostTokens = 40

// quantised writes SmolLM2 under every kind of plan, and what our engine makes
// of the prompts of a record.
func quantised(ctx context.Context, model, dir, record string) error {
	prompts, err := promptsOf(record)
	if err != nil {
		return err
	}
	var all []quantisation
	for i, name := range []string{"8:64", "4:32", "4:64", "4:64 but 8:64", "mxfp8", "mxfp4", "nvfp4"} {
		q := quantisation{Name: name, Out: filepath.Join(dir, fmt.Sprintf("smollm2-plan-%d", i))}
		if err := q.run(ctx, model, prompts); err != nil {
			return fmt.Errorf("SmolLM2 as %s: %w", name, err)
		}
		all = append(all, q)
	}
	return write(filepath.Join(dir, "quantised.json"), map[string]any{"prompts": prompts, "cases": all})
}

func promptsOf(record string) ([][]int32, error) {
	data, err := os.ReadFile(record)
	if err != nil {
		return nil, err
	}
	var golden struct{ Cases []struct{ Tokens []int32 } }
	if err := json.Unmarshal(data, &golden); err != nil {
		return nil, fmt.Errorf("%s: %w", record, err)
	}
	var prompts [][]int32
	for _, c := range golden.Cases {
		if len(c.Tokens) <= mostTokens {
			prompts = append(prompts, c.Tokens)
		}
	}
	if len(prompts) < 3 {
		return nil, fmt.Errorf("%s has %d prompts of up to %d tokens, want 3", record, len(prompts), mostTokens)
	}
	return prompts, nil
}

func (q *quantisation) run(ctx context.Context, model string, prompts [][]int32) error {
	f, err := weights.Open(model)
	if err != nil {
		return err
	}
	defer f.Close()
	rest, embedding, mixed := strings.Cut(q.Name, " but ")
	o := convert.Options{Out: q.Out, Plan: convert.Plan{Again: true}}
	if o.Plan.Rest, err = convert.ParseTarget(rest); err != nil {
		return err
	}
	if mixed {
		r, err := convert.ParseRule("*embed_tokens=" + embedding)
		if err != nil {
			return err
		}
		o.Plan.Rules = append(o.Plan.Rules, r)
	}
	report, err := convert.Run(ctx, f, o)
	if err != nil {
		return err
	}
	q.BitsPerWeight = report.BitsPerWeight()
	for _, p := range prompts {
		got, err := logits(ctx, q.Out, p)
		if err != nil {
			return err
		}
		q.Logits = append(q.Logits, got)
	}
	return nil
}
