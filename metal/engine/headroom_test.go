package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/ref"
)

// asked waits for the guard's question.
func asked(t *testing.T, e *engine.Engine, number int64) guard.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		changed := e.Changed()
		if g := e.Status().Guard; g.HeadroomRequest >= number {
			return g
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the guard does not ask")
		}
	}
}

func TestHeadroomIsRequestedOnceAndMeasured(t *testing.T) {
	const need = 100 << 20 // of any chunk
	for name, c := range map[string]struct {
		answer int64
		runs   bool
	}{"room was made": {answer: 2 * need, runs: true}, "none could be made": {answer: need / 2, runs: false}} {
		t.Run(name, func(t *testing.T) {
			b := &believed{}
			e := ready(t, engine.WithEstimator(engine.Options{LimitBytes: 1 << 30}, b), ref.Options{})
			publish := publisher(e)
			limits := guard.Limits{Memory: 1 << 30, HeadroomKnown: true, Headroom: need / 2, CanMakeRoom: true}
			publish(limits)
			r := engine.Request{Tokens: []int32{30}, MaxTokens: 2}
			b.cost.Store(need)
			type outcome struct {
				stream *engine.Stream
				err    error
			}
			done := make(chan outcome, 1)
			go func() {
				s, err := e.Generate(context.Background(), r)
				done <- outcome{stream: s, err: err}
			}()
			g := asked(t, e, 1)
			if g.HeadroomRequest != 1 || g.HeadroomBytes != need {
				t.Errorf("asked for %+v, want %d bytes", g, need)
			}
			publish(limits) // a poll that comes before the answer changes nothing
			limits.Headroom, limits.HeadroomAnswered = c.answer, g.HeadroomRequest
			publish(limits)
			o := <-done
			if c.runs {
				if o.err != nil {
					t.Fatalf("after room was made: %v", o.err)
				}
				if a := collect(t, o.stream); a.finished.Err != nil {
					t.Errorf("it ended with %v", a.finished.Err)
				}
			} else if r := new(engine.Refusal); !errors.As(o.err, &r) || r.Needed != need || r.Kind != engine.OutOfMemory || r.Limit-r.Used >= need {
				t.Errorf("error %v, want a refusal with figures", o.err)
			}
			if g := e.Status().Guard; g.HeadroomRequest != 1 {
				t.Errorf("asked %d times for one prompt", g.HeadroomRequest)
			}
		})
	}
}

// If nothing can be unloaded, or the engine's own ceiling forbids the prompt,
// the refusal is immediate.
func TestHeadroomIsNotRequestedWhereItCannotHelp(t *testing.T) {
	b := &believed{}
	b.cost.Store(500 << 20)
	e := ready(t, engine.WithEstimator(engine.Options{}, b), ref.Options{})
	publish := publisher(e)
	for name, l := range map[string]guard.Limits{
		"nothing can be unloaded":        {Memory: 1 << 30, HeadroomKnown: true, Headroom: 1 << 20},
		"its own ceiling forbids it":     {Memory: 400 << 20, HeadroomKnown: true, Headroom: 1 << 20, CanMakeRoom: true},
		"headroom is not what is short":  {Memory: 400 << 20, HeadroomKnown: true, Headroom: 1 << 40, CanMakeRoom: true},
		"nothing is known of headroom":   {Memory: 400 << 20, CanMakeRoom: true},
		"only estimates, no ceiling yet": {HeadroomKnown: true, Headroom: 1},
	} {
		publish(l)
		began := time.Now()
		if r := refusalOf(t, e, engine.Request{Tokens: []int32{30}}); r.Kind != engine.OutOfMemory {
			t.Errorf("%s: %+v", name, r)
		}
		if took := time.Since(began); took > 9*time.Second { // an answer is waited for longer
			t.Errorf("%s: the refusal took %v", name, took)
		}
	}
	if g := e.Status().Guard; g.HeadroomRequest != 0 {
		t.Errorf("asked %d times", g.HeadroomRequest)
	}
}

func TestPromptWaitingForHeadroomDelaysNoStream(t *testing.T) {
	b := &believed{}
	e := ready(t, engine.WithEstimator(engine.Options{Sequences: 2}, b), ref.Options{}, paced)
	publish := publisher(e)
	limits := guard.Limits{Memory: 1 << 30, HeadroomKnown: true, Headroom: 1 << 20, CanMakeRoom: true}
	publish(limits)
	streaming, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("Hello"), Sampling: draws(1), MaxTokens: 480})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := streaming.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	b.called = func(footprint.Prefill) { b.cost.Store(min(calls.Add(1)-1, 1) << 20) } // dear from the second estimate on
	waiting, err := e.Generate(t.Context(), engine.Request{Tokens: []int32{30, 31, 32}, Sampling: draws(2), MaxTokens: 2})
	if err != nil {
		t.Fatal(err)
	}
	g := asked(t, e, 1)
	before := e.Status().GeneratedTokens
	waitFor(t, "more of the other answer, or a refusal", func() bool {
		st := e.Status()
		return st.GeneratedTokens > before+20 || st.Guard.Refused+st.Guard.Aborted > 0
	})
	if st := e.Status(); st.Queued+st.Running < 1 || st.Guard.Refused+st.Guard.Aborted > 0 {
		t.Errorf("while the host is asked: %+v", st)
	}
	limits.Headroom, limits.HeadroomAnswered = 100<<20, g.HeadroomRequest
	publish(limits)
	if a := collect(t, waiting); a.finished.Err != nil {
		t.Errorf("after room was made: %v", a.finished.Err)
	}
	streaming.Cancel()
	collect(t, streaming)
}

// A prompt for which the agent is asked to make room does not delay the short prompt of
// another tenant.
func TestPromptWaitingForHeadroomDelaysNoOtherPrompt(t *testing.T) {
	b := &believed{}
	e := ready(t, engine.WithEstimator(engine.Options{Sequences: 3}, b), ref.Options{})
	publish := publisher(e)
	limits := guard.Limits{Memory: 1 << 30, HeadroomKnown: true, Headroom: 1 << 20, CanMakeRoom: true}
	publish(limits)
	var calls atomic.Int64
	b.called = func(p footprint.Prefill) { // the long prompt is dear from its second estimate on
		b.cost.Store(0)
		if p.New > 100 && calls.Add(1) > 1 {
			b.cost.Store(2 << 20)
		}
	}
	long := make([]int32, 120)
	for i := range long {
		long[i] = 30
	}
	waiting, err := e.Generate(t.Context(), engine.Request{Tokens: long, Sampling: draws(2), MaxTokens: 2, Tenant: "a"})
	if err != nil {
		t.Fatal(err)
	}
	g := asked(t, e, 1)
	began := time.Now()
	other := ask(t, e, engine.Request{Tokens: []int32{30, 31}, Sampling: draws(2), MaxTokens: 2, Tenant: "b"})
	if took := time.Since(began); other.finished.Err != nil || took > guard.HeadroomPatience/2 {
		t.Errorf("the other tenant's request took %v (%v)", took, other.finished.Err)
	}
	limits.Headroom, limits.HeadroomAnswered = 1<<30, g.HeadroomRequest
	publish(limits)
	if a := collect(t, waiting); a.finished.Err != nil {
		t.Errorf("after room was made: %v", a.finished.Err)
	}
}
