package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/wire"
)

// adaptedModel writes a model and an adapter of it.
func adaptedModel(t *testing.T) (model, adapter string) {
	t.Helper()
	dir, c := t.TempDir(), tinymodel.Default()
	model, adapter = filepath.Join(dir, "model"), filepath.Join(dir, "adapter")
	if err := tinymodel.WriteFolder(model, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)}); err != nil {
		t.Fatal(err)
	}
	if err := (tinymodel.Adapter{Rank: 4, Alpha: 16}).Write(adapter, c); err != nil {
		t.Fatal(err)
	}
	return model, adapter
}

func generated(t *testing.T, args ...string) []int32 {
	t.Helper()
	var gen generation
	out, stderr, code := runProgram(t, "", append([]string{"generate", "--prompt", "The capital", "--max-tokens", "7", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &gen); code != exitOK || err != nil {
		t.Fatalf("generate printed %q (%v), %q", out, err, stderr)
	}
	return gen.Tokens
}

// An engine process answers with the adapter that a request names, as generate does, also
// where it is confined to its files.
func TestAServedEngineAnswersWithItsAdapter(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	model, adapter := adaptedModel(t)
	want := map[string][]int32{"": generated(t, "--model", model), "a": generated(t, "--model", model, "--adapter", adapter)}
	if slices.Equal(want[""], want["a"]) {
		t.Fatalf("the adapter changes nothing: %v", want)
	}
	p := serveConfig(t, wire.Config{ReplicaUID: "uid", Epoch: 1, ModelPath: model, ContextTokens: 256, Sequences: 2, CacheTokens: 512, LimitBytes: 1 << 30,
		Adapters: []wire.Adapter{{Name: "a", Path: adapter, Digest: "d"}}})
	p.awaitReady(t, ctx)
	for name, tokens := range want {
		s, err := p.client.Generate(ctx, &wire.GenerateRequest{Input: &wire.GenerateRequest_Prompt{Prompt: "The capital"}, MaxTokens: 7, Adapter: name, Sampling: &wire.Sampling{Temperature: new(float32)}})
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for {
			ev, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, ev.GetDelta().GetTokens()...); ev.GetFinished() != nil {
				break
			}
		}
		if !slices.Equal(got, tokens) {
			t.Errorf("adapter %q: the process gave %v, generate %v", name, got, tokens)
		}
	}
}
