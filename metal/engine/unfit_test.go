//go:build !race

package engine_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/ref"
)

// A prompt that fits once the answers of another tenant have ended is not refused while they hold their KV. It
// waits for them, or they give way to it, and shorter prompts pass it.
func TestPromptWaitsForTheMemoryOfAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		cache       int
		preemptions bool
	}{"the cache is full": {cache: 1024, preemptions: true}, "the memory is": {cache: 4096}} {
		t.Run(name, func(t *testing.T) {
			b := &believed{}
			e := ready(t, engine.WithEstimator(engine.Options{ModelPath: deep(t, 8), ContextTokens: 1024, CacheTokens: c.cache, Sequences: 4}, b), ref.Options{}, paced)
			held := e.Status().Memory.Active() + engine.Overhead(e)
			var streams []*engine.Stream
			for range 2 { // each takes two blocks of 4 MiB
				r := long(300)
				r.Tenant, r.MaxTokens, r.IgnoreEnd = "a", 150, true
				s, err := e.Generate(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
				streams = append(streams, s)
			}
			b.cost.Store(200 << 10) // 128 tokens take 25 MiB
			publisher(e)(guard.Limits{Memory: held + 40<<20})
			r := long(600)
			r.Tenant = "b"
			s, err := e.Generate(t.Context(), r)
			if err != nil {
				t.Fatalf("the prompt is refused while answers hold memory: %v", err)
			}
			r = long(20)
			r.Tenant = "c"
			if a := ask(t, e, r); a.finished.Err != nil {
				t.Errorf("the shorter prompt is refused: %v", a.finished.Err)
			}
			if a := collect(t, s); a.finished.Err != nil {
				t.Errorf("the prompt ended with %v", a.finished.Err)
			}
			for _, s := range streams {
				if a := collect(t, s); a.finished.Err != nil {
					t.Errorf("an answer ended with %v", a.finished.Err)
				}
			}
			st := e.Status()
			if st.Preemptions > 0 != c.preemptions || st.Guard.Refused+st.Guard.Aborted > 0 {
				t.Errorf("afterwards %+v", st)
			}
		})
	}
}
