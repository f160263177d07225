package engine

import (
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/share"
)

// Arguments that come in many pieces and are not read take no more time with each piece.
func TestAttackArgumentsThatNoClientReads(t *testing.T) {
	s := newStream([]int32{1}, nil, unread{})
	piece := strings.Repeat("a", 16)
	push := func(c output.Call) { s.push([]output.Delta{{Calls: []output.Call{c}}}, 0) }
	push(output.Call{Name: "f"})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4000 {
		push(output.Call{Arguments: piece})
	}
	push(output.Call{Ended: true, Written: "w"})
	push(output.Call{Name: "g", Arguments: "{}"})
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
		t.Errorf("%d bytes are allocated", n)
	}
	ev, err := s.Next(t.Context())
	if err != nil || len(ev.Calls) != 2 || ev.Calls[0].Arguments != strings.Repeat(piece, 4000) || !ev.Calls[0].Ended || ev.Calls[0].Written != "w" || ev.Calls[1].Arguments != "{}" {
		t.Errorf("%d calls (%v)", len(ev.Calls), err)
	}
	push(output.Call{Arguments: "b"})
	push(output.Call{Arguments: "c"})
	if ev, err := s.Next(t.Context()); err != nil || len(ev.Calls) != 1 || ev.Calls[0].Arguments != "bc" {
		t.Errorf("%+v (%v)", ev.Calls, err)
	}
}

// A prompt comes in several events, each of whole characters: an
// agent takes no message as long as all unread output may be.
func TestALongPromptIsEchoedInParts(t *testing.T) {
	s := newStream([]int32{1}, nil, unread{})
	prompt := "x" + strings.Repeat("é", maxUnread/2-1)
	s.pushPrompt(prompt, []sample.Ranked{{}})
	s.finish(Finished{})
	var got strings.Builder
	for ranked := 0; ; {
		ev, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(ev.Prompt) > maxPrompt || !utf8.ValidString(ev.Prompt) {
			t.Fatalf("an event has %d bytes of the prompt", len(ev.Prompt))
		}
		got.WriteString(ev.Prompt)
		ranked += len(ev.PromptLogprobs)
		if ev.Finished == nil {
			continue
		}
		if ranked != 1 {
			t.Errorf("%d log-probabilities of the prompt", ranked)
		}
		break
	}
	if got.String() != prompt {
		t.Errorf("%d bytes of the prompt came, want %d", got.Len(), len(prompt))
	}
}

// TestALongAnswerThatWaitsComesInParts: an agent gets one event of each request at once, and takes
// none that is as long as all unread output may be.
func TestALongAnswerThatWaitsComesInParts(t *testing.T) {
	s := newStream([]int32{1}, nil, unread{})
	text, thoughts := "x"+strings.Repeat("é", 1<<20), strings.Repeat("a", 3*maxText+1)
	s.pushPrompt("p", []sample.Ranked{{}})
	s.push([]output.Delta{{Text: text, Reasoning: thoughts, Tokens: make([]int32, 3*maxTokens+1), Logprobs: make([]sample.Ranked, 2*maxRanked+1)}}, 0)
	s.push([]output.Delta{{Calls: []output.Call{{Name: "f", Arguments: "{}", Ended: true}}}}, 0)
	for range 2 * maxCalls {
		s.push([]output.Delta{{Calls: []output.Call{{Name: "g", Ended: true}}}}, 0)
	}
	s.push([]output.Delta{{Calls: []output.Call{{Name: "h", Arguments: text}}}, {Calls: []output.Call{{Ended: true, Written: thoughts}}}}, 0)
	s.finish(Finished{})
	var gotText, gotThoughts, calls strings.Builder
	var all Event
	for {
		ev, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range ev.Calls {
			calls.WriteString(c.Name + c.Arguments + c.Written)
			if c.Ended {
				calls.WriteString(";")
			}
		}
		if bytesOf("", "", nil, nil, ev.Calls) > maxText || len(ev.Calls) > maxCalls {
			t.Fatalf("an event has %d bytes of %d calls", bytesOf("", "", nil, nil, ev.Calls), len(ev.Calls))
		}
		if len(ev.Text) > maxText || len(ev.Reasoning) > maxText || len(ev.Tokens) > maxTokens || len(ev.Logprobs) > maxRanked || !utf8.ValidString(ev.Text) {
			t.Fatalf("an event has %d and %d bytes of text, %d tokens and %d log-probabilities", len(ev.Text), len(ev.Reasoning), len(ev.Tokens), len(ev.Logprobs))
		}
		if all.Prompt == "" && ev.Prompt == "" {
			t.Fatal("the prompt does not come first")
		}
		gotText.WriteString(ev.Text)
		gotThoughts.WriteString(ev.Reasoning)
		all.Prompt += ev.Prompt
		all.Tokens, all.Logprobs = append(all.Tokens, ev.Tokens...), append(all.Logprobs, ev.Logprobs...)
		all.PromptLogprobs = append(all.PromptLogprobs, ev.PromptLogprobs...)
		if ev.Finished != nil {
			break
		}
	}
	if gotText.String() != text || gotThoughts.String() != thoughts {
		t.Errorf("%d and %d bytes of text came, want %d and %d", gotText.Len(), gotThoughts.Len(), len(text), len(thoughts))
	}
	if want := "f{};" + strings.Repeat("g;", 2*maxCalls) + "h" + text + thoughts + ";"; calls.String() != want {
		t.Errorf("%d bytes of calls came, want %d", calls.Len(), len(want))
	}
	if all.Prompt != "p" || len(all.PromptLogprobs) != 1 || len(all.Tokens) != 3*maxTokens+1 || len(all.Logprobs) != 2*maxRanked+1 {
		t.Errorf("%q, %d log-probabilities of it, %d tokens and %d log-probabilities", all.Prompt, len(all.PromptLogprobs), len(all.Tokens), len(all.Logprobs))
	}
}

// TestATextCountsUntilAllOfItWasSent: the parts that were sent are in memory with the rest.
func TestATextCountsUntilAllOfItWasSent(t *testing.T) {
	all := share.NewBytes(maxUnread)
	s := newStream([]int32{1}, nil, unread{share: all, tenant: "a"})
	const size = 1 << 20
	s.pushPrompt(strings.Repeat("x", size), nil)
	for sent := 0; sent < size; {
		ev, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if sent += len(ev.Prompt); sent < size && all.Held() < size {
			t.Fatalf("%d bytes count when %d of %d were sent", all.Held(), sent, size)
		}
	}
	if all.Held() > 2*maxPrompt {
		t.Errorf("%d bytes count when all were sent", all.Held())
	}
}
