package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"weak"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/grammar"
)

// TestARequestThatTheSchedulerRefusesLeavesNothing: the scheduler's queue is full while
// requests that ended wait for the end of their step. Each refused request gives its place
// back, or the engine would soon refuse all.
func TestARequestThatTheSchedulerRefusesLeavesNothing(t *testing.T) {
	sched, err := batch.New(batch.Limits{ContextTokens: 8, CacheTokens: 64, BlockTokens: 8, Sequences: 1, Queue: 1})
	if err != nil {
		t.Fatal(err)
	}
	for id := range batch.ID(2) {
		if err := sched.Submit(batch.Request{ID: 100 + id, Prompt: 1}); err != nil {
			t.Fatal(err)
		}
	}
	l := &loop{shared: &shared{log: slog.New(slog.DiscardHandler), admission: newAdmission(1, 1), guard: guard.New(guard.Options{})},
		sequences: &sequences{byID: map[batch.ID]*sequence{}, sched: sched}}
	l.admission.start()
	images := &imageProcessor{scaled: newScaledImages(100)}
	for i := range 5 {
		s := &sequence{prompt: 1, tokens: []int32{1}, stream: newStream([]int32{1}, nil, unread{}), images: &promptImages{processor: images}}
		if err := l.admission.admit(s); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		l.receive()
		last, err := s.stream.Next(t.Context())
		if err != nil || last.Finished == nil || last.Finished.Err == nil || last.Finished.Err.Kind != QueueFull || last.Finished.Err.RetryAfter == 0 {
			t.Errorf("request %d ended with %+v (%v), want %v with a time to retry", i, last.Finished, err, QueueFull)
		}
		if !s.images.released.Load() {
			t.Error("its images are held")
		}
	}
}

// TestAFormThatCannotBeFollowedIsTheFaultOfItsRequest: an internal error counts as a failure of the
// replica at gateways, which then avoid it for all clients.
func TestAFormThatCannotBeFollowedIsTheFaultOfItsRequest(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Kind
	}{
		{err: constraint.ErrSpelling, want: Invalid},
		{err: grammar.ErrWork, want: Invalid},
		{err: grammar.ErrAmbiguous, want: Invalid},
		{err: errors.New("anything else"), want: Internal},
	} {
		s := &sequence{constraintParam: "response_format"}
		r := s.unsampled(fmt.Errorf("row 1: %w", c.err))
		if r.Kind != c.want || (c.want == Invalid) != (r.Param == "response_format") {
			t.Errorf("%v: %+v, want %v", c.err, r, c.want)
		}
	}
}

// TestRowsThatWaitForNoMaskAreNotKept: what has ended meanwhile is not in memory.
func TestRowsThatWaitForNoMaskAreNotKept(t *testing.T) {
	l := &loop{sequences: &sequences{byID: map[batch.ID]*sequence{}}, runner: &runner{samplers: newSamplers(1, nil)}}
	s := &sequence{id: 1}
	kept := weak.Make(s)
	l.parked = append(l.parked, s)
	l.sampleParked()
	runtime.GC()
	if kept.Value() != nil {
		t.Error("a request that ended is in memory")
	}
	runtime.KeepAlive(l)
}
