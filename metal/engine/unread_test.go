package engine_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// unreadRoom of the engines of these tests; a tenant has half.
const unreadRoom = 128 << 10

func talkative(t *testing.T) *engine.Engine {
	t.Helper()
	c := tinymodel.Default()
	c.Context, c.Vocabulary = 1024, 640
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	return ready(t, engine.WithUnread(engine.Options{ModelPath: path, Sequences: 4}, unreadRoom), ref.Options{})
}

// ended waits for the end of a stream that is not read.
func ended(s *engine.Stream) {
	over := make(chan struct{})
	engine.OnFinish(s, func() { close(over) })
	<-over
}

func ranked(tenant string, tokens int) engine.Request {
	return engine.Request{Tokens: []int32{5, 6, 7}, Tenant: tenant, Sampling: draws(3), MaxTokens: tokens, IgnoreEnd: true, Logprobs: alternatives(sample.MostAlternatives)}
}

// Answers that no client reads are counted when they have ended too: one too many ends with a
// refusal, others of another tenant do not, and an abort frees them all.
func TestAttackAnswersThatNoClientReads(t *testing.T) {
	e := talkative(t)
	var all []*engine.Stream
	for range 12 {
		s, err := e.Generate(t.Context(), ranked("a", 40))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ended(s)
		all = append(all, s)
		if _, unread := engine.Held(e); unread > unreadRoom/2+4<<10 {
			t.Fatalf("%d bytes of a tenant wait to be read, want %d at most", unread, unreadRoom/2)
		}
	}
	if _, unread := engine.Held(e); unread < unreadRoom/4 {
		t.Errorf("%d bytes wait to be read: the answers show little", unread)
	}
	if last := collect(t, all[11]).finished; last.Err == nil || last.Err.Kind != engine.Aborted || !strings.Contains(last.Err.Message, "have not read") {
		t.Errorf("the last answer ended with %+v", last)
	}
	other := collectClosed(t, e, ranked("b", 40))
	if first := collect(t, all[0]); first.finished.Err != nil || len(first.logprobs) != 40 || other.finished.Err != nil || len(other.logprobs) != 40 {
		t.Errorf("an answer within the share has %d log-probabilities and ended with %+v, one of another tenant %d, %+v", len(first.logprobs), first.finished, len(other.logprobs), other.finished)
	}
	all[0].Close()
	if _, err := e.Abort(t.Context(), "short of memory"); err != nil {
		t.Fatal(err)
	}
	if _, unread := engine.Held(e); unread != 0 {
		t.Errorf("%d bytes wait to be read after an abort", unread)
	}
	if got := collect(t, all[1]); got.text != "" || got.finished.Err == nil || got.finished.Err.Message != "short of memory" {
		t.Errorf("after an abort an unread answer ended with %q, %+v", got.text, got.finished)
	}
}

func collectClosed(t *testing.T, e *engine.Engine, r engine.Request) answer {
	t.Helper()
	s, err := e.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return collect(t, s)
}

// Log-probabilities of tokens that show no text wait with the engine, and count as well: the
// answer ends, although its client reads.
func TestAttackTokensThatShowNothing(t *testing.T) {
	e := talkative(t)
	r := ranked("a", 900)
	p := sample.Greedy()
	p.Bias = map[int32]float32{600: 100}
	r.Sampling = &p
	got := collectClosed(t, e, r)
	if got.text != "" {
		t.Fatalf("the token shows %q", got.text)
	}
	if got.finished.Err == nil || got.finished.Err.Kind != engine.Aborted {
		t.Errorf("%d tokens ended with %+v", len(got.tokens), got.finished)
	}
	if _, unread := engine.Held(e); unread != 0 {
		t.Errorf("%d bytes are counted after the end", unread)
	}
}

// What was not read for a while comes in several events, in order, and is what a client gets
// that reads at once.
func TestManyLogprobsAreSeveralEvents(t *testing.T) {
	e := talkative(t)
	r := ranked("a", 100)
	r.Echo, r.Logprobs = true, alternatives(2)
	for range 50 {
		r.Tokens = append(r.Tokens, 8, 9)
	}
	want := collectClosed(t, e, r)
	s, err := e.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	ended(s)
	var got answer
	for events := 1; ; events++ {
		ev, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(ev.Logprobs) > 16 || len(ev.PromptLogprobs) > 16 {
			t.Errorf("event %d has %d log-probabilities, and %d of the prompt", events, len(ev.Logprobs), len(ev.PromptLogprobs))
		}
		got.text, got.prompt = got.text+ev.Text, got.prompt+ev.Prompt
		got.tokens, got.logprobs, got.ranked = append(got.tokens, ev.Tokens...), append(got.logprobs, ev.Logprobs...), append(got.ranked, ev.PromptLogprobs...)
		if ev.Finished != nil {
			break
		}
	}
	same := func(a, b sample.Ranked) bool { return a.Chosen == b.Chosen && slices.Equal(a.Top, b.Top) }
	if len(got.logprobs) != 100 || len(got.ranked) != 103 || got.text != want.text || got.prompt != want.prompt || !slices.Equal(got.tokens, want.tokens) ||
		!slices.EqualFunc(got.logprobs, want.logprobs, same) || !slices.EqualFunc(got.ranked, want.ranked, same) {
		t.Errorf("read late: %d and %d log-probabilities, %q; want %d and %d, %q", len(got.logprobs), len(got.ranked), got.text, len(want.logprobs), len(want.ranked), want.text)
	}
	s.Close()
	if _, unread := engine.Held(e); unread != 0 {
		t.Errorf("%d bytes are counted after the end", unread)
	}
}
