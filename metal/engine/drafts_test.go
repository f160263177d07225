//go:build !race

package engine_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// drafting is a hybrid with a draft head.
func drafting(t *testing.T, drafts tinymodel.Drafts) (path string, c tinymodel.Config) {
	t.Helper()
	c = tinymodel.Default()
	c.Family, c.Layers, c.NormSpread, c.Drafts = tinymodel.Qwen35, 3, 0.3, drafts
	c.Hybrid = tinymodel.Hybrid{Interval: 3, KeyHeads: 2, KeySize: 16, ValueHeads: 4, ValueSize: 8, Taps: 4, Rotary: 0.5}
	path = filepath.Join(t.TempDir(), "drafting")
	if err := tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)}); err != nil {
		t.Fatal(err)
	}
	return path, c
}

// heads are those of the tests, by how often their drafts are right.
func heads() map[string]tinymodel.Drafts {
	return map[string]tinymodel.Drafts{"mostly wrong": tinymodel.RandomDrafts, "often right": tinymodel.LikelyDrafts}
}

// kinds are requests of every kind of sampling and ending.
func kinds() []engine.Request {
	rs := append(append(requests(), greedily(requests())...), greedy()...)
	text := "One rack holds many Macs. "
	for i := range uint64(6) {
		p := draws(i)
		p.Temperature = float64(i) / 5
		r := engine.Request{Prompt: &text, Sampling: p, MaxTokens: 1 + 13*int(i%3)}
		switch i {
		case 0:
			r.MaxTokens = 2
		case 1:
			p.FrequencyPenalty, p.PresencePenalty = 1.5, 0.5
		case 2:
			p.RepetitionPenalty, r.Logprobs = 1.3, alternatives(3)
		case 3:
			r.Constraint = form(grammar.Regex, `[a-z]{3,8}( [a-z]{1,6}){2,9}\.`)
		case 4:
			r.MinTokens, p.Bias = 12, map[int32]float32{70: 4}
		case 5:
			r.Constraint, r.Logprobs = form(grammar.EBNF, `root ::= ("ab" | "cd" | " "){20}`), alternatives(1)
		}
		rs = append(rs, r)
	}
	return rs
}

func TestDraftsChangeNoAnswer(t *testing.T) {
	for name, drafts := range heads() {
		for when, r := range map[string]ref.Options{"step by step": {}, "steps ahead": {Ahead: true}} {
			t.Run(name+", "+when, func(t *testing.T) {
				path, _ := drafting(t, drafts)
				plain := ready(t, engine.Options{ModelPath: path, Sequences: 4}, r)
				e := ready(t, engine.WithDraftCost(engine.Options{ModelPath: path, Sequences: 4, Drafts: true}, 1.5), r)
				same(t, "with drafts", askAll(t, e, kinds()), askAll(t, plain, kinds()))
				alone := e.Status()
				if alone.Drafts < 100 || alone.RightDrafts == alone.Drafts || drafts == tinymodel.LikelyDrafts && alone.RightDrafts < alone.Drafts/2 {
					t.Errorf("%d of %d drafts are right", alone.RightDrafts, alone.Drafts)
				}
				crowd := kinds()
				for i := range crowd { // of prompts that leave room for steps without them
					crowd[i].Prompt, crowd[i].MaxTokens = prompt("One rack "+strings.Repeat("holds ", i)), 30+i
				}
				same(t, "with drafts and in company", together(t, e, crowd), together(t, plain, crowd))
				if s := e.Status(); s.Drafts == alone.Drafts || s.Memory.KV != 0 {
					t.Errorf("%d drafts in company; %d bytes are held without a request", s.Drafts-alone.Drafts, s.Memory.KV)
				}
			})
		}
	}
}

