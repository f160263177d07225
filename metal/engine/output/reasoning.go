package output

import (
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// Reasoner separates reasoning from the answer, token by token. A nil Reasoner takes
// everything for the answer.
type Reasoner struct {
	text.Thinking
	// tags enclose the reasoning, as text.
	tags text.Reasoning
	// strip removes line ends at the beginning of a part. held counts line ends that may
	// be the last of the reasoning.
	strip bool
	held  int
	// label is set until the label of reasoning was read, and read is what came of it.
	label bool
	read  string
	// tokens counts those of the reasoning, without its tags.
	tokens int
}

// NewReasoner returns a Reasoner for the output after a prompt. It is nil if the model
// does not think, or was asked not to.
func NewReasoner(tok *tokenizer.Tokenizer, tags text.Reasoning, prompt []int32) *Reasoner {
	t := tags.After(tok, prompt)
	if !t.MayBegin && !t.Underway {
		return nil
	}
	opened := t.Underway && len(prompt) > 0
	if id, known := tok.ID(tags.Opens); opened {
		opened = known && prompt[len(prompt)-1] == id
	}
	return &Reasoner{Thinking: t, tags: tags, strip: t.Underway, label: opened}
}

// thinking reports whether reasoning between tags is under way.
func (r *Reasoner) thinking() bool { return r != nil && r.Channels == nil && r.Underway }

// push takes a token and the text that it completes, and divides the text. counts is
// true if the token belongs to the answer.
func (r *Reasoner) push(token int32, shown string) (reasoning, answer string, counts bool) {
	switch {
	case r == nil:
		return "", shown, true
	case r.Channels != nil:
		content := r.Channels.Push(token, shown)
		if content && r.Channels.Reasons() {
			r.tokens++
		}
		return r.divide(content, shown)
	case r.Underway && slices.Contains(r.Interrupts, token):
		r.Underway, r.strip, r.held = false, true, 0
		return "", "", false
	case r.Underway && token == r.Closes:
		reasoning = r.think(strings.TrimSuffix(shown, r.tags.Closes))
		r.Underway, r.strip, r.held = false, true, 0
		return reasoning, "", false
	case r.Underway:
		r.tokens++
		return r.think(shown), "", false
	case r.MayBegin && token == r.Opens:
		r.MayBegin, r.Underway, r.strip, r.label = false, true, true, true
		return "", "", false
	}
	r.MayBegin = false
	if r.strip {
		shown = strings.TrimLeft(shown, "\n")
		r.strip = shown == ""
	}
	return "", shown, !r.strip
}

// count returns the number of reasoning tokens.
func (r *Reasoner) count() int {
	if r == nil {
		return 0
	}
	return r.tokens
}

// think returns the reasoning that can be shown now: line ends wait for the text
// after them.
func (r *Reasoner) think(shown string) string {
	if r.label {
		r.read += shown
		if len(r.read) < len(r.tags.Label) && strings.HasPrefix(r.tags.Label, r.read) {
			return ""
		}
		shown, r.label = strings.TrimPrefix(r.read, r.tags.Label), false
	}
	if r.strip {
		shown = strings.TrimLeft(shown, "\n")
		r.strip = shown == ""
	}
	trimmed := strings.TrimRight(shown, "\n")
	if trimmed == "" {
		r.held += len(shown)
		return ""
	}
	before := strings.Repeat("\n", r.held)
	r.held = len(shown) - len(trimmed)
	return before + trimmed
}

// flush divides the text that the decoder held back at the end.
func (r *Reasoner) flush(shown string) (reasoning, answer string) {
	switch {
	case r == nil:
		return "", shown
	case r.Channels != nil:
		reasoning, answer, _ = r.divide(r.Channels.Push(tokenizer.None, shown), shown)
		return reasoning, answer
	case r.Underway:
		return r.think(shown), ""
	}
	return "", shown
}

// divide divides the text of a message in a channel. Only the answer counts; everything
// else that is content is reasoning.
func (r *Reasoner) divide(content bool, shown string) (reasoning, answer string, counts bool) {
	switch {
	case !content:
		return "", "", false
	case r.Channels.Answers():
		return "", shown, true
	}
	return shown, "", false
}
