//go:build mlx

package main

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/wire"
)

func TestBothBackEndsAnswerAlikeAndMLXIsTheDefault(t *testing.T) {
	m := tinyModel(t)
	answers := map[string]generation{}
	for name, flags := range map[string][]string{"default": nil, "mlx": {"--backend", "mlx"}, "ref": {"--backend", "ref"}} {
		var gen generation
		out, stderr, code := runProgram(t, "", append([]string{"generate", "--model", m, "--prompt", "The capital", "--max-tokens", "12", "--json"}, flags...)...)
		if err := json.Unmarshal([]byte(out), &gen); code != exitOK || err != nil || len(gen.Tokens) == 0 {
			t.Fatalf("%s: exit code %d, %q (%v), %q", name, code, out, err, stderr)
		}
		answers[name] = gen
	}
	for _, name := range []string{"default", "mlx"} {
		if !slices.Equal(answers[name].Tokens, answers["ref"].Tokens) {
			t.Errorf("%s generated %v, ref %v", name, answers[name].Tokens, answers["ref"].Tokens)
		}
	}
	b, err := openBackend("", 0, "")
	if err != nil {
		t.Fatal(err)
	}
	if b.Name() != "mlx" {
		t.Errorf("the default is %s, want mlx", b.Name())
	}
}

func TestServeSaysThatItComputesWithMLX(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	p := serveProcess(t)
	p.awaitReady(t, ctx)
	h, err := p.client.Hello(ctx, &wire.HelloRequest{ProtocolVersions: []uint32{1}})
	if err != nil || h.GetBackend() != "mlx" {
		t.Errorf("the engine says it is %q (%v), want mlx", h.GetBackend(), err)
	}
	if _, err := p.client.Shutdown(ctx, &wire.ShutdownRequest{DrainMilliseconds: 100}); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the engine ended with %v\n%s", err, p.log)
	}
}
