package dialect

import "bytes"

// What the events end with that openai.ChatAnswer.KeepAlive and
// openai.CompletionAnswer.KeepAlive return.
var (
	emptyDelta = []byte(`,"delta":{},"logprobs":null,"finish_reason":null}]}`)
	emptyText  = []byte(`,"text":"","logprobs":null,"finish_reason":null}]}`)
)

// Idle reports whether a block of whole events holds nothing of a response: only
// comments, and events that keep an idle stream open. After such a block, another
// server can still take over the response.
func (d *Dialect) Idle(block []byte) bool {
	for len(block) > 0 {
		var event []byte
		event, block, _ = bytes.Cut(block, []byte("\n\n"))
		for len(event) > 0 && event[0] == ':' {
			_, event, _ = bytes.Cut(event, []byte("\n"))
		}
		if len(event) > 0 && (d.idle == nil || !d.idle(event)) {
			return false
		}
	}
	return true
}

// emptyChunk reports whether an event of an OpenAI stream adds nothing.
func emptyChunk(event []byte) bool {
	return bytes.HasSuffix(event, emptyDelta) || bytes.HasSuffix(event, emptyText)
}

// eventNamed returns a function that reports whether an event has one of the names.
func eventNamed(names ...string) func(event []byte) bool {
	return func(event []byte) bool {
		for _, name := range names {
			if bytes.HasPrefix(event, []byte("event: "+name+"\n")) {
				return true
			}
		}
		return false
	}
}
