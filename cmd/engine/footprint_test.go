package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/footprint"
)

func TestFootprintPrintsEachTermAsAnEstimate(t *testing.T) {
	m := tinyModel(t)
	args := []string{"footprint", "--model", m, "--context", "256", "--sequences", "2", "--cache-tokens", "512", "--cache-memory", "1000000"}
	stdout, stderr, code := runProgram(t, "", append(args, "--backend", "ref", "--json")...)
	if code != exitOK {
		t.Fatalf("code %d: %s", code, stderr)
	}
	var out footprintOutput
	if err := json.Unmarshal([]byte(stdout), &out); err != nil {
		t.Fatal(err)
	}
	sum := out.Weights + out.KV + out.Transient + out.Pooled + out.PrefixCache + out.Overhead
	if !out.Estimate || out.Backend != "ref" || out.Context != 256 || out.Sequences != 2 || out.CacheTokens != 512 ||
		out.KV != 512*2*2*16*4*2 || out.PrefixCache != 1_000_000 || out.Total != sum || out.Limit != footprint.EngineLimit(sum) || out.Cache != out.Limit/16 {
		t.Errorf("printed %+v, the terms are %d", out, sum)
	}
	stdout, stderr, code = runProgram(t, "", args...)
	for _, want := range []string{"estimate", "weights", "KV cache", "step buffers", "pooled", "prefix cache", "process", "total", "process limit", " bytes", " MiB", "back end: largest"} {
		if code != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("code %d, %q, %s; want %q", code, stdout, stderr, want)
		}
	}
}

func TestFootprintTakesTheFlagsOfServe(t *testing.T) {
	var out footprintOutput
	stdout, stderr, code := runProgram(t, "", "footprint", "--model", tinyModel(t), "--sequences", "3", "--json")
	if code != exitOK || json.Unmarshal([]byte(stdout), &out) != nil || out.Context != 512 || out.CacheTokens != 3*512 || out.Backend != "largest" {
		t.Errorf("code %d, %+v, %s", code, out, stderr)
	}
}

func TestFootprintSaysWhatIsWrong(t *testing.T) {
	m, empty := tinyModel(t), t.TempDir()
	broken := filepath.Join(t.TempDir(), "broken.gguf")
	if err := os.WriteFile(broken, []byte("GGUF and then nothing of use"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no model":                    {code: exitUsage, says: "--model"},
		"a model that is none":        {args: []string{"--model", empty}, code: exitModel, says: "contains neither"},
		"a model that is broken":      {args: []string{"--model", broken}, code: exitModel},
		"a context that is too long":  {args: []string{"--model", m, "--context", "513"}, code: exitUsage, says: "supports 512 tokens"},
		"a context below nothing":     {args: []string{"--model", m, "--context", "-1"}, code: exitUsage, says: "unsupported context"},
		"no sequences":                {args: []string{"--model", m, "--sequences", "0"}, code: exitUsage, says: "--sequences is 0"},
		"more sequences than can be":  {args: []string{"--model", m, "--sequences", "9000000"}, code: exitUsage, says: "--sequences is 9000000"},
		"fewer cache tokens than one": {args: []string{"--model", m, "--context", "100", "--cache-tokens", "99"}, code: exitUsage, says: "unsupported context"},
		"a prefix cache below zero":   {args: []string{"--model", m, "--cache-memory", "-1"}, code: exitUsage, says: "prefix cache of -1"},
		"cache tokens beyond all":     {args: []string{"--model", m, "--cache-tokens", "9223372036854775807"}, code: exitUsage, says: "unsupported context"},
		"an unknown back end":         {args: []string{"--model", m, "--backend", "abacus"}, code: exitUsage, says: "abacus"},
		"a word that is no flag":      {args: []string{"--model", m, "more"}, code: exitUsage, says: "more"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := runProgram(t, "", append([]string{"footprint"}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.says) || stdout != "" {
				t.Errorf("code %d, %q, want %d and %q", code, stderr, c.code, c.says)
			}
		})
	}
}
