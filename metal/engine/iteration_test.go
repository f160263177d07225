package engine_test

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
)

// TestTheStatusHasTheDurationOfAnIteration: an agent that sees it grow knows that the loop hangs,
// though the engine answers. A loop without work takes no time, however long it waits.
func TestTheStatusHasTheDurationOfAnIteration(t *testing.T) {
	for name, tc := range map[string]struct {
		o   engine.Options
		ask func(e *engine.Engine)
	}{
		"generate": {ask: func(e *engine.Engine) {
			ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: draws(1), MaxTokens: 2})
		}},
		"embed": {o: engine.Options{ModelPath: readerModel(t, "xlm-roberta cls")}, ask: func(e *engine.Engine) {
			if _, err := e.Embed(t.Context(), engine.EmbedRequest{Texts: []string{"the man is eating"}}); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := holding()
			e := ready(t, tc.o, ref.Options{}, h.fault)
			waits := func() bool { return e.Status().Iteration == 0 }
			until(t, waits)
			h.on.Store(true)
			ended := make(chan struct{})
			go func() { defer close(ended); tc.ask(e) }()
			<-h.in
			last := e.Status().Iteration
			for range 3 {
				until(t, func() bool { return e.Status().Iteration >= last+time.Millisecond })
				last = e.Status().Iteration
			}
			h.on.Store(false)
			close(h.gate)
			<-ended
			until(t, waits)
		})
	}
}
