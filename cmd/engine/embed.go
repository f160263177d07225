package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine"
)

// embedding is the JSON that embed prints for each input.
type embedding struct {
	Embedding []float32 `json:"embedding"`
	// Tokens of all inputs.
	Tokens int `json:"tokens"`
}

// texts is a flag that may be given again and again.
type texts []string

func (t *texts) String() string     { return strings.Join(*t, " ") }
func (t *texts) Set(v string) error { *t = append(*t, v); return nil }

// readerFlags are common to embed and rerank.
type readerFlags struct {
	model   *string
	options embed.Options
	backend backendFlags
}

func addReader(f *flag.FlagSet) *readerFlags {
	r := &readerFlags{model: f.String("model", "", modelHelp)}
	f.StringVar(&r.options.Instruction, "instruction", "", "instruction that describes the query's purpose, for models that accept one")
	f.BoolVar(&r.options.Truncate, "truncate", false, "truncate texts that exceed the model's context; otherwise such texts are an error")
	r.backend = addBackend(f)
	return r
}

func (r *readerFlags) open(ctx context.Context, task model.Task) (*engine.Reader, error) {
	b, err := r.backend.open()
	if err != nil {
		return nil, err
	}
	return engine.OpenReader(ctx, *r.model, b, task)
}

// misused converts an error of unreadable input to a usage error.
func misused(err error) error {
	for _, target := range []error{embed.ErrTooLong, embed.ErrEmpty, embed.ErrPrompt} {
		if errors.Is(err, target) {
			return usageError{err}
		}
	}
	return err
}

// embedTexts turns texts into the vectors that the model's makers mean, one line
// of JSON for each.
func embedTexts(ctx context.Context, e *env, args []string) error {
	f := e.flags("embed")
	r := addReader(f)
	var inputs texts
	f.Var(&inputs, "input", "text to embed (required; may be repeated)")
	f.StringVar(&r.options.Prompt, "prompt", "", "name of the model's prompt to prepend to each text, such as query")
	alwaysJSON(f)
	if err := parse(f, args, "model", "input"); err != nil {
		return err
	}
	s, err := r.open(ctx, model.Embed)
	if err != nil {
		return err
	}
	defer s.Close()
	vectors, tokens, err := s.EmbedEach(ctx, inputs, r.options)
	if err != nil {
		return misused(err)
	}
	out := json.NewEncoder(e.stdout)
	for i, v := range vectors {
		if err := out.Encode(embedding{v, tokens[i]}); err != nil {
			return err
		}
	}
	return nil
}

// ranking is the JSON that rerank prints.
type ranking struct {
	Results []ranked `json:"results"`
	Tokens  int      `json:"tokens"`
}

// ranked is one document; Index counts those given from 0.
type ranked struct {
	Index int     `json:"index"`
	Score float32 `json:"score"`
}

// rerank scores documents for a query, and prints them with the best first.
func rerank(ctx context.Context, e *env, args []string) error {
	f := e.flags("rerank")
	r := addReader(f)
	var documents texts
	f.Var(&documents, "document", "document to score (required; may be repeated)")
	query := f.String("query", "", "query to score the documents for (required)")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args, "model", "query", "document"); err != nil {
		return err
	}
	s, err := r.open(ctx, model.Rerank)
	if err != nil {
		return err
	}
	defer s.Close()
	scores, tokens, err := s.Rerank(ctx, *query, documents, r.options)
	if err != nil {
		return misused(err)
	}
	out := ranking{Tokens: tokens}
	for i, v := range scores {
		out.Results = append(out.Results, ranked{i, v})
	}
	slices.SortStableFunc(out.Results, func(a, b ranked) int { return cmp.Compare(b.Score, a.Score) })
	if *asJSON {
		return json.NewEncoder(e.stdout).Encode(out)
	}
	for _, d := range out.Results {
		fmt.Fprintf(e.stdout, "%.6f  %s\n", d.Score, documents[d.Index])
	}
	return nil
}
