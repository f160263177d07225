package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
)

// slow is a form whose states take work: at each character it may be in any of 900 places.
var slow = form(grammar.EBNF, "root ::= [a-z ]{40} "+strings.Repeat("[a-z ]? ", 900))

// gated is an engine whose steps wait at the gate once it is closed.
func gated(t *testing.T) (e *engine.Engine, closed *atomic.Bool, gate chan struct{}) {
	t.Helper()
	closed, gate = new(atomic.Bool), make(chan struct{})
	e = ready(t, engine.Options{Sequences: 3}, ref.Options{}, func(op string) error {
		if op == "Embed" && closed.Load() {
			<-gate
		}
		return nil
	})
	return e, closed, gate
}

func heldToSlow(tokens int) engine.Request {
	p := sample.Greedy()
	return engine.Request{Prompt: prompt("Hello"), Sampling: &p, MaxTokens: tokens, Constraint: slow}
}

// stalled begins a request whose masks stay away until release is called, before its first
// step.
func stalled(t *testing.T, e *engine.Engine, closed *atomic.Bool, gate chan struct{}) (s *engine.Stream, release func()) {
	t.Helper()
	all, release := stalledAll(t, e, closed, gate, 1)
	return all[0], release
}

// stalledAll is stalled for several requests.
func stalledAll(t *testing.T, e *engine.Engine, closed *atomic.Bool, gate chan struct{}, n int) (all []*engine.Stream, release func()) {
	t.Helper()
	closed.Store(true)
	for range n {
		s, err := e.Generate(t.Context(), heldToSlow(30))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	var err error
	if release, err = engine.StallConstraint(e, slow.Spec, strings.Repeat("zyxwvutsrq", 20)); err != nil {
		t.Fatal(err)
	}
	closed.Store(false)
	close(gate)
	return all, release
}

func TestAttackALateMaskMakesItsOwnRowWait(t *testing.T) {
	e, closed, gate := gated(t)
	want := ask(t, e, heldToSlow(30))
	alone := ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: draws(7), MaxTokens: 60})
	late, release := stalled(t, e, closed, gate)
	beside := ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: draws(7), MaxTokens: 60})
	if beside.finished.Err != nil || !slices.Equal(beside.tokens, alone.tokens) {
		t.Errorf("the other row ended with %+v and %q, alone %q", beside.finished, beside.text, alone.text)
	}
	if n := e.Status().Running; n != 1 {
		t.Errorf("%d requests are running while the mask is late, want 1", n)
	}
	facts, _ := e.Facts()
	if n, want := engine.ParkedBytes(e), 4*facts.VocabularySize; n != want {
		t.Errorf("%d bytes of logits are counted while they wait, want %d", n, want)
	}
	release()
	if got := collect(t, late); got.finished.Err != nil || !slices.Equal(got.tokens, want.tokens) || got.text != want.text {
		t.Errorf("the late row ended with %+v and %q, want %q", got.finished, got.text, want.text)
	}
	if n := engine.ParkedBytes(e); n != 0 {
		t.Errorf("%d bytes of logits are counted at the end", n)
	}
}

func TestARequestWhoseMaskIsLateIsCancelledAtOnce(t *testing.T) {
	e, closed, gate := gated(t)
	late, release := stalled(t, e, closed, gate)
	ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 30}) // the row left its step by now
	late.Cancel()
	if got := collect(t, late); got.finished.Err == nil || got.finished.Err.Kind != engine.Cancelled {
		t.Errorf("it ended with %+v", got.finished)
	}
	waitFor(t, "the return of its memory", func() bool { return e.Status().Memory.KV == 0 })
	release()
	if got := ask(t, e, heldToSlow(5)); got.finished.Err != nil {
		t.Errorf("the next one ended with %+v", got.finished)
	}
}

// Requests that generate nothing because their masks are late do not keep all sequences from
// another tenant, and continue when their masks are there.
func TestLateMasksOfOneTenantGiveWayToAnother(t *testing.T) {
	e, closed, gate := gated(t)
	want := ask(t, e, heldToSlow(30))
	late, release := stalledAll(t, e, closed, gate, 3)
	facts, _ := e.Facts()
	waitFor(t, "all sequences wait for masks", func() bool { return engine.ParkedBytes(e) == 3*4*facts.VocabularySize })
	if other := ask(t, e, engine.Request{Prompt: prompt("Hello"), Tenant: "other", MaxTokens: 10}); other.finished.Err != nil {
		t.Errorf("the other tenant's request ended with %+v", other.finished)
	}
	release()
	for _, s := range late {
		if got := collect(t, s); got.finished.Err != nil || !slices.Equal(got.tokens, want.tokens) {
			t.Errorf("a late row ended with %+v and %q, want %q", got.finished, got.text, want.text)
		}
	}
}

func TestAConstraintOverItsBudgetOfWorkIsRefusedWithItsField(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	for name, c := range map[string]*engine.Constraint{
		"to compile": form(grammar.Regex, strings.Repeat(".?", 3500)),
		"to follow":  form(grammar.EBNF, "root ::= "+strings.Repeat("w? ", 1500)+"\nw ::= [a-z ]+ | [a-y ]+"),
	} {
		_, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 4, Constraint: c})
		var r *engine.Refusal
		if !errors.As(err, &r) || r.Kind != engine.Invalid || r.Param != "response_format" || !strings.Contains(r.Message, "the constraint") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
