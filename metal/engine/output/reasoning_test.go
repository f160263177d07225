//go:build !race

package output

import (
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer/tokenizertest"
)

// divided is an answer that passed through a Reasoner.
func divided(t *testing.T, r *Reasoner, ids ...int32) (thoughts, answer string, counted int) {
	t.Helper()
	d := tokenizertest.New(t, false).NewDecoder(true)
	for _, id := range ids {
		shown, err := d.Push(id)
		if err != nil {
			t.Fatal(err)
		}
		th, an, counts := r.push(id, shown)
		thoughts, answer = thoughts+th, answer+an
		if counts {
			counted++
		}
	}
	th, an := r.flush(d.Flush())
	return thoughts + th, answer + an, counted
}

func TestReasoningIsSeparatedFromTheAnswer(t *testing.T) {
	tags := text.Reasoning{Opens: "<think>", Closes: "</think>"}
	for name, c := range map[string]struct {
		prompt, ids      []int32
		thoughts, answer string
		counted, thought int
	}{
		"the model opens":            {ids: []int32{tokenizertest.Opens, tokenizertest.Line, tokenizertest.A, tokenizertest.Line, tokenizertest.B, tokenizertest.Line, tokenizertest.Closes, tokenizertest.Line, tokenizertest.Line, tokenizertest.B, tokenizertest.Line, tokenizertest.A}, thoughts: "a\nb", answer: "b\na", counted: 3, thought: 5},
		"the template opened":        {prompt: []int32{tokenizertest.Opens, tokenizertest.Line}, ids: []int32{tokenizertest.A, tokenizertest.Closes, tokenizertest.B}, thoughts: "a", answer: "b", counted: 1, thought: 1},
		"the template closed":        {prompt: []int32{tokenizertest.Opens, tokenizertest.Line, tokenizertest.Closes, tokenizertest.Line}, ids: []int32{tokenizertest.A, tokenizertest.Opens, tokenizertest.B}, answer: "a<think>b", counted: 3, thought: 0},
		"no thoughts":                {ids: []int32{tokenizertest.A, tokenizertest.Opens, tokenizertest.B, tokenizertest.Closes}, answer: "a<think>b</think>", counted: 4, thought: 0},
		"cut while it thinks":        {ids: []int32{tokenizertest.Opens, tokenizertest.A, tokenizertest.Line}, thoughts: "a", counted: 0, thought: 2},
		"nothing thought":            {ids: []int32{tokenizertest.Opens, tokenizertest.Line, tokenizertest.Line, tokenizertest.Closes, tokenizertest.Line, tokenizertest.A}, answer: "a", counted: 1, thought: 2},
		"a second thought is answer": {ids: []int32{tokenizertest.Opens, tokenizertest.A, tokenizertest.Closes, tokenizertest.B, tokenizertest.Opens, tokenizertest.A}, thoughts: "a", answer: "b<think>a", counted: 3, thought: 1},
	} {
		r := NewReasoner(tokenizertest.New(t, false), tags, c.prompt)
		thoughts, answer, counted := divided(t, r, c.ids...)
		if thoughts != c.thoughts || answer != c.answer || counted != c.counted || r.count() != c.thought {
			t.Errorf("%s: thought %q in %d tokens, answered %q in %d", name, thoughts, r.count(), answer, counted)
		}
	}
	if thoughts, answer, _ := divided(t, nil, tokenizertest.Opens, tokenizertest.A, tokenizertest.Closes); thoughts != "" || answer != "<think>a</think>" {
		t.Errorf("no reasoner: %q, %q", thoughts, answer)
	}
	if r := NewReasoner(tokenizertest.New(t, false), text.Reasoning{}, nil); r != nil {
		t.Errorf("a model that does not think: %+v", r)
	}
}

