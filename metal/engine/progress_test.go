package engine_test

import (
	"context"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// Figures begin with what was restored, which counts as processed, only grow, end with
// the whole prompt, and come before all text.
func TestProgressOfAPromptIsReportedWhereItIsWanted(t *testing.T) {
	c := tinymodel.Default()
	c.Context = 2048
	e := ready(t, engine.Options{ModelPath: model(t, c), PrefixCache: true}, ref.Options{})
	long := strings.Repeat("a long prompt. ", 80)
	uncached := ready(t, engine.Options{ModelPath: model(t, c)}, ref.Options{})
	for _, round := range []struct {
		name        string
		e           *engine.Engine
		wantsCached bool
	}{{"first", e, false}, {"cached", e, true}, {"without a prefix cache", uncached, false}} {
		s, err := round.e.Generate(context.Background(), engine.Request{Prompt: prompt(long), MaxTokens: 2, Progress: true})
		if err != nil {
			t.Fatal(err)
		}
		var seen []engine.Progress
		text := false
		for {
			ev, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if p := ev.Progress; p != nil {
				if text || len(seen) > 0 && p.Processed <= seen[len(seen)-1].Processed || p.Cached > p.Processed {
					t.Errorf("%s: progress %+v after %+v, text %v", round.name, *p, seen, text)
				}
				seen = append(seen, *p)
			}
			text = text || len(ev.Tokens) > 0
			if ev.Finished != nil {
				break
			}
		}
		if len(seen) < 2 || seen[0].Processed != seen[0].Cached || seen[len(seen)-1].Processed != s.PromptTokens || (seen[0].Cached > 0) != round.wantsCached {
			t.Errorf("%s, %d tokens: progress %+v", round.name, s.PromptTokens, seen)
		}
	}
	s, err := e.Generate(context.Background(), engine.Request{Prompt: prompt(long), MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ev.Progress != nil {
			t.Errorf("%+v without being asked for", *ev.Progress)
		}
		if ev.Finished != nil {
			return
		}
	}
}
