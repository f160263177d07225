package main

import (
	"context"
	"encoding/json"

	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// embedding is the JSON that embed prints.
type embedding struct {
	Embedding []float32 `json:"embedding"`
}

// embedText turns one text into the vector that the model's makers mean.
func embedText(ctx context.Context, e *env, args []string) error {
	f := e.flags("embed")
	modelPath := f.String("model", "", modelHelp)
	input := f.String("input", "", "text to embed (required)")
	alwaysJSON(f)
	bf := addBackend(f)
	if err := parse(f, args, "model", "input"); err != nil {
		return err
	}
	t, err := openText(ctx, *modelPath)
	if err != nil {
		return err
	}
	ids, err := t.Tokenizer.Encode(*input, tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		return err
	}
	s, err := openSession(ctx, *modelPath, bf)
	if err != nil {
		return err
	}
	defer s.Close()
	v, err := s.Embed(ctx, ids)
	if err != nil {
		return err
	}
	return json.NewEncoder(e.stdout).Encode(embedding{v})
}
