package footprint

import (
	"errors"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
)

// smollm2 are the dimensions of SmolLM2-135M-Instruct in float32 with Q4_1 weights.
var smollm2 = model.Facts{Architecture: "llama", Layers: 30, GrowingLayers: 30, HiddenSize: 576, FeedForwardSize: 1536,
	QueryHeads: 9, KeyValueHeads: 3, HeadSize: 64, VocabularySize: 49152, ContextTokens: 8192, KeyValueElementBytes: 4, WeightBytes: 98_000_000}

// llama8B are an 8B model's at half precision: 32 layers, 8 KV heads of 128.
var llama8B = model.Facts{Architecture: "llama", Layers: 32, GrowingLayers: 32, HiddenSize: 4096, FeedForwardSize: 14336,
	QueryHeads: 32, KeyValueHeads: 8, HeadSize: 128, VocabularySize: 128256, ContextTokens: 131072, KeyValueElementBytes: 2, WeightBytes: 5 * GiB}

func TestEstimateCountsTrueKVHeads(t *testing.T) {
	got, err := Estimate(llama8B, Context{Tokens: 131072, Sequences: 1, CacheTokens: 131072})
	if err != nil || got.KV != 16*GiB {
		t.Errorf("KV of an 8B model at 128k: %d (%v), want 16 GiB: grouped-query heads count, not query heads", got.KV, err)
	}
	small, err := Estimate(smollm2, Context{Tokens: 2048, Sequences: 4, CacheTokens: 4096})
	if err != nil || small.KV != 4096*30*3*64*4*2 || small.Weights != 98_000_000 {
		t.Errorf("got %+v (%v)", small, err)
	}
}

func TestEstimateRefusesUnknownDimensions(t *testing.T) {
	f := smollm2
	f.KeyValueHeads = 0
	if _, err := Estimate(f, Context{Tokens: 16, Sequences: 1, CacheTokens: 16}); !errors.Is(err, model.ErrIncomplete) {
		t.Errorf("unknown KV heads: %v, want ErrIncomplete", err)
	}
	f = smollm2
	f.HeadSize = 1 << 60
	if _, err := Estimate(f, Context{Tokens: 1 << 20, Sequences: 1, CacheTokens: 1 << 20}); err == nil {
		t.Error("a header with an absurd head size was believed")
	}
}

func TestEstimateRefusesImpossibleContexts(t *testing.T) {
	for name, c := range map[string]Context{
		"no tokens":                   {Sequences: 1, CacheTokens: 1},
		"no sequences":                {Tokens: 1, CacheTokens: 1},
		"fewer cache tokens than one": {Tokens: 100, Sequences: 1, CacheTokens: 99},
	} {
		if _, err := Estimate(smollm2, c); err == nil || !strings.Contains(err.Error(), "cannot be served") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEstimateNeverDecreases(t *testing.T) {
	base := Context{Tokens: 1024, Sequences: 2, CacheTokens: 4096}
	t0, _ := Estimate(smollm2, base)
	for name, c := range map[string]Context{
		"tokens":    {Tokens: 2048, Sequences: 2, CacheTokens: 4096},
		"sequences": {Tokens: 1024, Sequences: 3, CacheTokens: 4096},
		"cache":     {Tokens: 1024, Sequences: 2, CacheTokens: 8192},
	} {
		if t1, err := Estimate(smollm2, c); err != nil || t1.Total() <= t0.Total() {
			t.Errorf("more %s: %d after %d (%v)", name, t1.Total(), t0.Total(), err)
		}
	}
}

// TestM11ExplicitCeilingIsAHardPromise and the other terms, as one table.
func TestM11ExplicitCeilingIsAHardPromise(t *testing.T) {
	for name, tc := range map[string]struct {
		host Host
		want Limits
	}{
		"a small Mac leaves 4 GiB":                          {Host{Total: 16 * GiB}, Limits{Ceiling: 12 * GiB, Term: Static, Capacity: 12 * GiB * 900 / 1000}},
		"balanced leaves 6 GiB":                             {Host{Total: 64 * GiB}, Limits{58 * GiB, Static, 58 * GiB * 900 / 1000}},
		"the Metal cap binds":                               {Host{Total: 64 * GiB, MetalCap: 48 * GiB}, Limits{48 * GiB, MetalCap, 48 * GiB * 900 / 1000}},
		"the administrator's number binds":                  {Host{Total: 48 * GiB, MetalCap: 44 * GiB, Explicit: 40 * GiB}, Limits{40 * GiB, Explicit, 36 * GiB}},
		"the administrator's number never loosens":          {Host{Total: 48 * GiB, MetalCap: 36 * GiB, Explicit: 100 * GiB}, Limits{36 * GiB, MetalCap, 36 * GiB * 900 / 1000}},
		"a 512 GiB Mac is not denied a model of 420 GiB":    {Host{Total: 512 * GiB, MetalCap: 464 * GiB, Policy: Safe}, Limits{464 * GiB, MetalCap, 440 * GiB}},
		"a Mac smaller than what it must leave has no room": {Host{Total: 3 * GiB}, Limits{0, Static, 0}},
		"custom ignores the rule for small machines":        {Host{Total: 8 * GiB, Policy: Custom}, Limits{6 * GiB, Static, 6 * GiB * 850 / 1000}},
	} {
		if got := LimitsOf(tc.host); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
