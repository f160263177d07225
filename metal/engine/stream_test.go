package engine

import (
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/sample"
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
