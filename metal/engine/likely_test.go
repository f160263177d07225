package engine_test

import (
	"bytes"
	"context"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

func chosen(a answer) (ids []int32) {
	for _, r := range a.logprobs {
		ids = append(ids, r.Chosen.ID)
	}
	return ids
}

// Log-probabilities are those of the model's logits, before penalties, biases
// and filters.
func TestLogprobsAreThoseOfTheModel(t *testing.T) {
	path := model(t, tinymodel.Default())
	e := ready(t, engine.Options{ModelPath: path}, ref.Options{})
	p := *draws(5)
	p.Bias, p.TopP, p.FrequencyPenalty = map[int32]float32{77: 6}, 0.9, 1
	tokens := []int32{5, 6, 7, 8}
	a := ask(t, e, engine.Request{Tokens: tokens, Sampling: &p, MaxTokens: 24, Logprobs: alternatives(sample.MostAlternatives)})
	if !slices.Equal(chosen(a), a.tokens) {
		t.Fatalf("told of %v, generated %v", chosen(a), a.tokens)
	}
	session, err := engine.OpenSession(context.Background(), path, ref.New(ref.Options{Threads: 2}))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	for i, r := range a.logprobs {
		logits, err := session.Evaluate(context.Background(), slices.Concat(tokens, a.tokens[:i]))
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, v := range logits {
			sum += math.Exp(float64(v))
		}
		for _, l := range append(slices.Clone(r.Top), r.Chosen) {
			if want := float64(logits[l.ID]) - math.Log(sum); math.Abs(l.Logprob-want) > 1e-4 {
				t.Errorf("token %d of the answer: %+v, want %v", i, l, want)
			}
		}
		if len(r.Top) != sample.MostAlternatives || r.Top[0].ID != int32(slices.Index(logits, slices.Max(logits))) {
			t.Errorf("token %d of the answer: most likely %+v", i, r.Top)
		}
	}
}

// The tokens with log-probabilities add up to the text: a token of a stop
// string has none, one that is partly shown has.
func TestLogprobsAreToldOfWhatIsShown(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	plain := regexp.MustCompile(`<\|[a-z_]+[0-9]*\|>`) // these show no text
	spelled := func(s *engine.Stream, ids []int32) string {
		var b bytes.Buffer
		for _, id := range ids {
			b.Write(s.Spell(id))
		}
		return plain.ReplaceAllString(strings.ToValidUTF8(b.String(), ""), "")
	}
	cut := 0
	for seed := range uint64(12) {
		r := engine.Request{Prompt: prompt("Show me more"), Sampling: draws(seed), MaxTokens: 40, Logprobs: alternatives(1)}
		whole := ask(t, e, r)
		if whole.finished.Reason == engine.Length && !slices.Equal(chosen(whole), whole.tokens) {
			t.Errorf("seed %d: told of %v, generated %v", seed, chosen(whole), whole.tokens)
		}
		runes := []rune(strings.ReplaceAll(whole.text, "\ufffd", ""))
		if len(runes) < 12 {
			continue
		}
		r.Stop = []string{string(runes[len(runes)/2 : len(runes)/2+2])}
		s, err := e.Generate(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		a := collect(t, s)
		told := chosen(a)
		if len(told) > len(a.tokens) || !slices.Equal(told, a.tokens[:len(told)]) {
			t.Fatalf("seed %d: told of %v, generated %v", seed, told, a.tokens)
		}
		if shown, text := strings.ReplaceAll(a.text, "\ufffd", ""), spelled(s, told); !strings.HasPrefix(text, shown) {
			t.Errorf("seed %d: told of %q, shown %q", seed, text, shown)
		}
		if a.finished.Reason == engine.Stop && len(told) < len(a.tokens) {
			cut++
		}
	}
	if cut == 0 {
		t.Error("no stop string had a token of its own")
	}
}

// TestLogprobsThatNobodyReadAreHeld stops an engine inside a step:
// log-probabilities that the client has not read yet count as memory held.
func TestLogprobsThatNobodyReadAreHeld(t *testing.T) {
	const steps = 12
	embeds, stopped, again := 0, make(chan struct{}), make(chan struct{})
	e := ready(t, engine.Options{ModelPath: model(t, tinymodel.Default())}, ref.Options{}, func(op string) error {
		if op != "Embed" {
			return nil
		}
		if embeds++; embeds == steps || embeds == steps+1 {
			stopped <- struct{}{}
			<-again
		}
		return nil
	})
	s, err := e.Generate(t.Context(), engine.Request{Tokens: []int32{5, 6, 7}, Sampling: draws(3), MaxTokens: 40, Logprobs: alternatives(sample.MostAlternatives)})
	if err != nil {
		t.Fatal(err)
	}
	<-stopped
	before, unread := engine.Held(e)
	m := engine.BackendOf(e).Memory()
	if least := int64(4 * 16 * sample.MostAlternatives); unread < least {
		t.Errorf("%d bytes are not read yet, want %d at least", unread, least)
	}
	if rest := m.Active() + engine.Overhead(e); before < rest+unread {
		t.Errorf("%d bytes are held in addition to %d, want %d unread ones among them", before, rest, unread)
	}
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	again <- struct{}{}
	<-stopped                                      // one step later
	if _, err := s.Next(t.Context()); err != nil { // what was read before is sent
		t.Fatal(err)
	}
	if _, left := engine.Held(e); left >= unread {
		t.Errorf("%d bytes are not read yet after all were, %d before", left, unread)
	}
	close(again)
	collect(t, s)
	s.Close()
	if _, left := engine.Held(e); left != 0 {
		t.Errorf("%d bytes are unread after the end", left)
	}
}
