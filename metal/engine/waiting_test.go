//go:build !race

package engine_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/ref"
)

// The tokens of prompts that wait are in memory until their requests end: they count against the
// limit, and a tenant has its share of what the slack of the limit has for them.
func TestPromptsThatWaitHaveAPartOfTheSlack(t *testing.T) {
	const tokens = 1<<18 - 8
	slack := footprint.EngineLimit(0)
	e := ready(t, engine.Options{ModelPath: toolsModel(t), LimitBytes: slack}, ref.Options{})
	e.SetLimits(guard.Limits{Sequence: 1, Memory: 1 << 40, PausePrefill: true}) // all requests wait
	ids := make([]int32, tokens)
	before, _ := engine.Held(e)
	var open []*engine.Stream
	prompts := map[string]int64{}
	for i := range 64 {
		tenant := string(rune('a' + i%2))
		s, err := e.Generate(t.Context(), engine.Request{Tenant: tenant, Tokens: ids, MaxTokens: 1})
		if err != nil {
			if i < 4 || !isKind(err, engine.QueueFull) {
				t.Fatalf("request %d: %v", i, err)
			}
			continue
		}
		open = append(open, s)
		prompts[tenant] += 4 * int64(s.PromptTokens)
	}
	all := prompts["a"] + prompts["b"]
	if held, _ := engine.Held(e); held-before < all || held-before > all+all/2 || all > slack*5/8 || prompts["b"] < 8<<20 {
		t.Errorf("%d requests wait with %d bytes of tokens, of which %d count; the slack is %d", len(open), all, held-before, slack)
	}
	for _, s := range open {
		s.Cancel()
		for ev, err := s.Next(t.Context()); err == nil && ev.Finished == nil; ev, err = s.Next(t.Context()) {
		}
		s.Close()
	}
	if held, _ := engine.Held(e); held != before {
		t.Errorf("%d bytes are counted after all requests ended", held-before)
	}
}
