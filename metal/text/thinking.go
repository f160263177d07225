package text

import (
	"slices"

	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// Thinking is where a model is in its reasoning: before it, in it, or past it.
type Thinking struct {
	// MayBegin is true if reasoning can begin with the next token, which is Opens
	// then.
	MayBegin bool
	Opens    int32
	// Underway is true until the model has written Closes, or, with Channels, until the
	// message of the answer begins.
	Underway bool
	Closes   int32
	Channels *Channels
	// Interrupts are tokens that end reasoning under way and belong to the answer: those that
	// begin a call.
	Interrupts []int32
}

// Ends reports whether a token, which shows a text, ends reasoning that is under way. The
// header of the answer can contain more than its channel: GPT-OSS also writes the format
// of structured answers there.
func (t *Thinking) Ends(token int32, shown string) bool {
	if t.Channels == nil {
		return token == t.Closes
	}
	t.Channels.Push(token, shown)
	return token == t.Channels.Message && t.Channels.Answers()
}

// closedTail is the maximum number of tokens after reasoning that a template opened
// and closed at once: line ends.
const closedTail = 3

// After returns where a model is in its reasoning after a prompt. The zero value is
// a model that does not think, or was asked not to.
func (r Reasoning) After(tok *tokenizer.Tokenizer, prompt []int32) Thinking {
	switch {
	case r.Closes == "":
		return Thinking{}
	case r.Always:
		return Thinking{Underway: true, Channels: newChannels(tok)}
	}
	closes, err := tok.Encode(r.Closes, tokenizer.EncodeOptions{ParseSpecial: true})
	opens, known := tok.ID(r.Opens)
	if err != nil || !known || len(closes) != 1 {
		return Thinking{}
	}
	var interrupts []int32
	if id, known := tok.ID(r.Interrupted); known {
		interrupts = []int32{id}
	}
	// The last mark decides, unless a control token follows: that ended the turn of a message
	// which only quotes the mark.
	for i, id := range slices.Backward(prompt) {
		switch {
		case id == opens:
			return Thinking{Underway: true, Closes: closes[0], Interrupts: interrupts}
		case id == closes[0] && len(prompt)-i <= closedTail:
			return Thinking{} // the template closed it: the model must not think
		}
		if id == closes[0] || tok.IsControl(id) {
			break
		}
	}
	return Thinking{MayBegin: true, Opens: opens, Closes: closes[0], Interrupts: interrupts}
}
