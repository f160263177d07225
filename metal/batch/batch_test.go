//go:build !race

package batch

import (
	"errors"
	"reflect"
	"slices"
	"testing"
)

func scheduler(t *testing.T, l Limits) *Scheduler {
	t.Helper()
	s, err := New(l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plan is a whole turn: everybody who may is admitted, nothing is restored and
// no piece is held back.
func plan(s *Scheduler, prefill int) Step {
	s.Admit()
	return s.Plan(s.ProposeChunks(prefill)...)
}

// run executes a step in the plain model: computed tokens advance, rows that
// sample grow by one.
func run(t *testing.T, s *Scheduler, step Step) {
	t.Helper()
	for _, r := range step.Rows {
		if err := s.Computed(r); err != nil {
			t.Fatal(err)
		}
		if r.Sample {
			if err := s.Grow(r.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestALongPromptNeverStallsRunningAnswers(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 1000, CacheTokens: 2000, BlockTokens: 16, Sequences: 4, Queue: 4})
	for id, n := range map[ID]int{1: 3} {
		if err := s.Submit(Request{ID: id, Prompt: n}); err != nil {
			t.Fatal(err)
		}
	}
	run(t, s, plan(s, 64))
	if err := s.Submit(Request{ID: 2, Prompt: 500}); err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		step := plan(s, 64)
		if len(step.Rows) != 2 || step.Rows[0] != (Row{ID: 1, Start: 3 + i, Length: 1, Sample: true}) {
			t.Fatalf("step %d is %+v, want request 1 to decode first", i, step)
		}
		if got := step.Rows[1]; got.ID != 2 || got.Start != 64*i || got.Length != 64 || got.Sample {
			t.Fatalf("step %d gives %+v to the prompt", i, got)
		}
		run(t, s, step)
	}
	if last := plan(s, 64).Rows[1]; last.Length != 500-7*64 || !last.Sample {
		t.Errorf("last chunk is %+v, want the rest with a sample", last)
	}
}

// TestWorkIsWhatThereIsToCompute, and a step's load the part of it that it computes.
func TestWorkIsWhatThereIsToCompute(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 1000, CacheTokens: 4000, BlockTokens: 16, Sequences: 4, Queue: 4})
	submit := func(id ID, n int) {
		t.Helper()
		if err := s.Submit(Request{ID: id, Prompt: n}); err != nil {
			t.Fatal(err)
		}
	}
	submit(1, 3)
	run(t, s, plan(s, 64))
	submit(2, 500)
	submit(3, 100)
	submit(4, 50)
	run(t, s, plan(s, 64)) // 32 of the oldest, 32 of the shortest
	want := Work{Decodes: 1, DecodeContext: 4, Head: 2, Prompts: []Span{{From: 32, To: 500}, {From: 32, To: 50}, {From: 0, To: 100}}}
	if got := s.Work(); !reflect.DeepEqual(got, want) {
		t.Errorf("work is %+v, want %+v", got, want)
	}
	step := plan(s, 40) // 20 each, of which the shortest wants 18
	if got, want := step.Load(), (Load{Decodes: 1, DecodeContext: 4, PrefillTokens: 40, PrefillContext: (20*32 + 20*20/2) + (18*32 + 18*18/2) + 2*2/2}); got != want {
		t.Errorf("a step of %+v is a load of %+v, want %+v", step.Rows, got, want)
	}
	s.PausePrefill(true)
	if got := s.Work(); len(got.Prompts) > 0 || got.Decodes != 1 {
		t.Errorf("with prompts held back, work is %+v", got)
	}
}

func TestAnAnswerThatWaitsForItsTokenHasNoRow(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 1000, CacheTokens: 4000, BlockTokens: 16, Sequences: 4, Queue: 4})
	submit(t, s, Request{ID: 1, Prompt: 3}, Request{ID: 2, Prompt: 5})
	for _, r := range plan(s, 64).Rows {
		if err := s.Computed(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Grow(2); err != nil {
		t.Fatal(err)
	}
	want := []Row{{ID: 2, Start: 5, Length: 1, Sample: true}}
	step := plan(s, 64)
	if !slices.Equal(step.Rows, want) || len(s.ProposeChunks(64)) != 0 || len(s.Work().Prompts) != 0 {
		t.Errorf("rows %+v, pieces %+v, work %+v while request 1 waits", step.Rows, s.ProposeChunks(64), s.Work())
	}
	if !s.CanPipeline(step) {
		t.Error("the next step of the other answer cannot be built on this one")
	}
	run(t, s, step)
	if err := s.Grow(1); err != nil {
		t.Fatal(err)
	}
	if step := plan(s, 64); len(step.Rows) != 2 || step.Rows[0] != (Row{ID: 1, Start: 3, Length: 1, Sample: true}) {
		t.Errorf("rows %+v once its token is there", step.Rows)
	}
}

func TestQueueIsBounded(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 10, CacheTokens: 10, BlockTokens: 5, Sequences: 1, Queue: 2})
	for id := ID(1); id <= 3; id++ { // one may run, two may wait
		if err := s.Submit(Request{ID: id, Prompt: 5}); err != nil {
			t.Fatalf("request %d: %v", id, err)
		}
	}
	if err := s.Submit(Request{ID: 4, Prompt: 5}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("request 4: error %v, want ErrQueueFull", err)
	}
	plan(s, 8)
	if err := s.Submit(Request{ID: 4, Prompt: 5}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("request 4 after one was admitted: error %v, want ErrQueueFull", err)
	}
	s.Remove(1)
	if err := s.Submit(Request{ID: 4, Prompt: 5}); err != nil {
		t.Errorf("request 4 after one ended: %v", err)
	}
}

