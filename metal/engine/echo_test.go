package engine_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

func echoing(seed uint64, n int) engine.Request {
	return engine.Request{Tokens: tokensOf(seed, n, 512), Sampling: draws(seed), MaxTokens: 6, Logprobs: alternatives(3), Echo: true}
}

// Each token has the log-probability that the logits before it give, which a session
// computes token by token.
func TestPromptIsEchoedWithItsLogprobs(t *testing.T) {
	for name, path := range map[string]string{"a model whose layers attend": model(t, tinymodel.Default()), "a hybrid": hybrid(t)} {
		t.Run(name, func(t *testing.T) {
			e := ready(t, engine.Options{ModelPath: path, PrefixCache: true}, ref.Options{})
			r := echoing(1, 300)
			a := ask(t, e, r)
			if len(a.ranked) != len(r.Tokens) || len(a.logprobs) != len(a.tokens) || a.finished.Usage.Prompt != 300 {
				t.Fatalf("%d of %d tokens are ranked, and %d of %d generated ones", len(a.ranked), len(r.Tokens), len(a.logprobs), len(a.tokens))
			}
			if first := a.ranked[0]; first.Chosen != (sample.Likely{ID: r.Tokens[0]}) || len(first.Top) > 0 {
				t.Errorf("the first token follows nothing: %+v", first)
			}
			compare(t, path, r.Tokens, a.ranked)
		})
	}
}

func compare(t *testing.T, path string, tokens []int32, ranked []sample.Ranked) {
	t.Helper()
	session, err := engine.OpenSession(context.Background(), path, ref.New(ref.Options{Threads: 2}))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	id := session.NewRequest()
	for i := range tokens[:len(tokens)-1] {
		logits, err := session.Extend(context.Background(), id, tokens[i:i+1])
		if err != nil {
			t.Fatal(err)
		}
		want, err := sample.Rank(logits, tokens[i+1], 3)
		if err != nil {
			t.Fatal(err)
		}
		got := ranked[i+1]
		if got.Chosen.ID != tokens[i+1] || math.Abs(got.Chosen.Logprob-want.Chosen.Logprob) > 1e-3 || len(got.Top) != 3 || math.Abs(got.Top[0].Logprob-want.Top[0].Logprob) > 1e-3 {
			t.Fatalf("token %d: %+v, want %+v", i+1, got, want)
		}
	}
}

// What is echoed does not depend on company, on what is remembered, nor on where
// preemption cut the prompt; and what it computed of the prompt is remembered.
func TestEchoIsTheSameInCompanyAndFromTheCache(t *testing.T) {
	var rs []engine.Request
	for i := range uint64(5) {
		r := echoing(i, 180+2*int(i)) // answers cross the end of a block
		r.MaxTokens = 90
		if i == 3 {
			r.Echo = false
		}
		rs = append(rs, r)
	}
	o := engine.Options{ModelPath: model(t, tinymodel.Default()), Sequences: 4}
	e := ready(t, o, ref.Options{})
	var alone []answer
	for _, r := range rs {
		alone = append(alone, ask(t, e, r))
	}
	if alone[3].prompt != "" || len(alone[3].ranked) > 0 || alone[0].prompt == "" {
		t.Errorf("echoed %q and %q", alone[0].prompt, alone[3].prompt)
	}
	same(t, "in company", together(t, e, rs), alone)
	o.CacheTokens = 512 // less than any two of them take
	tight := ready(t, o, ref.Options{})
	same(t, "in a tight cache", together(t, tight, rs), alone)
	if tight.Status().Preemptions == 0 {
		t.Error("nothing was preempted")
	}
	o = engine.Options{ModelPath: o.ModelPath, CacheMemory: mebi}
	remembers := ready(t, o, ref.Options{})
	for range 2 {
		got := ask(t, remembers, rs[4])
		if got.finished.Usage.Cached != 0 {
			t.Errorf("%d tokens of a prompt that is ranked were restored", got.finished.Usage.Cached)
		}
		same(t, "with a prefix cache", []answer{got}, alone[4:])
	}
	plain := rs[4]
	plain.Echo = false
	if got := ask(t, remembers, plain); got.finished.Usage.Cached == 0 || !slices.Equal(got.tokens, alone[4].tokens) {
		t.Errorf("%d tokens were restored, and %v generated, want %v", got.finished.Usage.Cached, got.tokens, alone[4].tokens)
	}
}

