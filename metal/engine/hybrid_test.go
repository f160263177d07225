//go:build !race

package engine_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

func TestAHybridAnswersTheSameAloneInCompanyAndAhead(t *testing.T) {
	path := hybrid(t)
	e := ready(t, engine.Options{ModelPath: path, Sequences: 4}, ref.Options{})
	var alone []answer
	for _, r := range requests() {
		alone = append(alone, ask(t, e, r))
	}
	same(t, "in company", together(t, e, requests()), alone)
	if m := e.Status().Memory; m.KV != 0 {
		t.Errorf("%d bytes of keys, values and states are held without a request", m.KV)
	}
	ahead := ready(t, engine.Options{ModelPath: path, Sequences: 4}, ref.Options{Ahead: true})
	same(t, "ahead", together(t, ahead, greedily(requests())), together(t, e, greedily(requests())))
}

// TestAHybridIsComputedAgainWherePreemptionDroppedIt: its states as well.
func TestAHybridIsComputedAgainWherePreemptionDroppedIt(t *testing.T) {
	path := hybrid(t)
	var rs []engine.Request
	for i := range uint64(3) {
		text := strings.Repeat("The fleet keeps every model. ", 12)
		rs = append(rs, engine.Request{Prompt: &text, Sampling: draws(i), MaxTokens: 180})
	}
	want := together(t, ready(t, engine.Options{ModelPath: path, Sequences: 3}, ref.Options{}), rs)
	tight := ready(t, engine.Options{ModelPath: path, Sequences: 3, CacheTokens: 512}, ref.Options{})
	for range 30 { // a busy machine may end one before the next is there
		same(t, "in a tight cache", together(t, tight, rs), want)
		if tight.Status().Preemptions > 0 || t.Failed() {
			return
		}
	}
	t.Error("nothing was preempted in 30 rounds")
}

// TestAHybridWhoseStepRanOutOfMemoryBeginsAgain: the first recurrent layer has
// moved on when the second fails, and a state cannot go back.
func TestAHybridWhoseStepRanOutOfMemoryBeginsAgain(t *testing.T) {
	path := hybrid(t)
	rs := requests()[:3]
	want := together(t, ready(t, engine.Options{ModelPath: path, Sequences: 3}, ref.Options{}), rs)
	for name, mayRun := range map[string]bool{"step by step": false, "steps ahead": true} {
		t.Run(name, func(t *testing.T) {
			var recurs, failed atomic.Int64
			e := ready(t, engine.Options{ModelPath: path, Sequences: 3}, ref.Options{Ahead: mayRun}, func(op string) error {
				// Two arrays are made for each of two layers: every eleventh step fails in
				// the second of them.
				if op == "Recur" && recurs.Add(1)%44 == 43 {
					failed.Add(1)
					return tensor.ErrMemory
				}
				return nil
			})
			same(t, "computed again", together(t, e, rs), want)
			if failed.Load() == 0 {
				t.Error("no step ran out of memory")
			}
			if m := e.Status().Memory; m.KV != 0 {
				t.Errorf("%d bytes are held without a request", m.KV)
			}
		})
	}
}

func TestAHybridThatIsCancelledReturnsItsState(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: hybrid(t), Sequences: 2}, ref.Options{}, paced)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := e.Generate(ctx, engine.Request{Prompt: prompt("Hello"), Sampling: draws(1), MaxTokens: 400})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m := e.Status().Memory; m.KV == 0 {
		t.Error("a running request holds nothing")
	}
	cancel()
	if a := collect(t, s); a.finished.Err == nil || a.finished.Err.Kind != engine.Cancelled {
		t.Errorf("a cancelled stream ends with %+v", a.finished)
	}
	if m := e.Status().Memory; m.KV != 0 {
		t.Errorf("after the cancel %d bytes are held", m.KV)
	}
}
