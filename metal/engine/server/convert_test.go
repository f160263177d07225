package server

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/wire"
)

// An event is one message, with the log-probabilities in order.
func TestLogprobsOfAnEventAreOneMessage(t *testing.T) {
	const n = 20
	ev := engine.Event{Text: "t", Tokens: []int32{1}}
	for i := range n {
		ev.Logprobs = append(ev.Logprobs, sample.Ranked{Chosen: sample.Likely{ID: int32(i), Logprob: -1}, Top: []sample.Likely{{ID: 9, Logprob: math.Inf(-1)}}})
	}
	out := toDeltas(ev, func(id int32) []byte { return []byte{byte(id)} })
	if len(out) != 1 || out[0].GetText() != "t" || len(out[0].GetTokens()) != 1 || len(out[0].GetLogprobs()) != n {
		t.Fatalf("it became %v", out)
	}
	for i, l := range out[0].GetLogprobs() {
		c, top := l.GetChosen(), l.GetTop()
		if c.GetToken() != int32(i) || c.GetLogprob() != -1 || string(c.GetText()) != string([]byte{byte(i)}) ||
			len(top) != 1 || top[0].GetToken() != 9 || !math.IsInf(float64(top[0].GetLogprob()), -1) {
			t.Fatalf("log-probability %d is %v", i, l)
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

// An echoed prompt comes in a message of its own, before that of the answer.
func TestEchoedPromptIsAMessageOfItsOwn(t *testing.T) {
	spell := func(id int32) []byte { return []byte{byte(id)} }
	ev := engine.Event{Prompt: "p", PromptLogprobs: []sample.Ranked{{Chosen: sample.Likely{ID: 3}}, {Chosen: sample.Likely{ID: 4, Logprob: -1}}}}
	out := toDeltas(ev, spell)
	if len(out) != 1 || out[0].GetPrompt().GetText() != "p" || out[0].GetText() != "" || len(out[0].GetPrompt().GetLogprobs()) != 2 || out[0].GetPrompt().GetLogprobs()[1].GetChosen().GetToken() != 4 {
		t.Errorf("a prompt became %v", out)
	}
	ev.Text = "t"
	if out := toDeltas(ev, spell); len(out) != 2 || out[0].GetPrompt() == nil || out[1].GetText() != "t" || out[1].GetPrompt() != nil {
		t.Errorf("a prompt and text became %v", out)
	}
	if out := toDeltas(engine.Event{Text: "t"}, spell); len(out) != 1 || out[0].GetPrompt() != nil {
		t.Errorf("no prompt became %v", out)
	}
	f := toFinished(&engine.Finished{Reason: engine.Length, Full: true, Usage: engine.Usage{Generated: 5, Reasoning: 3}})
	if !f.GetContextFull() || f.GetUsage().GetReasoningTokens() != 3 {
		t.Errorf("%v", f)
	}
}

// gRPC sends no text that is not UTF-8, and the call would end as that of a lost engine.
func TestEachTextOfAnEventCanBeSent(t *testing.T) {
	const half, want = "a\xe5\x90", "a\ufffd"
	ev := engine.Event{Prompt: half, Text: half, Reasoning: half, Tokens: []int32{1},
		Calls: []output.Call{{Name: half, Arguments: half, Written: half, Ended: true}}}
	out := toDeltas(ev, nil)
	for _, d := range out {
		if _, err := proto.Marshal(d); err != nil {
			t.Error(err)
		}
	}
	c := out[1].GetCalls()[0]
	for i, got := range []string{out[0].GetPrompt().GetText(), out[1].GetText(), out[1].GetReasoning(), c.GetName(), c.GetArguments(), c.GetWritten()} {
		if got != want {
			t.Errorf("text %d is %q, want %q", i, got, want)
		}
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

// TestAttackTokensOfManyBytes: a vocabulary may have tokens of megabytes, and each token of an
// answer has twenty alternatives.
func TestAttackTokensOfManyBytes(t *testing.T) {
	long := make([]byte, 64<<10)
	ranked := sample.Ranked{Top: make([]sample.Likely, 20)}
	ev := engine.Event{Text: "t", Tokens: []int32{1}, Prompt: "p"}
	for range 16 {
		ev.Logprobs, ev.PromptLogprobs = append(ev.Logprobs, ranked), append(ev.PromptLogprobs, ranked)
	}
	const most = 16 * 21 * (wire.MaxSpelled + 64)
	for _, d := range toDeltas(ev, func(int32) []byte { return long }) {
		if n := proto.Size(d); n > most {
			t.Errorf("a message has %d bytes, want at most %d", n, most)
		}
	}
}
