package chat

import (
	"bytes"
	"fmt"
)

// maxValues bounds the JSON values of one conversation. Templates are charged for what they
// make, not for what they are given: the smallest values take 150 bytes each.
const maxValues = 1 << 17

// Values counts the values in JSON, and the names of members, about: it counts the signs
// that begin or separate them.
func Values(raw []byte) (n int) {
	for len(raw) > 0 {
		at := bytes.IndexAny(raw, `"[{,:`)
		if at < 0 {
			break
		}
		sign := raw[at]
		raw = raw[at+1:]
		if sign != '"' {
			n++
			continue
		}
		for len(raw) > 0 && raw[0] != '"' { // to the end of the string
			if raw[0] == '\\' {
				raw = raw[1:]
			}
			raw = raw[min(1, len(raw)):]
		}
		raw = raw[min(1, len(raw)):]
	}
	return n
}

// CheckValues refuses, as ErrMessages, a conversation whose JSON has more than 131,072 values.
func CheckValues(messages []Message, o Options) error {
	n := Values(o.Tools) + Values(o.Arguments)
	for _, m := range messages {
		n += Values(m.Extra)
	}
	if n > maxValues {
		return fmt.Errorf("%w: tools, tool calls and template arguments have more than %d values of JSON; send fewer", ErrMessages, maxValues)
	}
	return nil
}
