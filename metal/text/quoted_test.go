//go:build !race

package text_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer/tokenizertest"
)

// TestMarksInAMessageBeginNoReasoning: the turn of a message ends with a control token, so what
// stands before that was not written by the template for the answer.
func TestMarksInAMessageBeginNoReasoning(t *testing.T) {
	const a, b, opens, closes, end, line = tokenizertest.A, tokenizertest.B, tokenizertest.Opens, tokenizertest.Closes, tokenizertest.End, tokenizertest.Line
	tok := tokenizertest.New(t, false)
	r := text.Reasoning{Opens: "<think>", Closes: "</think>"}
	for name, c := range map[string]struct {
		prompt             []int32
		mayBegin, underway bool
	}{
		"a message quotes the mark":           {prompt: []int32{a, opens, b, end, a}, mayBegin: true},
		"a message ends with the mark":        {prompt: []int32{a, opens, end}, mayBegin: true},
		"a message ends with the closing one": {prompt: []int32{a, closes, end, a}, mayBegin: true},
		"a message, and the template":         {prompt: []int32{a, opens, end, a, opens, line}, underway: true},
		"a message, and the template closes":  {prompt: []int32{a, opens, end, a, opens, line, closes, line}},
		"a label follows":                     {prompt: []int32{a, end, a, opens, a, b, a, b, line}, underway: true},
	} {
		if got := r.After(tok, c.prompt); got.MayBegin != c.mayBegin || got.Underway != c.underway {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
