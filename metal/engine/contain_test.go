package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/ref"
)

// journal is a log.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// panics is the number of panics in the log since the last call.
func (j *journal) panics() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := j.text.String()
	j.text.Reset()
	if strings.Contains(text, "secret") {
		return -1
	}
	return strings.Count(text, "a request failed in a panic")
}

// cursed is the context of a request that panics when the tokenizer looks at it.
type cursed struct{ context.Context }

func (cursed) Err() error { panic("secret") }

// TestAttackAPanicOverOneRequestEndsItAlone: the others get what they get without it, and
// nothing of the request is left.
func TestAttackAPanicOverOneRequestEndsItAlone(t *testing.T) {
	log := &journal{}
	e := ready(t, engine.Options{Sequences: 3, Log: slog.New(slog.NewTextHandler(log, nil))}, ref.Options{})
	other := engine.Request{Prompt: prompt("Hello"), Sampling: draws(7), MaxTokens: 40}
	want := ask(t, e, other)
	for _, work := range []string{"input", "next token", "output"} {
		e.SetLimits(guard.Limits{PausePrefill: true, Sequence: e.Status().Guard.Sequence + 1})
		alongside, err := e.Generate(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		r := engine.Request{Tenant: "broken", Prompt: prompt(strings.Repeat("Hello ", 20)), Sampling: draws(3), MaxTokens: 40}
		if work == "input" {
			_, err = e.Generate(cursed{t.Context()}, r)
			e.SetLimits(guard.Limits{Sequence: e.Status().Guard.Sequence + 1})
		} else {
			broken, berr := e.Generate(t.Context(), r)
			if berr != nil {
				t.Fatal(berr)
			}
			if n := engine.Spoil(t.Context(), e, "broken", work); n != 1 {
				t.Fatalf("%s: %d requests", work, n)
			}
			e.SetLimits(guard.Limits{Sequence: e.Status().Guard.Sequence + 1})
			err = collect(t, broken).finished.Err
		}
		var refusal *engine.Refusal
		if !errors.As(err, &refusal) || refusal == nil || refusal.Kind != engine.Internal || strings.Contains(refusal.Message, "secret") {
			t.Errorf("%s: %v", work, err)
		}
		if got := collect(t, alongside); got.text != want.text || got.finished.Err != nil {
			t.Errorf("%s: another request got %q, %v", work, got.text, got.finished.Err)
		}
		if n := log.panics(); n != 1 {
			t.Errorf("%s: %d panics in the log", work, n)
		}
	}
	if n := engine.Kept(e) + engine.Active(t.Context(), e); n != 0 {
		t.Errorf("%d requests are left", n)
	}
	if got := ask(t, e, other); got.text != want.text {
		t.Errorf("after it %q", got.text)
	}
}
