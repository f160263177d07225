package batch

import (
	"errors"
	"math/rand/v2"
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
		if err := s.Submit(id, n); err != nil {
			t.Fatal(err)
		}
	}
	run(t, s, s.Plan(64))
	if err := s.Submit(2, 500); err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		step := s.Plan(64)
		if len(step.Rows) != 2 || step.Rows[0] != (Row{ID: 1, Start: 3 + i, Length: 1, Sample: true}) {
			t.Fatalf("step %d is %+v, want request 1 to decode first", i, step)
		}
		if got := step.Rows[1]; got.ID != 2 || got.Start != 64*i || got.Length != 64 || got.Sample {
			t.Fatalf("step %d gives %+v to the prompt", i, got)
		}
		run(t, s, step)
	}
	if last := s.Plan(64).Rows[1]; last.Length != 500-7*64 || !last.Sample {
		t.Errorf("last chunk is %+v, want the rest with a sample", last)
	}
}

func TestQueueIsBounded(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 10, CacheTokens: 10, BlockTokens: 5, Sequences: 1, Queue: 2})
	for id := ID(1); id <= 3; id++ { // one may run, two may wait
		if err := s.Submit(id, 5); err != nil {
			t.Fatalf("request %d: %v", id, err)
		}
	}
	if err := s.Submit(4, 5); !errors.Is(err, ErrQueueFull) {
		t.Errorf("request 4: error %v, want ErrQueueFull", err)
	}
	s.Plan(8)
	if err := s.Submit(4, 5); !errors.Is(err, ErrQueueFull) {
		t.Errorf("request 4 after one was admitted: error %v, want ErrQueueFull", err)
	}
	s.Remove(1)
	if err := s.Submit(4, 5); err != nil {
		t.Errorf("request 4 after one ended: %v", err)
	}
}

func TestWhatCanNeverRunIsRefused(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 10, CacheTokens: 20, BlockTokens: 5, Sequences: 1, Queue: 2})
	for _, n := range []int{0, -1, 11} {
		if err := s.Submit(1, n); !errors.Is(err, ErrTooLong) {
			t.Errorf("prompt of %d: error %v, want ErrTooLong", n, err)
		}
	}
	for name, l := range map[string]Limits{
		"cache below context": {ContextTokens: 10, CacheTokens: 9, BlockTokens: 1, Sequences: 1},
		"no sequences":        {ContextTokens: 1, CacheTokens: 1, BlockTokens: 1},
	} {
		if _, err := New(l); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestAdmissionWaitsForCacheAndNobodyOvertakes(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 40, CacheTokens: 60, BlockTokens: 10, Sequences: 3, Queue: 5})
	for id, n := range []int{35, 30, 5} {
		if err := s.Submit(ID(id+1), n); err != nil {
			t.Fatal(err)
		}
	}
	s.Plan(100)
	if s.Running() != 1 || s.Waiting() != 2 {
		t.Errorf("%d run and %d wait; the second needs 3 of 2 free blocks and the third must not overtake", s.Running(), s.Waiting())
	}
}

func TestM4PausedPrefillLetsAnswersGoOn(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 40, CacheTokens: 80, BlockTokens: 10, Sequences: 3, Queue: 5})
	if err := s.Submit(1, 4); err != nil {
		t.Fatal(err)
	}
	run(t, s, s.Plan(100))
	if err := s.Submit(2, 4); err != nil {
		t.Fatal(err)
	}
	s.PausePrefill(true)
	if step := s.Plan(100); len(step.Rows) != 1 || step.Rows[0].ID != 1 {
		t.Errorf("paused step is %+v, want request 1 alone", step)
	}
}