func TestEchoHasTheTextOfThePrompt(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	const written = "Hello, tiny model <|im_end|>"
	byText := ask(t, e, engine.Request{Prompt: prompt(written), Echo: true, MaxTokens: 2})
	if byText.prompt != written || len(byText.ranked) > 0 {
		t.Errorf("echoed %q, and %d log-probabilities without logprobs", byText.prompt, len(byText.ranked))
	}
	s, err := e.Generate(t.Context(), engine.Request{Prompt: prompt(written), MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	ids := s.Prompt()
	collect(t, s)
	var spelled strings.Builder
	for _, id := range ids {
		spelled.Write(s.Spell(id))
	}
	byTokens := ask(t, e, engine.Request{Tokens: ids, Echo: true, MaxTokens: 2, Logprobs: alternatives(0)})
	if byTokens.prompt != spelled.String() || !strings.HasSuffix(byTokens.prompt, written) || len(byTokens.ranked) != len(ids) {
		t.Errorf("echoed %q, want %q, and %d of %d log-probabilities", byTokens.prompt, spelled.String(), len(byTokens.ranked), len(ids))
	}
}

// A prompt may fill the context where nothing is to be generated.
func TestPromptOnlyGeneratesNothing(t *testing.T) {
	for name, o := range map[string]ref.Options{"read at once": {}, "computed ahead": {Ahead: true}} {
		e := ready(t, engine.Options{Sequences: 2}, o)
		greedy := sample.Greedy()
		other := engine.Request{Tokens: tokensOf(1, 9, 512), Sampling: &greedy, MaxTokens: 60, IgnoreEnd: true}
		want := ask(t, e, other)
		full := echoing(2, 512)
		full.PromptOnly, full.MaxTokens = true, 0
		plain := engine.Request{Tokens: tokensOf(3, 512, 512), PromptOnly: true, Sampling: &greedy}
		got := together(t, e, []engine.Request{other, full, plain})
		same(t, name, got[:1], []answer{want})
		for i, a := range got[1:] {
			if a.finished != (engine.Finished{Reason: engine.Length, Usage: engine.Usage{Prompt: 512}}) || a.text != "" || len(a.tokens) > 0 || len(a.logprobs) > 0 {
				t.Errorf("%s: request %d: %+v %q %v", name, i, a.finished, a.text, a.tokens)
			}
		}
		if len(got[1].ranked) != 512 || len(got[2].ranked) != 0 {
			t.Errorf("%s: %d and %d tokens were ranked", name, len(got[1].ranked), len(got[2].ranked))
		}
		if st := e.Status(); st.GeneratedTokens != 120 || st.Memory.KV != 0 {
			t.Errorf("%s: status %+v", name, st)
		}
	}
}

// Each token of a chunk has a row of logits: the guard weighs them, and chunks are
// short.
func TestLogitsOfAnEchoedPromptAreWeighed(t *testing.T) {
	var mu sync.Mutex
	var seen []footprint.Prefill
	b := &believed{called: func(p footprint.Prefill) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, p)
	}}
	b.cost.Store(1)
	e := ready(t, engine.WithEstimator(engine.Options{LimitBytes: 1 << 30}, b), ref.Options{})
	ask(t, e, echoing(1, 300))
	mu.Lock()
	defer mu.Unlock()
	if len(seen) < 5 {
		t.Errorf("a prompt of 300 tokens was weighed %d times", len(seen))
	}
	for _, p := range seen {
		if !p.AllLogits || p.Chunk > 64 {
			t.Errorf("weighed %+v", p)
		}
	}
}

// A prompt whose tokens are ranked takes a part of each step, and the prompt after it the
// rest.
func TestAttackPromptsWhoseTokensAreRanked(t *testing.T) {
	closed, gate := new(atomic.Bool), make(chan struct{})
	e := ready(t, engine.Options{Sequences: 3}, ref.Options{}, func(op string) error {
		if op == "Embed" && closed.Load() {
			<-gate
		}
		return nil
	})
	before := e.Status().Steps
	closed.Store(true)
	var all []*engine.Stream
	for _, r := range []engine.Request{{Tokens: []int32{5}, MaxTokens: 1}, echoing(1, 384), {Tokens: tokensOf(2, 400, 512), MaxTokens: 1}} {
		r.MaxTokens, r.Sampling = 1, draws(1)
		s, err := e.Generate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	closed.Store(false)
	close(gate)
	for _, s := range all {
		if got := collect(t, s); got.finished.Err != nil {
			t.Fatal(got.finished.Err)
		}
	}
	if n := e.Status().Steps - before; n > 8 { // 384 tokens in chunks of 64, and the first
		t.Errorf("two prompts took %d steps", n)
	}
}

// The logits of a prompt that is ranked are many rows: their space is given up when nothing is
// computed, and before steps whose tokens the device samples.
func TestSpaceOfARankedPromptIsGivenUp(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	facts, _ := e.Facts()
	ask(t, e, engine.Request{Tokens: tokensOf(1, 200, 400), Echo: true, MaxTokens: 1, Logprobs: alternatives(0)})
	waitFor(t, "the return of the logits", func() bool { return engine.KeptLogits(t.Context(), e) <= int(facts.VocabularySize) })
}
