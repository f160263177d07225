package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/weights"
)

// scored is one logit as JSON.
type scored struct {
	ID    int32   `json:"id"`
	Logit float32 `json:"logit"`
}

func logits(ctx context.Context, e *env, args []string) error {
	f := e.flags("logits")
	modelPath := f.String("model", "", modelHelp)
	tokensFile := f.String("tokens-file", "", "file with a JSON array of token IDs (required)")
	alwaysJSON(f)
	top := f.Int("top", 5, "number of largest logits to print")
	bf := addBackend(f)
	if err := parse(f, args, "model", "tokens-file"); err != nil {
		return err
	}
	ids, err := readTokens(*tokensFile)
	if err != nil {
		return usageError{err}
	}
	if *top < 1 {
		return usagef("--top is %d, want 1 or more", *top)
	}
	s, err := openSession(ctx, *modelPath, bf)
	if err != nil {
		return err
	}
	defer s.Close()
	values, err := s.Evaluate(ctx, ids)
	if err != nil {
		return err
	}
	all := make([]scored, len(values))
	for i, v := range values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("model %s: logit of token %d is not a number: %w", *modelPath, i, sample.ErrLogits)
		}
		all[i] = scored{int32(i), v}
	}
	sort.SliceStable(all, func(a, b int) bool { return all[a].Logit > all[b].Logit })
	return json.NewEncoder(e.stdout).Encode(map[string]any{"top": all[:min(*top, len(all))]})
}

func openSession(ctx context.Context, path string, bf backendFlags) (*engine.Session, error) {
	b, err := bf.open()
	if err != nil {
		return nil, err
	}
	return engine.OpenSession(ctx, path, b)
}

// inspection is what inspect prints as JSON.
type inspection struct {
	Architecture string `json:"architecture"`
	Name         string `json:"name,omitempty"`
	Quantization string `json:"quantization"`
	Facts        any    `json:"facts"`
	Tensors      int    `json:"tensors"`
	FileBytes    int64  `json:"fileBytes"`
	// UnreadBytes are those of eyes, in a model that is read as text alone.
	UnreadBytes int64            `json:"unreadBytes,omitempty"`
	BytesByPart map[string]int64 `json:"bytesByPart"`
	BytesByType map[string]int64 `json:"bytesByType"`
	Converted   []conversion     `json:"converted,omitempty"`
}

// conversion is a type of the file that is held in a format which does not mean
// all its values.
type conversion struct {
	Type      string  `json:"type"`
	HeldAs    string  `json:"heldAs"`
	Tensors   int     `json:"tensors"`
	FileBytes int64   `json:"fileBytes"`
	HeldBytes int64   `json:"heldBytes"`
	Worst     float32 `json:"worstDifference"`
	Largest   float32 `json:"largestValue"`
}

// conversions measures what loading would change, which reads those tensors.
func conversions(ctx context.Context, file *weights.File) ([]conversion, error) {
	if err := file.Measure(ctx); err != nil {
		return nil, err
	}
	var out []conversion
	for _, c := range file.Conversions() {
		out = append(out, conversion{c.From.String(), c.To.String(), c.Tensors, c.Bytes, c.Held, c.Worst, c.Largest})
	}
	return out, nil
}

func inspect(ctx context.Context, e *env, args []string) error {
	f := e.flags("inspect")
	modelPath := f.String("model", "", modelHelp)
	asJSON := f.Bool("json", false, "print one JSON object")
	tensors := f.Bool("tensors", false, "list every tensor: path, shape, type in the file, and type in memory")
	if err := parse(f, args, "model"); err != nil {
		return err
	}
	file, err := weights.Open(*modelPath)
	if err != nil {
		return err
	}
	defer file.Close()
	if *tensors {
		return listTensors(e.stdout, file)
	}
	facts, err := file.Facts()
	if err != nil {
		return err
	}
	out := inspection{Architecture: facts.Architecture, Name: facts.Name, Quantization: facts.Quantization, Facts: facts,
		Tensors: len(file.Entries()), FileBytes: file.Bytes(), UnreadBytes: file.Unread(), BytesByPart: map[string]int64{}, BytesByType: map[string]int64{}}
	for _, t := range file.Entries() {
		out.BytesByPart[t.Part()] += t.Bytes
		out.BytesByType[t.Stored()] += t.Bytes
	}
	if out.Converted, err = conversions(ctx, file); err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(e.stdout).Encode(out)
	}
	return out.table(e.stdout, facts)
}

// listTensors prints a line for each, by their paths.
func listTensors(to io.Writer, file *weights.File) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	all := file.Entries()
	slices.SortFunc(all, func(a, b weights.Entry) int { return strings.Compare(a.Path, b.Path) })
	for _, t := range all {
		made, _ := t.Made()
		fmt.Fprintf(w, "%s\t%v\t%s\t%v\n", strings.TrimSuffix(t.Path, ".weight"), t.Shape, t.Stored(), made)
	}
	return w.Flush()
}

func (out inspection) table(to io.Writer, facts model.Facts) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "architecture\t%s\nname\t%s\nquantization\t%s\nlayers\t%d\nhidden\t%d\nheads\t%d (%d for keys and values) of %d\nvocabulary\t%d\ncontext\t%d tokens\nfile\t%d bytes\nweights\t%d bytes in %d tensors\n",
		out.Architecture, out.Name, out.Quantization, facts.Layers, facts.HiddenSize, facts.QueryHeads, facts.KeyValueHeads, facts.HeadSize,
		facts.VocabularySize, facts.ContextTokens, out.FileBytes, facts.WeightBytes, out.Tensors)
	if facts.Experts > 0 {
		fmt.Fprintf(w, "experts\t%d, of which each token uses %d\n", facts.Experts, facts.ExpertsPerToken)
	}
	if facts.WindowLayers > 0 {
		fmt.Fprintf(w, "window\t%d tokens in %d layers of %d\n", facts.WindowTokens, facts.WindowLayers, facts.Layers)
	}
	if facts.RecurrentLayers > 0 {
		fmt.Fprintf(w, "recurrent\t%d layers of %d, with a state of %d bytes per sequence\n", facts.RecurrentLayers, facts.Layers, facts.RecurrentStateBytes)
	}
	if out.UnreadBytes > 0 {
		fmt.Fprintf(w, "not loaded\t%d bytes: the vision tower; the model runs with text only\n", out.UnreadBytes)
	}
	for _, group := range []map[string]int64{out.BytesByPart, out.BytesByType} {
		names := make([]string, 0, len(group))
		for n := range group {
			names = append(names, n)
		}
		sort.Strings(names)
		for _, n := range names {
			fmt.Fprintf(w, "  %s\t%d bytes\n", n, group[n])
		}
	}
	for _, c := range out.Converted {
		fmt.Fprintf(w, "  %s\tloaded as %s: %d bytes, error at most %.3g for values up to %.3g\n", c.Type, c.HeldAs, c.HeldBytes, c.Worst, c.Largest)
	}
	return w.Flush()
}