func TestAPromptIsShownBeforeItIsPlannedAndMayBeHeldBack(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 40, CacheTokens: 80, BlockTokens: 10, Sequences: 3, Queue: 5})
	if _, ok := s.Prompt(); ok {
		t.Error("an empty scheduler shows a prompt")
	}
	for id := range ID(2) {
		if err := s.Submit(id+1, 9); err != nil {
			t.Fatal(err)
		}
	}
	if row, ok := s.Prompt(); !ok || row != (Row{ID: 1, Length: 9, Sample: true}) || s.Running() != 2 {
		t.Errorf("shown %+v, %v; %d run", row, ok, s.Running())
	}
	run(t, s, s.Plan(4))
	if row, ok := s.Prompt(); !ok || row != (Row{ID: 1, Start: 4, Length: 5, Sample: true}) || s.InKV(1) != 4 {
		t.Errorf("shown %+v, %v; %d are in KV", row, ok, s.InKV(1))
	}
	run(t, s, s.Plan(5))
	if step := s.Plan(0); len(step.Rows) != 1 || step.Rows[0].ID != 1 {
		t.Errorf("with prompts held back the step is %+v, want the answer alone", step)
	}
	if row, ok := s.Prompt(); !ok || row.ID != 2 || s.InKV(2) != 0 || s.InKV(3) != 0 {
		t.Errorf("shown %+v, %v, want the second prompt", row, ok)
	}
	s.PausePrefill(true)
	if row, ok := s.Prompt(); ok {
		t.Errorf("while paused %+v is shown", row)
	}
}

// plain is what a request should look like, kept beside the scheduler.
type plain struct{ known, computed, answer, want int }

// TestRandomHistories drives the scheduler with arrivals, cancels and full
// caches and checks every step against a plain model.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := Limits{ContextTokens: 20 + rng.IntN(60), BlockTokens: 1 + rng.IntN(16), Sequences: 1 + rng.IntN(5), Queue: rng.IntN(6)}
		l.CacheTokens = l.ContextTokens + rng.IntN(80)
		h := history{t: t, seed: seed, rng: rng, limits: l, s: scheduler(t, l), model: map[ID]*plain{}}
		for range 400 {
			h.arrive()
			h.step()
		}
		for range 4000 { // whatever is left ends without help
			if len(h.model) == 0 {
				break
			}
			h.step()
		}
		if len(h.model) != 0 || h.s.Running()+h.s.Waiting() != 0 {
			t.Fatalf("seed %d: %d requests never ended", seed, len(h.model))
		}
		if want := (l.CacheTokens + l.BlockTokens - 1) / l.BlockTokens; h.s.freeBlocks != want {
			t.Fatalf("seed %d: %d of %d blocks are free at the end", seed, h.s.freeBlocks, want)
		}
	}
}

type history struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	limits Limits
	s      *Scheduler
	model  map[ID]*plain
	next   ID
}

func (h *history) arrive() {
	if h.rng.IntN(3) == 0 {
		h.next++
		prompt := 1 + h.rng.IntN(h.limits.ContextTokens)
		err := h.s.Submit(h.next, prompt)
		if err == nil {
			h.model[h.next] = &plain{known: prompt, want: h.rng.IntN(h.limits.ContextTokens - prompt + 1)}
		} else if !errors.Is(err, ErrQueueFull) {
			h.t.Fatalf("seed %d: submit: %v", h.seed, err)
		}
	}
	if h.rng.IntN(12) == 0 {
		for id := range h.model {
			h.s.Remove(id)
			delete(h.model, id)
			break
		}
	}
}

func (h *history) step() {
	shown, ok := h.s.Prompt()
	step := h.s.Plan(1 + h.rng.IntN(12))
	for _, r := range step.Rows {
		if prompt := r.Length > 1 || r.Start == 0; prompt && (!ok || r.ID != shown.ID || r.Start != shown.Start || r.Length > shown.Length) {
			h.t.Fatalf("seed %d: %+v advances, %+v was shown", h.seed, r, shown)
		}
	}
	for _, id := range step.Preempted {
		h.model[id].computed = 0
	}
	seen, prefills := map[ID]bool{}, 0
	for _, r := range step.Rows {
		p := h.model[r.ID]
		if p == nil || seen[r.ID] || r.Start != p.computed || r.Length < 1 || r.Start+r.Length > p.known || r.Sample != (r.Start+r.Length == p.known) {
			h.t.Fatalf("seed %d: row %+v does not fit %+v", h.seed, r, p)
		}
		seen[r.ID] = true
		if r.Length > 1 || r.Start == 0 {
			prefills++
		}
		p.computed += r.Length
		if err := h.s.Computed(r); err != nil {
			h.t.Fatalf("seed %d: %v", h.seed, err)
		}
		if !r.Sample {
			continue
		}
		if p.answer++; p.answer > p.want {
			h.s.Remove(r.ID)
			delete(h.model, r.ID)
			continue
		}
		p.known++
		if err := h.s.Grow(r.ID); err != nil {
			h.t.Fatalf("seed %d: %v", h.seed, err)
		}
	}
	if prefills > 1 {
		h.t.Fatalf("seed %d: %d prompts advance in one step", h.seed, prefills)
	}
	h.account()
}