func TestWhatCanNeverRunIsRefused(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 10, CacheTokens: 20, BlockTokens: 5, Sequences: 1, Queue: 2})
	for _, n := range []int{0, -1, 11} {
		if err := s.Submit(Request{ID: 1, Prompt: n}); !errors.Is(err, ErrTooLong) {
			t.Errorf("prompt of %d: error %v, want ErrTooLong", n, err)
		}
	}
	for name, l := range map[string]Limits{
		"cache below context": {ContextTokens: 10, CacheTokens: 9, BlockTokens: 1, Sequences: 1},
		"no context":          {CacheTokens: 1, BlockTokens: 1, Sequences: 1},
		"no block size":       {ContextTokens: 1, CacheTokens: 1, Sequences: 1},
		"no sequences":        {ContextTokens: 1, CacheTokens: 1, BlockTokens: 1},
		"negative queue":      {ContextTokens: 1, CacheTokens: 1, BlockTokens: 1, Sequences: 1, Queue: -1},
		"negative boundary":   {ContextTokens: 1, CacheTokens: 1, BlockTokens: 1, Sequences: 1, Boundary: -1},
	} {
		if _, err := New(l); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	scheduler(t, Limits{ContextTokens: 1, CacheTokens: 1, BlockTokens: 1, Sequences: 1})
}