// TestDraftsSaveSteps: a right one saves the step of its token.
func TestDraftsSaveSteps(t *testing.T) {
	path, _ := drafting(t, tinymodel.LikelyDrafts)
	r := greedily(requests())[:1]
	r[0].MaxTokens, r[0].IgnoreEnd = 200, true
	count := func(drafts bool) (steps, right int64) {
		e := ready(t, engine.WithDraftCost(engine.Options{ModelPath: path, Drafts: drafts}, 1.5), ref.Options{})
		before := e.Status().Steps
		if a := ask(t, e, r[0]); len(a.tokens) != 200 {
			t.Fatalf("%d tokens", len(a.tokens))
		}
		return e.Status().Steps - before, e.Status().RightDrafts
	}
	plain, _ := count(false)
	steps, right := count(true)
	if right < 50 || steps != plain-right {
		t.Errorf("%d steps with %d right drafts, %d without", steps, right, plain)
	}
}

// TestDraftsAreMadeWhereTheyPay: not for many rows, and not for long where they are wrong.
func TestDraftsAreMadeWhereTheyPay(t *testing.T) {
	path, _ := drafting(t, tinymodel.RandomDrafts)
	e := ready(t, engine.WithDraftCost(engine.Options{ModelPath: path, Sequences: 8, Drafts: true}, 1.5), ref.Options{Ahead: true})
	r := greedily(requests())[0]
	r.MaxTokens, r.IgnoreEnd = 200, true
	ask(t, e, r)
	if s := e.Status(); s.Drafts != 32 {
		t.Errorf("%d drafts were made, of which %d are right, want one trial of 32", s.Drafts, s.RightDrafts)
	}
	r.MaxTokens = 400
	ask(t, e, r)
	if s := e.Status(); s.Drafts != 32+64 {
		t.Errorf("%d drafts were made of a long answer, want two trials of 32", s.Drafts-32)
	}
}

// TestDraftsAndThePrefixCache: what is saved of an answer that was computed with drafts is
// what it would be without them.
func TestDraftsAndThePrefixCache(t *testing.T) {
	for name, drafts := range heads() {
		t.Run(name, func(t *testing.T) {
			path, c := drafting(t, drafts)
			rs := conversation(c.Vocabulary)
			want := askAll(t, ready(t, engine.Options{ModelPath: path}, ref.Options{}), rs)
			for when, r := range map[string]ref.Options{"step by step": {}, "steps ahead": {Ahead: true}} {
				e := ready(t, engine.WithDraftCost(engine.Options{ModelPath: path, CacheMemory: mebi, Drafts: true}, 1.5), r)
				got := askAll(t, e, rs)
				sameButCached(t, when, got, want)
				if s := e.Status(); s.Prefixes.Hits != 3 || s.Drafts == 0 {
					t.Errorf("%s: %d drafts, prefixes %+v", when, s.Drafts, s.Prefixes)
				}
			}
		})
	}
}

func TestARowWithAnAdapterHasNoDrafts(t *testing.T) {
	path, c := drafting(t, tinymodel.LikelyDrafts)
	adapter := filepath.Join(t.TempDir(), "one")
	if err := (tinymodel.Adapter{Rank: 3, Alpha: 8}).Write(adapter, c); err != nil {
		t.Fatal(err)
	}
	o := engine.Options{ModelPath: path, Sequences: 2, Adapters: []engine.Adapter{{Name: "one", Path: adapter, Digest: "d"}}}
	plain := ready(t, o, ref.Options{})
	o.Drafts = true
	e := ready(t, engine.WithDraftCost(o, 1.5), ref.Options{})
	rs := greedily(requests()[:2])
	rs[0].Adapter = "one"
	same(t, "with an adapter", askAll(t, e, rs[:1]), askAll(t, plain, rs[:1]))
	if n := e.Status().Drafts; n != 0 {
		t.Errorf("%d drafts were made under an adapter", n)
	}
	same(t, "together with another row", together(t, e, rs), together(t, plain, rs))
	if n := e.Status().Drafts; n == 0 {
		t.Error("no drafts were made without an adapter")
	}
}

