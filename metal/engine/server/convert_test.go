package server

import (
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Log-probabilities that nobody read for a while come in several messages, in
// their order, the text and the tokens once.
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