// The newest token that counts is computed again, whether the one after it was recorded or not.
func TestATokenIsDrawnAgain(t *testing.T) {
	for name, grown := range map[string]bool{"before it is recorded": false, "after": true} {
		s := scheduler(t, Limits{ContextTokens: 30, CacheTokens: 60, BlockTokens: 10, Sequences: 3, Queue: 2})
		submit(t, s, Request{ID: 1, Prompt: 9, Tokens: 3}, Request{ID: 2, Prompt: 3})
		run(t, s, plan(s, 20))
		step := plan(s, 20)
		for _, r := range step.Rows {
			if err := s.Computed(r); err != nil {
				t.Fatal(err)
			}
			if grown || r.ID == 2 {
				if err := s.Grow(r.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := s.Redo(1, 10); err != nil {
			t.Fatal(err)
		}
		if got := plan(s, 20).Rows; len(got) != 2 || got[0] != (Row{ID: 1, Start: 9, Length: 1, Sample: true}) {
			t.Errorf("%s: the next step is %+v", name, got)
		}
		for _, known := range []int{0, 12, 5} {
			if err := s.Redo(1, known); !errors.Is(err, errUnknown) && known != 5 {
				t.Errorf("%s: to %d tokens: %v", name, known, err)
			}
		}
		submit(t, s, Request{ID: 3, Prompt: 9})
		s.Admit()
		if err := s.Redo(3, 5); !errors.Is(err, errUnknown) {
			t.Errorf("%s: a token of a prompt that is not computed: %v", name, err)
		}
		if err := s.Redo(4, 1); !errors.Is(err, errUnknown) {
			t.Errorf("%s: a request that is not there: %v", name, err)
		}
	}
}

func submit(t *testing.T, s *Scheduler, all ...Request) {
	t.Helper()
	for _, r := range all {
		if err := s.Submit(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhoFitsMayOvertakeButOnlySoOften(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 60, CacheTokens: 60, BlockTokens: 10, Sequences: 2, Queue: 50})
	submit(t, s, Request{ID: 1, Prompt: 20}, Request{ID: 2, Prompt: 60}, Request{ID: 50, Prompt: 60})
	for id := ID(3); id < 30; id++ {
		submit(t, s, Request{ID: id, Prompt: 10})
	}
	if got := slices.Clone(s.Admit()); !slices.Equal(got, []ID{1, 3}) {
		t.Fatalf("%v run, want 1 and 3: 2 has no room and 3 has", got)
	}
	passed := 1 // 3 did
	for id := ID(3); ; id++ {
		s.Remove(id)
		got := s.Admit()
		if len(got) == 0 {
			break
		}
		if passed++; !slices.Equal(got, []ID{id + 1}) {
			t.Fatalf("%v was admitted after %d", got, id)
		}
	}
	if passed != overtakes*2 {
		t.Errorf("the long one was overtaken %d times, want %d", passed, overtakes*2)
	}
	s.Remove(1)
	if got := s.Admit(); !slices.Equal(got, []ID{2}) {
		t.Errorf("%v was admitted once nothing ran, want 2, the earlier of the two that were overtaken", got)
	}
}

func TestTheLastBlocksAreLeftToWhoMayGrowIntoThem(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 30, CacheTokens: 60, BlockTokens: 10, Sequences: 3, Queue: 5})
	submit(t, s, Request{ID: 1, Prompt: 30}, Request{ID: 2, Prompt: 18}, Request{ID: 3, Prompt: 5})
	if got := s.Admit(); !slices.Equal(got, []ID{1, 2}) {
		t.Errorf("%v run, want 1 and 2: the block that is left will soon be the second's", got)
	}
	s.Remove(1)
	if got := s.Admit(); !slices.Equal(got, []ID{3}) {
		t.Errorf("%v was admitted, want 3", got)
	}
}

func TestLastBlockIsGivenAwayWhenNoRunningRequestNeedsIt(t *testing.T) {
	for name, tc := range map[string]struct{ prompt, cache int }{
		"half of its last block is free":   {prompt: 15, cache: 30},
		"it has all blocks of its context": {prompt: 30, cache: 40},
	} {
		s := scheduler(t, Limits{ContextTokens: 30, CacheTokens: tc.cache, BlockTokens: 10, Sequences: 2, Queue: 5})
		submit(t, s, Request{ID: 1, Prompt: tc.prompt}, Request{ID: 2, Prompt: 5})
		if got := s.Admit(); !slices.Equal(got, []ID{1, 2}) {
			t.Errorf("%s: %v run, want 1 and 2", name, got)
		}
	}
}

func TestPrioritiesOrderTheQueueAndChooseWhoGivesWay(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 20, CacheTokens: 20, BlockTokens: 5, Sequences: 2, Queue: 50})
	submit(t, s, Request{ID: 1, Prompt: 4, Priority: -1}, Request{ID: 2, Prompt: 4}, Request{ID: 3, Prompt: 4, Priority: 1})
	run(t, s, plan(s, 8))
	if got := s.IDs(); !slices.Equal(got, []ID{3, 2, 1}) {
		t.Fatalf("order is %v, want 3, 2, 1", got)
	}
	s.Remove(2)
	run(t, s, plan(s, 8)) // 1 runs next to 3
	for range 20 {
		step := plan(s, 8)
		if len(step.Preempted) > 0 {
			if !slices.Equal(step.Preempted, []ID{1}) {
				t.Errorf("%v was preempted, want the lowest priority although it came first", step.Preempted)
			}
			return
		}
		run(t, s, step)
	}
	t.Error("no request was preempted")
}