// account checks that the blocks of running requests cover what they computed
// and that nothing was promised twice.
func (h *history) account() {
	used := 0
	for _, r := range h.s.running {
		if r.blocks*h.limits.BlockTokens < r.computed {
			h.t.Fatalf("seed %d: %d tokens in %d blocks", h.seed, r.computed, r.blocks)
		}
		used += r.blocks
	}
	if total := (h.limits.CacheTokens + h.limits.BlockTokens - 1) / h.limits.BlockTokens; used+h.s.freeBlocks != total || h.s.freeBlocks < 0 {
		h.t.Fatalf("seed %d: %d blocks used and %d free of %d", h.seed, used, h.s.freeBlocks, total)
	}
	if h.s.Running() > h.limits.Sequences {
		h.t.Fatalf("seed %d: %d run at once", h.seed, h.s.Running())
	}
}

// TestSteadySaysWhatTheNextPlanIs: whenever Steady says so, the next plan is the same rows, one
// token on, and nobody was preempted.
func TestSteadySaysWhatTheNextPlanIs(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	said := 0
	for round := range 400 {
		s, err := New(Limits{ContextTokens: 24, CacheTokens: 40, BlockTokens: 4, Sequences: 3, Queue: 8})
		if err != nil {
			t.Fatal(err)
		}
		for id := range ID(1 + rng.IntN(5)) {
			if err := s.Submit(id, 1+rng.IntN(9)); err != nil {
				t.Fatal(err)
			}
		}
		for range 30 {
			step := s.Plan(1 + rng.IntN(6))
			if rng.IntN(8) == 0 {
				_ = s.Submit(ID(100+rng.IntN(1e9)), 1+rng.IntN(9)) // the queue may be full
			}
			steady := s.Steady(step)
			grow(t, s, step)
			if !steady {
				continue
			}
			said++
			next := s.Plan(5)
			if len(next.Preempted) > 0 || len(next.Rows) != len(step.Rows) {
				t.Fatalf("round %d: steady after %+v, then came %+v", round, step, next)
			}
			for i, r := range next.Rows {
				if was := step.Rows[i]; r.ID != was.ID || r.Start != was.Start+was.Length || r.Length != 1 || !r.Sample {
					t.Fatalf("round %d: steady after %+v, then came %+v", round, step, next)
				}
			}
			grow(t, s, next)
		}
	}
	if said < 1000 {
		t.Errorf("only %d steps were steady", said)
	}
}

// grow computes a step: each row that samples gets a token, those at the
// context's end go.
func grow(t *testing.T, s *Scheduler, step Step) {
	t.Helper()
	for _, r := range step.Rows {
		if err := s.Computed(r); err != nil {
			t.Fatal(err)
		}
		if r.Sample && s.Grow(r.ID) != nil {
			s.Remove(r.ID)
		}
	}
}

// TestAForgottenRequestIsComputedAgain from its first token, where it stands.
func TestAForgottenRequestIsComputedAgain(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 64, CacheTokens: 64, BlockTokens: 8, Sequences: 2, Queue: 2})
	for _, id := range []ID{1, 2} {
		if err := s.Submit(id, 4); err != nil {
			t.Fatal(err)
		}
		for _, row := range s.Plan(8).Rows {
			if err := errors.Join(s.Computed(row), s.Grow(row.ID)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.Forget(1)
	s.Forget(7) // nobody's
	if got := s.InKV(1); got != 0 {
		t.Errorf("%d tokens of the forgotten request are in KV", got)
	}
	known := 6 // the second answer was planned beside the other's prompt
	want := []Row{{ID: 2, Start: 4, Length: 1, Sample: true}, {ID: 1, Length: known, Sample: true}}
	if got := s.Plan(8).Rows; !slices.Equal(got, want) {
		t.Errorf("the next step is %+v, want %+v", got, want)
	}
}