// TestDraftsInATightCache: requests lose their blocks, and continue.
func TestDraftsInATightCache(t *testing.T) {
	path, _ := drafting(t, tinymodel.LikelyDrafts)
	var rs []engine.Request
	for i := range uint64(3) {
		text := strings.Repeat("The fleet keeps every model. ", 12)
		rs = append(rs, engine.Request{Prompt: &text, Sampling: draws(i), MaxTokens: 180})
	}
	want := together(t, ready(t, engine.Options{ModelPath: path, Sequences: 3}, ref.Options{}), rs)
	tight := ready(t, engine.WithDraftCost(engine.Options{ModelPath: path, Sequences: 3, CacheTokens: 512, Drafts: true}, 1.5), ref.Options{})
	for range 30 { // a busy machine may end one before the next is there
		same(t, "in a tight cache", together(t, tight, rs), want)
		if tight.Status().Preemptions > 0 || t.Failed() {
			return
		}
	}
	t.Error("nothing was preempted in 30 rounds")
}

// TestAStepWithDraftsThatRanOutOfMemoryIsComputedAgain, whether the draft head or the step
// failed.
func TestAStepWithDraftsThatRanOutOfMemoryIsComputedAgain(t *testing.T) {
	path, _ := drafting(t, tinymodel.LikelyDrafts)
	rs := requests()[:3]
	want := together(t, ready(t, engine.Options{ModelPath: path, Sequences: 3}, ref.Options{}), rs)
	for op, every := range map[string]int64{"Recur": 44, "Place": 9, "Argmax": 5} {
		var calls, failed atomic.Int64
		e := ready(t, engine.WithDraftCost(engine.Options{ModelPath: path, Sequences: 3, Drafts: true}, 1.5), ref.Options{}, func(of string) error {
			if of == op && calls.Add(1)%every == every-1 {
				failed.Add(1)
				return tensor.ErrMemory
			}
			return nil
		})
		same(t, op+" failed", together(t, e, rs), want)
		if failed.Load() == 0 || e.Status().Memory.KV != 0 {
			t.Errorf("%s: %d steps failed, %d bytes are held without a request", op, failed.Load(), e.Status().Memory.KV)
		}
	}
}

func TestADraftedAnswerThatIsCancelledReturnsItsMemory(t *testing.T) {
	path, _ := drafting(t, tinymodel.LikelyDrafts)
	e := ready(t, engine.WithDraftCost(engine.Options{ModelPath: path, Sequences: 2, Drafts: true}, 1.5), ref.Options{}, paced)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := e.Generate(ctx, engine.Request{Prompt: prompt("Hello"), Sampling: draws(1), MaxTokens: 400, IgnoreEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 12 {
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// One block of 256 tokens and the states, with those before a draft.
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	facts, err := f.Facts()
	if err != nil {
		t.Fatal(err)
	}
	facts.DraftWeightBytes = 0 // or none is counted: ref uses a head in tests alone
	terms, err := footprint.Estimate(facts, footprint.Context{Tokens: 256, Sequences: 1, CacheTokens: 256, Backend: "ref"})
	if m := e.Status().Memory; err != nil || m.KV != terms.KV {
		t.Errorf("a request with drafts holds %d bytes, %d are estimated (%v)", m.KV, terms.KV, err)
	}
	cancel()
	var refusal *engine.Refusal
	if a := collect(t, s); !errors.As(a.finished.Err, &refusal) || refusal.Kind != engine.Cancelled {
		t.Errorf("a cancelled stream ends with %+v", a.finished)
	}
	if m := e.Status().Memory; m.KV != 0 {
		t.Errorf("after the cancel %d bytes are held", m.KV)
	}
}

// TestMeasuredDraftsChangeNoAnswer: when there are drafts depends on the clock, and no answer
// does.
func TestMeasuredDraftsChangeNoAnswer(t *testing.T) {
	path, _ := drafting(t, tinymodel.LikelyDrafts)
	for when, r := range map[string]ref.Options{"step by step": {}, "steps ahead": {Ahead: true}} {
		e := ready(t, engine.Options{ModelPath: path, Sequences: 4, Drafts: true}, r)
		same(t, when, askAll(t, e, kinds()), askAll(t, ready(t, engine.Options{ModelPath: path, Sequences: 4}, r), kinds()))
		if n := e.Status().Drafts; n < 8 {
			t.Errorf("%s: %d drafts were made, too few to measure them", when, n)
		}
	}
}
