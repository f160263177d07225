package engine_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// endsAtOnce draws the end of the turn wherever it may.
func endsAtOnce() *sample.Params {
	p := draws(4)
	p.Bias = map[int32]float32{2: 100}
	return p
}

// Only a prompt that leaves no room is refused, and no answer takes more of the
// cache than the context promises.
func TestAnswerIsCutToTheRoomInTheContext(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 3, ContextTokens: 100}, ref.Options{})
	room := 100 - 60
	var rs []engine.Request
	for _, most := range []int{32000, room + 1, 0, room, room - 1} {
		rs = append(rs, engine.Request{Tokens: tokensOf(uint64(most), 60, 512), Sampling: draws(1), MaxTokens: most, IgnoreEnd: true})
	}
	for i, a := range together(t, e, rs) {
		want := engine.Finished{Reason: engine.Length, Full: i < 3, Usage: engine.Usage{Prompt: 60, Generated: min(room, or(rs[i].MaxTokens, room))}}
		if a.finished != want {
			t.Errorf("%d tokens wanted: %+v, want %+v", rs[i].MaxTokens, a.finished, want)
		}
	}
	if m := e.Status().Memory; m.KV != 0 {
		t.Errorf("%d bytes of keys and values are leaked", m.KV)
	}
}

func or(a, b int) int {
	if a == 0 {
		return b
	}
	return a
}

func TestMinTokensComeBeforeTheEnd(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	greedy := sample.Greedy()
	plain := ask(t, e, engine.Request{Tokens: tokensOf(7, 9, 512), Sampling: &greedy, MaxTokens: 30, IgnoreEnd: true})
	first, text := plain.tokens[0], plain.text
	stop := string([]rune(text)[:2])
	for name, c := range map[string]struct {
		r         engine.Request
		generated int
		reason    engine.FinishReason
	}{
		"the end of the turn":          {r: engine.Request{Sampling: endsAtOnce()}, generated: 1, reason: engine.Stop},
		"not before five tokens":       {r: engine.Request{Sampling: endsAtOnce(), MinTokens: 5}, generated: 6, reason: engine.Stop},
		"ended by max_tokens":          {r: engine.Request{Sampling: endsAtOnce(), MinTokens: 5, MaxTokens: 5}, generated: 5, reason: engine.Length},
		"a stop token":                 {r: engine.Request{Sampling: &greedy, StopTokens: []int32{first}}, generated: 1, reason: engine.Stop},
		"a stop token, the end apart":  {r: engine.Request{Sampling: &greedy, StopTokens: []int32{first}, IgnoreEnd: true}, generated: 1, reason: engine.Stop},
		"an end that is ignored":       {r: engine.Request{Sampling: endsAtOnce(), IgnoreEnd: true, MaxTokens: 20}, generated: 20, reason: engine.Length},
		"a form ends all the same":     {r: engine.Request{Sampling: endsAtOnce(), IgnoreEnd: true, Constraint: form(grammar.Regex, "(ab)*"), MaxTokens: 20}, generated: 1, reason: engine.Stop},
		"a form that is complete ends": {r: engine.Request{Sampling: endsAtOnce(), MinTokens: 19, Constraint: form(grammar.Regex, "a"), MaxTokens: 20}, generated: 1, reason: engine.Stop},
		"a form that can go on does":   {r: engine.Request{Sampling: endsAtOnce(), MinTokens: 9, Constraint: form(grammar.Regex, "a*"), MaxTokens: 20}, generated: 10, reason: engine.Stop},
	} {
		c.r.Tokens = tokensOf(7, 9, 512)
		if a := ask(t, e, c.r); a.finished.Reason != c.reason || a.finished.Usage.Generated != c.generated || a.finished.Err != nil {
			t.Errorf("%s: %+v, %q; want %d tokens and %s", name, a.finished, a.text, c.generated, c.reason)
		}
	}
	r := engine.Request{Tokens: tokensOf(7, 9, 512), Sampling: &greedy, MaxTokens: 30, IgnoreEnd: true, Stop: []string{stop}}
	if a := ask(t, e, r); a.finished.Stop != stop || a.text != "" {
		t.Errorf("stop string %q: %+v, %q", stop, a.finished, a.text)
	}
	r.MinTokens = len(plain.tokens) - 3
	if a := ask(t, e, r); a.finished.Usage.Generated < r.MinTokens || !strings.HasPrefix(a.text, stop) {
		t.Errorf("stop string %q within the first %d tokens: %+v, %q", stop, r.MinTokens, a.finished, a.text)
	}
}

// A token that is to end the text shows none of its own, and is not told of.
func TestStopTokensShowNothing(t *testing.T) {
	for name, o := range map[string]ref.Options{"read at once": {}, "computed ahead": {Ahead: true}} {
		e := ready(t, engine.Options{}, o)
		greedy := sample.Greedy()
		r := engine.Request{Tokens: tokensOf(8, 9, 512), Sampling: &greedy, MaxTokens: 40, IgnoreEnd: true}
		plain := ask(t, e, r)
		at := slices.IndexFunc(plain.tokens, func(id int32) bool { return id != plain.tokens[0] })
		if at < 1 {
			t.Fatalf("%s: all tokens are alike: %v", name, plain.tokens)
		}
		r.StopTokens = []int32{plain.tokens[at], 3}
		a := ask(t, e, r)
		if !slices.Equal(a.tokens, plain.tokens[:at]) || a.finished.Reason != engine.Stop || a.finished.Stop != "" || a.finished.Usage.Generated != at+1 || !strings.HasPrefix(plain.text, a.text) {
			t.Errorf("%s: %v %q %+v, want %v", name, a.tokens, a.text, a.finished, plain.tokens[:at])
		}
		r.Logprobs = alternatives(1)
		if b := ask(t, e, r); len(b.logprobs) != at || b.text != a.text {
			t.Errorf("%s: %d log-probabilities of %q", name, len(b.logprobs), b.text)
		}
	}
}

// The penalty counts the prompt, before anything is generated.
func TestRepetitionPenaltyKnowsThePrompt(t *testing.T) {
	path := model(t, tinymodel.Default())
	e := ready(t, engine.Options{ModelPath: path}, ref.Options{})
	session, err := engine.OpenSession(context.Background(), path, ref.New(ref.Options{Threads: 2}))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	changed := 0
	for seed := range uint64(12) {
		tokens := tokensOf(seed, 300, 512)
		logits, err := session.Evaluate(context.Background(), tokens)
		if err != nil {
			t.Fatal(err)
		}
		for id, v := range logits {
			switch {
			case !slices.Contains(tokens, int32(id)):
			case v > 0:
				logits[id] = v / 3
			default:
				logits[id] = v * 3
			}
		}
		want := int32(slices.Index(logits, slices.Max(logits)))
		p := sample.Greedy()
		plain := ask(t, e, engine.Request{Tokens: tokens, Sampling: &p, MaxTokens: 1, IgnoreEnd: true}).tokens
		p.RepetitionPenalty = 3
		if got := ask(t, e, engine.Request{Tokens: tokens, Sampling: &p, MaxTokens: 1, IgnoreEnd: true}).tokens; !slices.Equal(got, []int32{want}) {
			t.Errorf("prompt %d: %v, want %d", seed, got, want)
		}
		if plain[0] != want {
			changed++
		}
	}
	if changed < 3 {
		t.Errorf("the penalty changed %d tokens only", changed)
	}
}
