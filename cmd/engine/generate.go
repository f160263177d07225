package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/text"
)

// generation is the JSON that generate prints.
type generation struct {
	PromptTokens []int32 `json:"promptTokens"`
	Tokens       []int32 `json:"tokens"`
	Text         string  `json:"text"`
	FinishReason string  `json:"finishReason"`
}

func generate(ctx context.Context, e *env, args []string) error {
	f := e.flags("generate")
	modelPath := f.String("model", "", modelHelp)
	adapter := f.String("adapter", "", "folder of a LoRA adapter of the model, as peft or mlx-lm writes it")
	prompt := f.String("prompt", "", "prompt text, or with --chat a user message")
	tokensFile := f.String("tokens-file", "", "file with a JSON array of token IDs, instead of --prompt")
	asChat := f.Bool("chat", false, "apply the model's chat template to the prompt")
	maxTokens := f.Int("max-tokens", 256, "maximum number of tokens to generate; 0 means up to the end of the context")
	temperature := f.Float64("temperature", 0, "sampling temperature; 0 selects the most likely token")
	seed := f.Uint64("seed", 0, "random seed for sampling")
	asJSON := f.Bool("json", false, "print one JSON object at the end instead of streaming")
	bf := addBackend(f)
	if err := parse(f, args, "model"); err != nil {
		return err
	}
	params := sample.Greedy()
	params.Temperature, params.Seed = *temperature, *seed
	req := engine.Request{Sampling: &params, MaxTokens: *maxTokens}
	switch {
	case (*prompt == "") == (*tokensFile == ""):
		return usagef("want exactly one of --prompt and --tokens-file")
	case *tokensFile != "" && *asChat:
		return usagef("--chat requires --prompt")
	case *tokensFile != "":
		ids, err := readTokens(*tokensFile)
		if err != nil {
			return usageError{err}
		}
		req.Tokens = ids
	case *asChat:
		req.Chat = &text.Chat{Messages: []chat.Message{{Role: "user", Content: *prompt}}}
	default:
		req.Prompt = prompt
	}
	backend, err := bf.open()
	if err != nil {
		return err
	}
	opts := engine.Options{ModelPath: *modelPath, Backend: backend}
	if *adapter != "" {
		req.Adapter = "adapter"
		opts.Adapters = []engine.Adapter{{Name: req.Adapter, Path: *adapter}}
	}
	eng := engine.Start(opts)
	defer stopNow(eng)
	if err := eng.AwaitReady(ctx); err != nil {
		return err
	}
	return answer(ctx, e, eng, req, *asJSON)
}

// answer streams one answer to standard output.
func answer(ctx context.Context, e *env, eng *engine.Engine, req engine.Request, asJSON bool) error {
	stream, err := eng.Generate(ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	out := generation{PromptTokens: stream.Prompt(), Tokens: []int32{}}
	for {
		ev, err := stream.Next(ctx)
		if err != nil {
			return err
		}
		out.Text += ev.Text
		out.Tokens = append(out.Tokens, ev.Tokens...)
		if !asJSON {
			if _, err := io.WriteString(e.stdout, ev.Text); err != nil {
				return err
			}
		}
		if ev.Finished == nil {
			continue
		}
		if ev.Finished.Err != nil {
			return ev.Finished.Err
		}
		out.FinishReason = string(ev.Finished.Reason)
		if asJSON {
			return json.NewEncoder(e.stdout).Encode(out)
		}
		_, err = fmt.Fprintln(e.stdout)
		return err
	}
}

// stopNow ends an engine without waiting for requests.
func stopNow(eng *engine.Engine) {
	expired, cancel := context.WithCancel(context.Background())
	cancel()
	eng.Shutdown(expired)
}

func readTokens(path string) ([]int32, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	var ids []int32
	if err := json.Unmarshal(b, &ids); err != nil {
		return nil, fmt.Errorf("read tokens: %s is not a JSON array of token IDs: %w", path, err)
	}
	return ids, nil
}