func TestRestoredTokensAreNotComputed(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 100, CacheTokens: 100, BlockTokens: 10, Sequences: 2, Queue: 5})
	submit(t, s, Request{ID: 1, Prompt: 50}, Request{ID: 2, Prompt: 5})
	if err := s.Restored(1, 40); !errors.Is(err, errUnknown) {
		t.Errorf("restored while it waits: %v", err)
	}
	s.Admit()
	if got := s.Admit(); len(got) != 0 {
		t.Errorf("%v were named twice", got)
	}
	for _, n := range []int{-1, 50, 51} {
		if err := s.Restored(1, n); !errors.Is(err, ErrTooLong) {
			t.Errorf("%d of 50 tokens restored: %v", n, err)
		}
	}
	if err := errors.Join(s.Restored(1, 40), s.Restored(2, 4)); err != nil {
		t.Fatal(err)
	}
	if err := s.Restored(1, 41); !errors.Is(err, errUnknown) {
		t.Errorf("restored twice: %v", err)
	}
	// The last token of a prompt is a chunk like the others: it may be of an image, and needs memory.
	want := []Row{{ID: 1, Start: 40, Length: 10, Sample: true}, {ID: 2, Start: 4, Length: 1, Sample: true, EndsPrompt: true}}
	if got := s.Plan(); len(got.Rows) != 0 {
		t.Errorf("rows that were not proposed: %+v", got.Rows)
	}
	if got := plan(s, 64); !slices.Equal(got.Rows, want) || got.Decodes() != 0 || got.Load().PrefillTokens != 11 {
		t.Errorf("the step is %+v, want %+v", got.Rows, want)
	}
}

// TestWhatWasPreemptedOrForgottenIsNamedAgain, so that what was saved of it can
// be restored.
func TestWhatWasPreemptedOrForgottenIsNamedAgain(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 20, CacheTokens: 20, BlockTokens: 5, Sequences: 2, Queue: 5})
	submit(t, s, Request{ID: 1, Prompt: 9}, Request{ID: 2, Prompt: 4})
	run(t, s, plan(s, 20))
	s.Forget(1)
	if got := s.Admit(); !slices.Equal(got, []ID{1}) {
		t.Fatalf("%v were named, want the forgotten one", got)
	}
	if err := s.Restored(1, 5); err != nil {
		t.Fatal(err)
	}
	preempted := false
	for range 20 {
		step := plan(s, 20)
		preempted = preempted || slices.Equal(step.Preempted, []ID{2})
		run(t, s, step)
		if preempted {
			break
		}
	}
	s.Remove(1)
	if got := s.Admit(); !preempted || !slices.Equal(got, []ID{2}) || s.InKV(2) != 0 {
		t.Errorf("%v were named, %d tokens in KV, want the preempted one without any", got, s.InKV(2))
	}
	if err := s.Restored(2, 5); err != nil {
		t.Error(err)
	}
}

func TestNoRowHasABoundaryInside(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 100, CacheTokens: 200, BlockTokens: 10, Sequences: 2, Queue: 5, Boundary: 16})
	submit(t, s, Request{ID: 1, Prompt: 40}, Request{ID: 2, Prompt: 70})
	s.Admit()
	if err := s.Restored(2, 20); err != nil {
		t.Fatal(err)
	}
	want := [][]Row{
		{{ID: 1, Length: 16}, {ID: 2, Start: 20, Length: 12}},
		{{ID: 1, Start: 16, Length: 16}, {ID: 2, Start: 32, Length: 16}},
		{{ID: 1, Start: 32, Length: 8, Sample: true}, {ID: 2, Start: 48, Length: 16}},
	}
	for i, rows := range want {
		step := plan(s, 50)
		if !slices.Equal(step.Rows, rows) {
			t.Fatalf("step %d is %+v, want %+v", i, step.Rows, rows)
		}
		run(t, s, step)
	}
	// Nor is a step built on one that ends at a boundary: what is there is saved first.
	s.Remove(2)
	for position := 40; position < 70; position++ {
		step := plan(s, 50)
		if got, want := s.CanPipeline(step), (position+1)%16 != 0; got != want {
			t.Errorf("after token %d CanPipeline is %v", position, got)
		}
		run(t, s, step)
	}
}

