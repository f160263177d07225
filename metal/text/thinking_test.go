//go:build !race

package text_test

import (
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer/tokenizertest"
)

func TestWhetherAModelThinksIsReadInItsPrompt(t *testing.T) {
	tok := tokenizertest.New(t, false)
	r := text.Reasoning{Opens: "<think>", Closes: "</think>"}
	for name, c := range map[string]struct {
		prompt             []int32
		mayBegin, underway bool
	}{
		"nothing is said":          {prompt: []int32{tokenizertest.A, tokenizertest.B}, mayBegin: true},
		"the template opened it":   {prompt: []int32{tokenizertest.A, tokenizertest.Opens, tokenizertest.Line}, underway: true},
		"the template closed it":   {prompt: []int32{tokenizertest.A, tokenizertest.Opens, tokenizertest.Line, tokenizertest.Closes, tokenizertest.Line}},
		"an earlier turn closed":   {prompt: []int32{tokenizertest.Opens, tokenizertest.Closes, tokenizertest.A, tokenizertest.B, tokenizertest.A, tokenizertest.B}, mayBegin: true},
		"an earlier turn, and now": {prompt: []int32{tokenizertest.Opens, tokenizertest.Closes, tokenizertest.A, tokenizertest.B, tokenizertest.A, tokenizertest.Opens}, underway: true},
	} {
		if got := r.After(tok, c.prompt); got.MayBegin != c.mayBegin || got.Underway != c.underway {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := (text.Reasoning{Closes: "</think>", Always: true}).After(tok, nil); !got.Underway || got.Channels == nil {
		t.Errorf("a model that always thinks: %+v", got)
	}
	if got := (text.Reasoning{}).After(tok, []int32{tokenizertest.Opens}); got.MayBegin || got.Underway {
		t.Errorf("a model that does not think: %+v", got)
	}
}

// The form of an answer begins with the message of its channel, also where its
// header contains more.
func TestHeaderOfTheAnswerEndsReasoning(t *testing.T) {
	const start, channel, message, end = 100, 101, 102, 103
	control := map[string]int32{"<|start|>": start, "<|channel|>": channel, "<|message|>": message, "<|end|>": end, "<|constrain|>": 104}
	analysis := "<|channel|> analysis <|message|> final . <|end|> <|start|> assistant "
	for written, want := range map[string]string{
		analysis + "<|channel|> final <|message|> {}":                       "{}",
		analysis + "<|channel|> fin al <|message|> {}":                      "{}",
		analysis + "<|channel|> final <|constrain|> json <|message|> {}":    "{}",
		analysis + "<|channel|> commentary to=f <|message|> {} <|channel|>": "",
		"<|message|> {}":                      "{}",
		"<|channel|> analysis <|message|> {}": "",
	} {
		th := text.Thinking{Underway: true, Channels: &text.Channels{Start: start, Channel: channel, Message: message, End: end}}
		answer := ""
		for _, word := range strings.Fields(written) {
			id, isControl := control[word]
			if isControl {
				word = ""
			}
			if !th.Underway {
				answer += word
			} else {
				th.Underway = !th.Ends(id, word)
			}
		}
		if answer != want {
			t.Errorf("%s: the answer is %q, want %q", written, answer, want)
		}
	}
}

// A header that does not end takes no more memory and time with each token.
func TestAttackAHeaderThatDoesNotEnd(t *testing.T) {
	const start, channel, message, end, other = 1, 2, 3, 4, 9
	for name, shown := range map[string]string{"blanks": strings.Repeat(" ", 128), "letters": strings.Repeat("x", 128)} {
		c := &text.Channels{Start: start, Channel: channel, Message: message, End: end}
		c.Push(channel, "")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 4000 {
			c.Push(other, shown)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
			t.Errorf("a header of %s allocated %d bytes", name, n)
		}
		c.Push(other, "final")
		c.Push(message, "")
		if answers := name == "blanks"; c.Answers() != answers {
			t.Errorf("after a header of %s, the message answers: %v", name, c.Answers())
		}
	}
}
