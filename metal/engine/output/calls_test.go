//go:build !race

package output

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tokenizer/tokenizertest"
	"metalfleet.dev/metalfleet/metal/toolcall"
)

const oneTool = `[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`

// calling assembles an answer of a model that may call f.
func calling(t *testing.T, single bool, stops ...string) *Assembler {
	t.Helper()
	return callingBy(t, single, nil, stops...)
}

// callingBy is the same if the vocabulary has control tokens.
func callingBy(t *testing.T, single bool, tokens []string, stops ...string) *Assembler {
	t.Helper()
	tools, err := toolcall.ReadTools([]byte(oneTool))
	if err != nil {
		t.Fatal(err)
	}
	p, err := toolcall.New(toolcall.Hermes, tools, toolcall.Options{Tokens: tokens, Held: true})
	if err != nil {
		t.Fatal(err)
	}
	return &Assembler{calls: &Calls{parser: p, single: single}, stops: sample.NewStopMatcher(stops)}
}

// assembled joins the deltas of an answer in these pieces, as a client that reads it at the
// end sees it: a delta with text starts a new part after a call. stopped is true if the
// answer ended before the last piece.
func assembled(a *Assembler, pieces ...string) (parts []Delta, stopped bool) {
	for _, piece := range pieces {
		if stopped = a.show(a.calls.push(piece)); stopped {
			break
		}
	}
	if !stopped {
		a.show(a.calls.flush(false))
	}
	for _, d := range a.deltas {
		last := len(parts) - 1
		if last < 0 || d.Text != "" && len(parts[last].Calls) > 0 {
			parts, last = append(parts, Delta{}), last+1
		}
		p := &parts[last]
		p.Text, p.Logprobs = p.Text+d.Text, append(p.Logprobs, d.Logprobs...)
		for _, c := range d.Calls {
			if at := len(p.Calls) - 1; at >= 0 && c.Name == "" && !p.Calls[at].Ended {
				p.Calls[at].Arguments += c.Arguments
				p.Calls[at].Ended, p.Calls[at].Written = c.Ended, c.Written
				continue
			}
			p.Calls = append(p.Calls, c)
		}
	}
	return parts, stopped
}

const oneCall = `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`

func TestCallsComeAfterTheirText(t *testing.T) {
	f := Call{Name: "f", Arguments: `{"a": 1}`, Ended: true}
	for name, c := range map[string]struct {
		stops   []string
		single  bool
		pieces  []string
		want    []Delta
		stopped bool
	}{
		"text, calls, text":       {pieces: []string{"Hi ", oneCall, oneCall, "so"}, want: []Delta{{Text: "Hi", Calls: []Call{f, f}}, {Text: "so"}}},
		"one call and no more":    {single: true, pieces: []string{oneCall + "so", "on"}, want: []Delta{{Calls: []Call{f}}}, stopped: true},
		"a stop in the text":      {stops: []string{"E"}, pieces: []string{"aE", oneCall}, want: []Delta{{Text: "a"}}, stopped: true},
		"half a stop before":      {stops: []string{"ab"}, pieces: []string{"a", oneCall, "b"}, want: []Delta{{Text: "a", Calls: []Call{f}}, {Text: "b"}}},
		"a stop in the arguments": {stops: []string{"arguments"}, pieces: []string{oneCall}, want: []Delta{{Calls: []Call{f}}}},
		"a call that is broken": {single: true, pieces: []string{`<tool_call>{"name": "f", "arguments": {x`},
			want: []Delta{{Calls: []Call{{Name: "f", Arguments: "{", Ended: true, Written: `{"name": "f", "arguments": {`}}}, {Text: "x"}}},
	} {
		got, stopped := assembled(calling(t, c.single, c.stops...), c.pieces...)
		if d := cmp.Diff(c.want, got); d != "" || stopped != c.stopped {
			t.Errorf("%s: stopped %v %s", name, stopped, d)
		}
	}
}

func TestTokensOfCallsHaveNoLogprobs(t *testing.T) {
	a := calling(t, false)
	for i, piece := range []string{"Hi", " ", `<tool_call>`, `{"name": "f", "argum`, `ents": {"a": `, `1}}`, `</tool_`, `call>`, "so"} {
		a.pending.add(&sample.Ranked{Chosen: sample.Likely{ID: int32(i)}}, 0)
		a.show(a.calls.push(piece))
	}
	a.show(a.calls.flush(false))
	var ids []int32
	for _, d := range a.deltas {
		for _, r := range d.Logprobs {
			ids = append(ids, r.Chosen.ID)
		}
	}
	if d := cmp.Diff([]int32{0, 8}, ids); d != "" {
		t.Error(d)
	}
}

func TestControlTokensOfACallAreReadAndShownNowhere(t *testing.T) {
	a := callingBy(t, false, []string{"<tool_call>", "</tool_call>"})
	a.calls.hidden = map[int32]string{7: toolcall.Hermes.Mark("<tool_call>"), 8: toolcall.Hermes.Mark("</tool_call>")}
	d := tokenizertest.New(t, false).NewDecoder(true)
	got, _ := assembled(a, "<tool_call>", a.calls.mark(7, d), a.calls.shown(`{"name": "f"}`)+a.calls.mark(1, d), a.calls.mark(8, d), a.calls.mark(8, d))
	if d := cmp.Diff([]Delta{{Text: "<tool_call>", Calls: []Call{{Name: "f", Arguments: "{}", Ended: true}}}}, got); d != "" {
		t.Error(d)
	}
	if shown := a.calls.shown("a\ufdd0b\ufdef\ufdf0"); shown != "a\ufffdb\ufffd\ufdf0" || (*Calls)(nil).shown("\ufdd0") != "\ufdd0" {
		t.Errorf("text of a model that looks like a control token becomes %q", shown)
	}
}