func TestAShortPromptDoesNotWaitForALongOne(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 1000, CacheTokens: 4000, BlockTokens: 10, Sequences: 4, Queue: 5})
	submit(t, s, Request{ID: 1, Prompt: 1000}, Request{ID: 2, Prompt: 1000}, Request{ID: 3, Prompt: 70}, Request{ID: 4, Prompt: 20})
	s.Admit()
	for i, want := range [][]Row{
		{{ID: 1, Length: 50}, {ID: 4, Length: 20, Sample: true}, {ID: 3, Length: 30}},
		{{ID: 1, Start: 50, Length: 50}, {ID: 3, Start: 30, Length: 40, Sample: true}}, // and 10 more, below
		{{ID: 1, Start: 110, Length: 100}},
	} {
		if i == 1 {
			want[0].Length = 60
		}
		step := s.Plan(s.ProposeChunks(100)...)
		for _, r := range step.Rows {
			if err := s.Computed(r); err != nil {
				t.Fatal(err)
			}
			if r.Sample {
				s.Remove(r.ID)
			}
		}
		if !slices.Equal(step.Rows, want) {
			t.Fatalf("step %d is %+v, want %+v", i, step.Rows, want)
		}
	}
	// With a token a step they take turns.
	submit(t, s, Request{ID: 5, Prompt: 9})
	s.Admit()
	count := map[ID]int{}
	for range 8 {
		step := s.Plan(s.ProposeChunks(1)...)
		count[step.Rows[0].ID]++
		if err := s.Computed(step.Rows[0]); err != nil {
			t.Fatal(err)
		}
	}
	if count[1] != 4 || count[5] != 4 {
		t.Errorf("a token a step went to %v", count)
	}
}

func TestWhatTheOldestPromptDoesNotTakeGoesToTheNext(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 100, CacheTokens: 400, BlockTokens: 10, Sequences: 4, Queue: 5})
	submit(t, s, Request{ID: 1, Prompt: 30}, Request{ID: 2, Prompt: 80}, Request{ID: 3, Prompt: 40})
	want := []Row{{ID: 1, Length: 30, Sample: true}, {ID: 3, Length: 40, Sample: true}, {ID: 2, Length: 10}}
	if got := plan(s, 80).Rows; !slices.Equal(got, want) {
		t.Errorf("the step is %+v, want %+v", got, want)
	}
}

func TestPausedPrefillLetsDecodingContinue(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 40, CacheTokens: 80, BlockTokens: 10, Sequences: 3, Queue: 5})
	if err := s.Submit(Request{ID: 1, Prompt: 4}); err != nil {
		t.Fatal(err)
	}
	run(t, s, plan(s, 100))
	if err := s.Submit(Request{ID: 2, Prompt: 4}); err != nil {
		t.Fatal(err)
	}
	s.PausePrefill(true)
	if step := plan(s, 100); len(step.Rows) != 1 || step.Rows[0].ID != 1 {
		t.Errorf("paused step is %+v, want request 1 alone", step)
	}
}

