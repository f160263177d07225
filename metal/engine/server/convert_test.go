package server

import (
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Log-probabilities that were not read for a while are sent in several
// messages, in order; text and tokens are sent once.
func TestManyLogprobsAreSeveralMessages(t *testing.T) {
	for n, messages := range map[int]int{0: 1, 1: 1, mostRanked: 1, mostRanked + 1: 2, 3 * mostRanked: 3} {
		ev := engine.Event{Text: "t", Tokens: []int32{1}}
		for i := range n {
			ev.Logprobs = append(ev.Logprobs, sample.Ranked{Chosen: sample.Likely{ID: int32(i), Logprob: -1}, Top: []sample.Likely{{ID: 9, Logprob: math.Inf(-1)}}})
		}
		out := toDeltas(ev, func(id int32) []byte { return []byte{byte(id)} })
		next := int32(0)
		for i, d := range out {
			if (d.GetText() == "t") != (i == 0) || (len(d.GetTokens()) == 1) != (i == 0) || len(d.GetLogprobs()) > mostRanked {
				t.Errorf("%d: message %d has %q, %d tokens, %d log-probabilities", n, i, d.GetText(), len(d.GetTokens()), len(d.GetLogprobs()))
			}
			for _, l := range d.GetLogprobs() {
				c, top := l.GetChosen(), l.GetTop()
				if c.GetToken() != next || c.GetLogprob() != -1 || string(c.GetText()) != string([]byte{byte(next)}) ||
					len(top) != 1 || top[0].GetToken() != 9 || !math.IsInf(float64(top[0].GetLogprob()), -1) {
					t.Fatalf("%d: log-probability %d is %v", n, next, l)
				}
				next++
			}
		}
		if len(out) != messages || int(next) != n {
			t.Errorf("%d log-probabilities became %d in %d messages, want %d", n, next, len(out), messages)
		}
	}
}

func TestWhatIsAskedOfLogprobsReachesTheEngine(t *testing.T) {
	ask := func(r *wire.GenerateRequest) engine.Request {
		r.Input = &wire.GenerateRequest_Prompt{Prompt: "p"}
		out, refusal := fromRequest(r)
		if refusal != nil {
			t.Fatal(refusal)
		}
		return out
	}
	n := int32(0)
	if r := ask(&wire.GenerateRequest{TopLogprobs: &n, Sampling: &wire.Sampling{LogitBias: map[int32]float32{3: -7.5}}}); r.Logprobs == nil || *r.Logprobs != 0 || r.Sampling.Bias[3] != -7.5 {
		t.Errorf("%+v, %+v", r, r.Sampling)
	}
	if r := ask(&wire.GenerateRequest{}); r.Logprobs != nil || len(r.Sampling.Bias) > 0 {
		t.Errorf("nothing was asked for: %+v", r)
	}
}

// An echoed prompt comes in messages of its own, before those of the answer.
func TestEchoedPromptIsSeveralMessages(t *testing.T) {
	spell := func(id int32) []byte { return []byte{byte(id)} }
	for n, messages := range map[int]int{0: 1, 1: 1, mostRanked: 1, mostRanked + 1: 2, 2*mostRanked + 1: 3} {
		ev := engine.Event{Prompt: "p"}
		for i := range n {
			ev.PromptLogprobs = append(ev.PromptLogprobs, sample.Ranked{Chosen: sample.Likely{ID: int32(i), Logprob: -1}})
		}
		out, next := toPrompt(ev, spell), int32(0)
		for i, d := range out {
			p := d.GetPrompt()
			if (p.GetText() == "p") != (i == 0) || d.GetText() != "" || len(p.GetLogprobs()) > mostRanked {
				t.Errorf("%d: message %d is %v", n, i, d)
			}
			for _, l := range p.GetLogprobs() {
				if l.GetChosen().GetToken() != next {
					t.Fatalf("%d: token %d is %v", n, next, l)
				}
				next++
			}
		}
		if len(out) != messages || int(next) != n || toDeltas(ev, spell) != nil {
			t.Errorf("%d tokens became %d in %d messages, want %d", n, next, len(out), messages)
		}
	}
	if out := toPrompt(engine.Event{Text: "t"}, spell); out != nil {
		t.Errorf("no prompt became %v", out)
	}
	f := toFinished(&engine.Finished{Reason: engine.Length, Full: true, Usage: engine.Usage{Generated: 5, Reasoning: 3}})
	if !f.GetContextFull() || f.GetUsage().GetReasoningTokens() != 3 {
		t.Errorf("%v", f)
	}
}

func TestLengthsAndEchoesReachTheEngine(t *testing.T) {
	penalty := float32(1.5)
	got, refusal := fromRequest(&wire.GenerateRequest{Input: &wire.GenerateRequest_Prompt{Prompt: "p"}, Sampling: &wire.Sampling{RepetitionPenalty: &penalty},
		MaxTokens: 9, MinTokens: 2, IgnoreEos: true, StopTokenIds: []int32{5}, Echo: true, PromptOnly: true})
	if refusal != nil || got.MaxTokens != 9 || got.MinTokens != 2 || !got.IgnoreEnd || len(got.StopTokens) != 1 || !got.Echo || !got.PromptOnly || got.Sampling.RepetitionPenalty != 1.5 {
		t.Errorf("%+v, %v", got, refusal)
	}
	if got, _ := fromRequest(&wire.GenerateRequest{Input: &wire.GenerateRequest_Prompt{Prompt: "p"}}); got.MinTokens != 0 || got.IgnoreEnd || got.Echo || got.PromptOnly || got.Sampling.Repeats() {
		t.Errorf("nothing was asked for: %+v, %+v", got, got.Sampling)
	}
}

func TestWhatIsChosenOfToolsReachesTheEngine(t *testing.T) {
	for _, c := range []*engine.Calls{nil, {}, {Required: true}, {Required: true, Name: "f"}, {Single: true}, {Strict: true}} {
		in := &wire.Chat{ToolsJson: "[]"}
		if c != nil {
			in.Calls = &wire.Calls{Required: c.Required, Name: c.Name, Single: c.Single, Strict: c.Strict}
		}
		got, refusal := fromRequest(&wire.GenerateRequest{Input: &wire.GenerateRequest_Chat{Chat: in}})
		if refusal != nil || string(got.Chat.Tools) != "[]" || (got.Calls == nil) != (c == nil) || c != nil && *got.Calls != *c {
			t.Errorf("%+v became %+v, %v", c, got.Calls, refusal)
		}
	}
}
