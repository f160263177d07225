//go:build !race

package text

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/tokenizer/tokenizertest"
)

// Markers count where the template writes them and the vocabulary has them as tokens.
func TestMarkersOfReasoningAreThoseOfTheTemplate(t *testing.T) {
	const turns = "{% for m in messages %}{{ m.content }}{% endfor %}"
	gemma := Reasoning{Opens: "<|channel>", Closes: "<channel|>", Label: "thought\n", Interrupted: "<|tool_call>"}
	for name, c := range map[string]struct {
		template string
		tokens   []string
		want     Reasoning
	}{
		"Gemma 4":          {template: turns + "{{ '<|channel>thought\n<channel|>' }}", tokens: []string{"<|channel>", "<channel|>", "<|tool_call>"}, want: gemma},
		"Magistral":        {template: "Think first: [THINK]thoughts[/THINK]" + turns, tokens: []string{"[THINK]", "[/THINK]"}, want: Reasoning{Opens: "[THINK]", Closes: "[/THINK]"}},
		"older Mistral":    {template: turns, tokens: []string{"[THINK]", "[/THINK]"}},
		"letters":          {template: "[THINK]thoughts[/THINK]" + turns},
		"Qwen":             {template: turns + "<think>\n\n</think>", want: Reasoning{Opens: "<think>", Closes: "</think>"}},
		"GPT-OSS":          {template: turns + "<|channel|>final<|message|>", tokens: []string{"<|channel|>", "<|message|>"}, want: Reasoning{Closes: "<|channel|>final<|message|>", Always: true}},
		"without thoughts": {template: turns},
	} {
		x := templated(t, c.template)
		x.Tokenizer = tokenizertest.With(t, false, c.tokens...)
		if got := x.Reasoning(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	x := templated(t, turns+"<|channel><channel|>")
	x.Tokenizer = tokenizertest.With(t, false, "<|channel>", "<channel|>", "<|tool_call>")
	const opens, closes, call = tokenizertest.Line + 1, tokenizertest.Line + 2, tokenizertest.Line + 3
	if got := x.Reasoning().After(x.Tokenizer, []int32{tokenizertest.A, opens}); !got.Underway || got.Closes != closes || len(got.Interrupts) != 1 || got.Interrupts[0] != call {
		t.Errorf("thoughts that the template opened: %+v", got)
	}
}