func TestAPromptIsProposedBeforeItIsPlannedAndMayBeHeldBack(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 40, CacheTokens: 80, BlockTokens: 10, Sequences: 3, Queue: 5})
	if rows := s.ProposeChunks(9); len(rows) > 0 {
		t.Errorf("an empty scheduler proposes %+v", rows)
	}
	submit(t, s, Request{ID: 1, Prompt: 9}, Request{ID: 2, Prompt: 9})
	s.Admit()
	if rows := s.ProposeChunks(12); !slices.Equal(rows, []Row{{ID: 1, Length: 9, Sample: true}, {ID: 2, Length: 3}}) {
		t.Errorf("proposed %+v", rows)
	}
	cut := s.ProposeChunks(12)[:1]
	if other := (Row{ID: 1, Start: 3, Length: 6}); s.Shorten(other, 4) != other {
		t.Error("a row that begins elsewhere was shortened")
	}
	cut[0] = s.Shorten(cut[0], 4)
	step := s.Plan(cut...)
	if !slices.Equal(step.Rows, []Row{{ID: 1, Length: 4}}) {
		t.Errorf("planned %+v, want the piece that was cut", step.Rows)
	}
	run(t, s, step)
	if rows := s.ProposeChunks(5); !slices.Equal(rows, []Row{{ID: 1, Start: 4, Length: 5, Sample: true}}) || s.InKV(1) != 4 {
		t.Errorf("proposed %+v; %d are in KV", rows, s.InKV(1))
	}
	stale := s.ProposeChunks(5)[0]
	run(t, s, plan(s, 5))
	if step := s.Plan(stale); len(step.Rows) != 1 || !step.Rows[0].Decode() {
		t.Errorf("with a piece that was computed already the step is %+v, want the answer alone", step)
	}
	submit(t, s, Request{ID: 3, Prompt: 9})
	s.Admit()
	if step := s.Plan(Row{ID: 3}); slices.ContainsFunc(step.Rows, func(r Row) bool { return r.ID == 3 }) {
		t.Errorf("with a piece of no tokens the step is %+v", step)
	}
	s.Remove(3)
	if rows := s.ProposeChunks(0); len(rows) > 0 {
		t.Errorf("proposed %+v of no tokens", rows)
	}
	s.PausePrefill(true)
	if rows := s.ProposeChunks(5); len(rows) > 0 {
		t.Errorf("while paused %+v are proposed", rows)
	}
}

func TestProgressThatDoesNotFitIsRefused(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 4, CacheTokens: 8, BlockTokens: 2, Sequences: 1, Queue: 1})
	submit(t, s, Request{ID: 1, Prompt: 3})
	run(t, s, plan(s, 8)) // 3 tokens of the prompt and one of the answer
	for name, tc := range map[string]struct {
		err  error
		want error
	}{
		"a row of an unknown request": {err: s.Computed(Row{ID: 7, Length: 1}), want: errUnknown},
		"a row that was computed":     {err: s.Computed(Row{ID: 1, Start: 0, Length: 3}), want: errUnknown},
		"a token of an unknown one":   {err: s.Grow(7), want: errUnknown},
		"a token beyond the context":  {err: s.Grow(1), want: ErrTooLong},
	} {
		if !errors.Is(tc.err, tc.want) {
			t.Errorf("%s: %v, want %v", name, tc.err, tc.want)
		}
	}
	if s.Decodes() != 1 || s.InKV(1) != 3 {
		t.Errorf("%d answers, %d tokens in KV", s.Decodes(), s.InKV(1))
	}
}

func TestANameInUseIsRefused(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 40, CacheTokens: 80, BlockTokens: 10, Sequences: 3, Queue: 5})
	submit(t, s, Request{ID: 1, Prompt: 9})
	if err := s.Submit(Request{ID: 1, Prompt: 9}); !errors.Is(err, errKnown) {
		t.Errorf("a second request of the same name: %v", err)
	}
}

// Nothing of the cancelled request is left.
func TestCancelledIDCanBeReused(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 40, CacheTokens: 40, BlockTokens: 10, Sequences: 1, Queue: 5})
	submit(t, s, Request{ID: 1, Prompt: 30})
	old := plan(s, 20).Rows[0]
	if err := s.Computed(old); err != nil {
		t.Fatal(err)
	}
	s.Remove(1)
	submit(t, s, Request{ID: 1, Prompt: 35})
	if got := s.Admit(); !slices.Equal(got, []ID{1}) || s.InKV(1) != 0 {
		t.Fatalf("%v were admitted, %d tokens in KV", got, s.InKV(1))
	}
	if step := plan(s, 35); !slices.Equal(step.Rows, []Row{{ID: 1, Length: 35, Sample: true}}) {
		t.Errorf("the step is %+v", step.Rows)
	}
	s.Remove(1)
	if total := 4; s.freeBlocks != total || len(s.all) != 0 {
		t.Errorf("%d of %d blocks are free, %d requests kept", s.freeBlocks, total, len(s.all))
	}
}

