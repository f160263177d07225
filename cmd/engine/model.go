package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"text/tabwriter"

	"metalfleet.dev/metalfleet/metal/engine"
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
	tokensFile := f.String("tokens-file", "", "file with a JSON array of token ids (required)")
	alwaysJSON(f)
	top := f.Int("top", 5, "how many of the largest logits to print")
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
	Architecture string           `json:"architecture"`
	Name         string           `json:"name,omitempty"`
	Quantization string           `json:"quantization"`
	Facts        any              `json:"facts"`
	Tensors      int              `json:"tensors"`
	FileBytes    int64            `json:"fileBytes"`
	BytesByPart  map[string]int64 `json:"bytesByPart"`
	BytesByType  map[string]int64 `json:"bytesByType"`
}

func inspect(_ context.Context, e *env, args []string) error {
	f := e.flags("inspect")
	modelPath := f.String("model", "", modelHelp)
	asJSON := f.Bool("json", false, "print one JSON object")
	if err := parse(f, args, "model"); err != nil {
		return err
	}
	file, err := weights.Open(*modelPath)
	if err != nil {
		return err
	}
	defer file.Close()
	facts, err := file.Facts()
	if err != nil {
		return err
	}
	out := inspection{Architecture: facts.Architecture, Name: facts.Name, Quantization: facts.Quantization, Facts: facts,
		Tensors: len(file.Entries()), FileBytes: file.Bytes(), BytesByPart: map[string]int64{}, BytesByType: map[string]int64{}}
	for _, t := range file.Entries() {
		out.BytesByPart[t.Part()] += t.Bytes
		out.BytesByType[t.Stored()] += t.Bytes
	}
	if *asJSON {
		return json.NewEncoder(e.stdout).Encode(out)
	}
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "architecture\t%s\nname\t%s\nquantization\t%s\nlayers\t%d\nhidden\t%d\nheads\t%d (%d for keys and values) of %d\nvocabulary\t%d\ncontext\t%d tokens\nfile\t%d bytes\nweights\t%d bytes in %d tensors\n",
		out.Architecture, out.Name, out.Quantization, facts.Layers, facts.HiddenSize, facts.QueryHeads, facts.KeyValueHeads, facts.HeadSize,
		facts.VocabularySize, facts.ContextTokens, out.FileBytes, facts.WeightBytes, out.Tensors)
	if facts.Experts > 0 {
		fmt.Fprintf(w, "experts\t%d, of which a token goes through %d\n", facts.Experts, facts.ExpertsPerToken)
	}
	if facts.WindowLayers > 0 {
		fmt.Fprintf(w, "window\t%d tokens in %d layers of %d\n", facts.WindowTokens, facts.WindowLayers, facts.Layers)
	}
	if facts.RecurrentLayers > 0 {
		fmt.Fprintf(w, "recurrent\t%d layers of %d, with a state of %d bytes a sequence\n", facts.RecurrentLayers, facts.Layers, facts.RecurrentStateBytes)
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
	return w.Flush()
}