// Gemma 4 names the channel of its thoughts, and a call may end them.
func TestTheLabelOfThoughtsIsNoThought(t *testing.T) {
	const opens, closes, call = tokenizertest.Line + 1, tokenizertest.Line + 2, tokenizertest.Line + 3
	tok := tokenizertest.With(t, false, "<|channel>", "<channel|>", "<|tool_call>")
	tags := text.Reasoning{Opens: "<|channel>", Closes: "<channel|>", Label: "ab\n", Interrupted: "<|tool_call>"}
	for name, c := range map[string]struct {
		prompt, ids      []int32
		thoughts, answer string
	}{
		"a label":                 {ids: []int32{opens, tokenizertest.A, tokenizertest.B, tokenizertest.Line, tokenizertest.A, tokenizertest.Line, closes, tokenizertest.B}, thoughts: "a", answer: "b"},
		"no label":                {ids: []int32{opens, tokenizertest.A, tokenizertest.A, tokenizertest.B, closes, tokenizertest.B}, thoughts: "aab", answer: "b"},
		"a label alone":           {ids: []int32{opens, tokenizertest.A, tokenizertest.B, tokenizertest.Line, closes, tokenizertest.A}, answer: "a"},
		"the template opened":     {prompt: []int32{opens}, ids: []int32{tokenizertest.A, tokenizertest.B, tokenizertest.Line, tokenizertest.B, closes}, thoughts: "b"},
		"the template labelled":   {prompt: []int32{opens, tokenizertest.A, tokenizertest.B, tokenizertest.Line}, ids: []int32{tokenizertest.A, tokenizertest.B, closes}, thoughts: "ab"},
		"the template closed":     {prompt: []int32{opens, tokenizertest.A, tokenizertest.B, tokenizertest.Line, closes}, ids: []int32{tokenizertest.A}, answer: "a"},
		"a call ends it":          {ids: []int32{opens, tokenizertest.A, tokenizertest.B, tokenizertest.Line, tokenizertest.A, call, tokenizertest.B}, thoughts: "a", answer: "b"},
		"a call before any label": {ids: []int32{opens, call, tokenizertest.B}, answer: "b"},
	} {
		r := NewReasoner(tok, tags, c.prompt)
		d := tok.NewDecoder(true)
		thoughts, answer := "", ""
		for _, id := range c.ids {
			shown, err := d.Push(id)
			if err != nil {
				t.Fatal(err)
			}
			th, an, _ := r.push(id, shown)
			thoughts, answer = thoughts+th, answer+an
		}
		if thoughts != c.thoughts || answer != c.answer {
			t.Errorf("%s: thought %q, answered %q", name, thoughts, answer)
		}
	}
}

// GPT-OSS writes these after <|start|>assistant; control tokens show no text.
func TestChannelsAreSeparated(t *testing.T) {
	const start, channel, message, end = 100, 101, 102, 103
	control := map[string]int32{"<|start|>": start, "<|channel|>": channel, "<|message|>": message, "<|end|>": end}
	counts := map[string]int{
		"<|channel|> analysis <|message|> Think . <|end|> <|start|> assistant <|channel|> final <|message|> Yes .": 2,
		"<|channel|> ana lysis <|message|> a <|end|> <|start|> assistant":                                          1,
	}
	for written, want := range map[string][2]string{
		"<|channel|> analysis <|message|> Think . <|end|> <|start|> assistant <|channel|> final <|message|> Yes .": {"Think.", "Yes."},
		"<|channel|> final <|message|> Yes":                               {"", "Yes"},
		"<|message|> Yes":                                                 {"", "Yes"},
		"<|channel|> commentary to=f json <|message|> {}":                 {"{}", ""},
		"<|channel|> ana lysis <|message|> a <|end|> <|start|> assistant": {"a", ""},
	} {
		r := &Reasoner{Thinking: text.Thinking{Channels: &text.Channels{Start: start, Channel: channel, Message: message, End: end}}}
		var thoughts, answer string
		for _, word := range strings.Fields(written) {
			id, isControl := control[word]
			if isControl {
				word = ""
			}
			th, an, counts := r.push(id, word)
			thoughts, answer = thoughts+th, answer+an
			if counts != (an != "") {
				t.Errorf("%q counts: %v", word, counts)
			}
		}
		if thoughts != want[0] || answer != want[1] {
			t.Errorf("%s: thought %q, answered %q", written, thoughts, answer)
		}
		if r.count() != counts[written] {
			t.Errorf("%s: thought %d tokens, want %d", written, r.count(), counts[written])
		}
	}
}

// Line ends wait for the text after them, and take no more memory and time with each token.
func TestAttackReasoningOfLineEnds(t *testing.T) {
	r := &Reasoner{Thinking: text.Thinking{Underway: true, Closes: 1}}
	r.push(9, "x")
	ends := strings.Repeat("\n", 16)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4000 {
		if shown, _, _ := r.push(9, ends); shown != "" {
			t.Fatalf("%q is shown", shown)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes are allocated", n)
	}
	if shown, _, _ := r.push(9, "\ny\n"); shown != strings.Repeat("\n", 4000*16+1)+"y" {
		t.Errorf("%d bytes are shown", len(shown))
	}
	if shown, _, _ := r.push(9, "z"); shown != "\nz" {
		t.Errorf("%q is shown", shown)
	}
}

// TestDeltasThatWereReadAreNotKept: a call that turns out to be text makes many at once.
func TestDeltasThatWereReadAreNotKept(t *testing.T) {
	a := New(Options{Tokenizer: tokenizertest.New(t, false)})
	for range 4 {
		a.emit(Delta{Text: "shown"})
	}
	read := a.deltas
	if _, _, err := a.Push(0, nil); err != nil {
		t.Fatal(err)
	}
	if last := read[3].Text; last != "" {
		t.Errorf("%q is kept", last)
	}
}