// TestAForgottenRequestIsComputedAgain from its first token, where it stands.
func TestAForgottenRequestIsComputedAgain(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 64, CacheTokens: 64, BlockTokens: 8, Sequences: 2, Queue: 2})
	for _, id := range []ID{1, 2} {
		if err := s.Submit(Request{ID: id, Prompt: 4}); err != nil {
			t.Fatal(err)
		}
		for _, row := range plan(s, 8).Rows {
			if err := errors.Join(s.Computed(row), s.Grow(row.ID)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.Forget(1)
	s.Forget(7) // unknown
	if got := s.InKV(1); got != 0 {
		t.Errorf("%d tokens of the forgotten request are in KV", got)
	}
	known := 6 // the second answer was planned in a step with the other's prefill
	want := []Row{{ID: 2, Start: 4, Length: 1, Sample: true}, {ID: 1, Length: known, Sample: true}}
	if got := plan(s, 8).Rows; !slices.Equal(got, want) {
		t.Errorf("the next step is %+v, want %+v", got, want)
	}
}

// TestFreeTokensAreThosePromisedThatNobodyHolds, in whole blocks of requests, and
// no more than were promised where the last block is not whole.
func TestFreeTokensAreThosePromisedThatNobodyHolds(t *testing.T) {
	s, err := New(Limits{ContextTokens: 100, CacheTokens: 100, BlockTokens: 16, Sequences: 4, Queue: 4})
	if err != nil {
		t.Fatal(err)
	}
	want := func(n int) {
		t.Helper()
		if got := s.FreeTokens(); got != n {
			t.Errorf("%d tokens are free, want %d", got, n)
		}
	}
	want(100)
	for id, prompt := range []int{17, 40} {
		if err := s.Submit(Request{ID: ID(id), Prompt: prompt}); err != nil {
			t.Fatal(err)
		}
	}
	want(100) // they wait
	s.Admit()
	want(100 - 32 - 48)
	s.Remove(1)
	want(100 - 32)
	s.Remove(0)
	want(100)
	s = scheduler(t, Limits{ContextTokens: 96, CacheTokens: 96, BlockTokens: 16, Sequences: 1})
	want(96) // whole blocks
}

// TestARunOfAPromptIsInOneRow for every size of chunks, and across boundaries.
func TestARunOfAPromptIsInOneRow(t *testing.T) {
	whole := []Span{{From: 3, To: 40}, {From: 40, To: 45}, {From: 90, To: 170}}
	for prefill := 1; prefill < 100; prefill++ {
		s := scheduler(t, Limits{ContextTokens: 1000, CacheTokens: 2000, BlockTokens: 16, Sequences: 4, Queue: 4, Boundary: 64})
		for id, w := range map[ID][]Span{1: whole, 2: nil} {
			if err := s.Submit(Request{ID: id, Prompt: 200, Whole: w}); err != nil {
				t.Fatal(err)
			}
		}
		computed, steps := 0, 0
		for ; computed < 200 && steps < 1000; steps++ {
			step := plan(s, prefill)
			for _, r := range step.Rows {
				if r.ID != 1 {
					continue
				}
				end := r.Start + r.Length
				if r.Length > prefill && !slices.Contains(whole, Span{From: r.Start, To: end}) {
					t.Fatalf("row %+v has more than %d tokens and is no run", r, prefill)
				}
				for _, w := range whole {
					if w.From < end && end < w.To || w.From < r.Start && r.Start < w.To {
						t.Fatalf("%d tokens at a time: row %+v divides %+v", prefill, r, w)
					}
				}
				computed = end
			}
			run(t, s, step)
		}
		if computed < 200 {
			t.Fatalf("%d tokens at a time: %d tokens in %d steps", prefill, computed, steps)
		}
	}
}

// A prompt of small chunks leaves the rest of a step to the prompts after it.
func TestAPromptOfSmallChunksLeavesTheRest(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 40, CacheTokens: 80, BlockTokens: 10, Sequences: 3, Queue: 5})
	submit(t, s, Request{ID: 1, Prompt: 20, Chunk: 3}, Request{ID: 2, Prompt: 30})
	s.Admit()
	if rows := s.ProposeChunks(12); !slices.Equal(rows, []Row{{ID: 1, Length: 3}, {ID: 2, Length: 9}}) {
		t.Errorf("proposed %+v", rows)
	}
	if row := s.Shorten(Row{ID: 1, Length: 3}, 2); row.Length != 2 {
		t.Errorf("shortened to %+v", row)
	}
}
