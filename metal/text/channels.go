package text

import (
	"strings"
	"unicode"

	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// Channels follows messages whose headers name their channel, as GPT-OSS writes them. It
// begins in the header of the first message, which the template opened.
type Channels struct {
	// Start, Channel, Message and End are the control tokens of messages.
	Start, Channel, Message, End int32
	// content is true after the header of a message. named is true if the header names a
	// channel, whose name may continue with other fields.
	content, named bool
	// name is the beginning of the header's text, without blanks before it.
	name string
}

// mostName bounds the text that is kept of a header: no channel has a longer name.
const mostName = 64

func newChannels(tok *tokenizer.Tokenizer) *Channels {
	c := &Channels{}
	for text, token := range map[string]*int32{"<|start|>": &c.Start, "<|channel|>": &c.Channel, "<|message|>": &c.Message, "<|end|>": &c.End} {
		*token = tokenizer.None
		if id, known := tok.ID(text); known {
			*token = id
		}
	}
	return c
}

// Push accepts a token and its text. It reports whether the text is content of
// a message, not part of a header.
func (c *Channels) Push(token int32, shown string) bool {
	switch {
	case token == tokenizer.None:
	case token == c.Start || token == c.End:
		c.content, c.named, c.name = false, false, ""
		return false
	case token == c.Channel:
		c.content, c.named, c.name = false, true, ""
		return false
	case token == c.Message:
		c.content = true
		return false
	}
	if !c.content && len(c.name) < mostName {
		c.name = strings.TrimLeftFunc(c.name+shown, unicode.IsSpace)
		c.name = strings.Clone(c.name[:min(len(c.name), mostName)])
	}
	return c.content
}

// Answers reports whether the message of the latest header is the answer: its channel is
// "final", or it has none.
func (c *Channels) Answers() bool {
	return !c.named || c.begins("final")
}

// Reasons reports whether the message of the latest header is reasoning.
func (c *Channels) Reasons() bool { return c.begins("analysis") }

func (c *Channels) begins(channel string) bool {
	return strings.HasPrefix(c.name, channel)
}
