package engine

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer/tokenizertest"
)

// TestACompletionContinuesTheTextOfItsPrompt: decoders that omit the blank before a text do so
// where a text begins, and a completion begins in the middle of one.
func TestACompletionContinuesTheTextOfItsPrompt(t *testing.T) {
	const a, blankA, end = tokenizertest.A, tokenizertest.BlankA, tokenizertest.End
	p := &inputProcessor{tok: tokenizertest.New(t, true), ends: map[int32]bool{}}
	prompt := "a"
	for name, c := range map[string]struct {
		request Request
		tokens  []int32
		want    string
	}{
		"a prompt":                    {request: Request{Prompt: &prompt}, tokens: []int32{a}, want: " a a"},
		"a prompt of tokens":          {request: Request{Tokens: []int32{end, a}}, tokens: []int32{end, a}, want: " a a"},
		"a prompt that shows nothing": {request: Request{Tokens: []int32{end}}, tokens: []int32{end}, want: "a a"},
		"a conversation":              {request: Request{Chat: new(text.Chat)}, tokens: []int32{a}, want: "a a"},
	} {
		s := &sequence{tokens: c.tokens, prompt: len(c.tokens)}
		if refusal := p.prepareOutput(t.Context(), s, c.request); refusal != nil {
			t.Fatal(refusal)
		}
		got := ""
		for range 2 {
			deltas, _, err := s.output.Push(blankA, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range deltas {
				got += d.Text
			}
		}
		if got != c.want {
			t.Errorf("%s: the answer is %q, want %q", name, got, c.want)
		}
	}
}
