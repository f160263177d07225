package engine

import (
	"strings"

	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// reasoner tells what a model thinks from what it answers, token by token. A nil
// one takes all for the answer.
type reasoner struct {
	thought
	// tags stand around thoughts, as text.
	tags text.Reasoning
	// channels is set where messages name theirs in a header.
	channels *channels
	// strip leaves out line ends at the beginning of a part; held are those that
	// end the thoughts so far.
	strip bool
	held  string
	// tokens of thoughts, without the tags around them.
	tokens int
}

// channels are the tokens of messages with headers, as GPT-OSS writes them, and
// where the answer has got to.
type channels struct {
	start, channel, message, end int32
	header, named                bool
	name                         string
}

// channelsOf reads an answer from its first header.
func channelsOf(tok *tokenizer.Tokenizer) *channels {
	c := &channels{header: true}
	for name, to := range map[string]*int32{"<|start|>": &c.start, "<|channel|>": &c.channel, "<|message|>": &c.message, "<|end|>": &c.end} {
		*to = tokenizer.None
		if id, known := tok.ID(name); known {
			*to = id
		}
	}
	return c
}

// reasonerOf reads an answer behind a prompt; nil where the model does not think
// or is not to.
func reasonerOf(tok *tokenizer.Tokenizer, tags text.Reasoning, prompt []int32) *reasoner {
	if tags.Always {
		return &reasoner{tags: tags, channels: channelsOf(tok)}
	}
	t := thoughtOf(tok, tags, prompt)
	if !t.may && !t.underWay {
		return nil
	}
	return &reasoner{thought: t, tags: tags, strip: t.underWay}
}

// thinking reports whether thoughts are under way.
func (r *reasoner) thinking() bool { return r != nil && r.channels == nil && r.underWay }

// see takes a token and the text that it completes, and says what of it is
// thought and what is answered; counts says that the token belongs to the answer.
func (r *reasoner) see(token int32, shown string) (thoughts, answer string, counts bool) {
	switch {
	case r == nil:
		return "", shown, true
	case r.channels != nil:
		thoughts, answer, counts = r.channels.see(token, shown)
		if r.channels.thinks(token) {
			r.tokens++
		}
		return thoughts, answer, counts
	case r.underWay && token == r.closes[0]:
		thoughts = r.think(strings.TrimSuffix(shown, r.tags.Closes))
		r.underWay, r.strip, r.held = false, true, ""
		return thoughts, "", false
	case r.underWay:
		r.tokens++
		return r.think(shown), "", false
	case r.may && token == r.opens:
		r.may, r.underWay, r.strip = false, true, true
		return "", "", false
	}
	r.may = false
	if r.strip {
		shown = strings.TrimLeft(shown, "\n")
		r.strip = shown == ""
	}
	return "", shown, !r.strip
}

// counted is how many tokens were thoughts.
func (r *reasoner) counted() int {
	if r == nil {
		return 0
	}
	return r.tokens
}

// think is the part of thoughts that can be told now: line ends wait for what
// follows them.
func (r *reasoner) think(shown string) string {
	if r.strip {
		shown = strings.TrimLeft(shown, "\n")
		r.strip = shown == ""
	}
	shown = r.held + shown
	told := strings.TrimRight(shown, "\n")
	r.held = shown[len(told):]
	return told
}

// rest takes what the decoder held back at the end.
func (r *reasoner) rest(shown string) (thoughts, answer string) {
	switch {
	case r == nil:
		return "", shown
	case r.channels != nil:
		thoughts, answer, _ = r.channels.see(tokenizer.None, shown)
		return thoughts, answer
	case r.underWay:
		return r.think(shown), ""
	}
	return "", shown
}

// thinks reports whether a token that was just seen is part of a thought.
func (c *channels) thinks(token int32) bool {
	return !c.header && token != c.message && strings.HasPrefix(strings.TrimSpace(c.name), "analysis")
}

// see reads headers; what is in the channel final, or in none, is the answer.
func (c *channels) see(token int32, shown string) (thoughts, answer string, counts bool) {
	switch {
	case token == tokenizer.None:
	case token == c.start || token == c.end:
		c.header, c.named, c.name = true, false, ""
		return "", "", false
	case token == c.channel:
		c.header, c.named, c.name = true, true, ""
		return "", "", false
	case token == c.message:
		c.header = false
		return "", "", false
	}
	switch {
	case c.header:
		c.name += shown
		return "", "", false
	case !c.answers():
		return shown, "", false
	}
	return "", shown, true
}

// answers reports whether the message of the latest header is the answer.
func (c *channels) answers() bool {
	return !c.named || strings.HasPrefix(strings.TrimSpace(c.name), "final")
}
