package text

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// This JSON is read by a template alone. Package json would write each <, > and & as six bytes,
// and values within others once for each of them, in buffers that double: tool calls of 15 MB
// took half a gigabyte.

// member of an object, whose value is JSON; one without a value is null.
type member struct {
	name  string
	value json.RawMessage
}

// object is the JSON of members in this order.
func object(members ...member) json.RawMessage {
	n := 2
	for _, m := range members {
		n += 2*len(m.name) + len(m.value) + 8
	}
	b := append(make([]byte, 0, n), '{')
	for i, m := range members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, quoted(m.name)...), ':')
		if len(m.value) == 0 {
			m.value = json.RawMessage("null")
		}
		b = append(b, m.value...)
	}
	return append(b, '}')
}

// sorted is the JSON of members in the order of their names.
func sorted(members map[string]json.RawMessage) json.RawMessage {
	var all []member
	for _, name := range slices.Sorted(maps.Keys(members)) {
		all = append(all, member{name, members[name]})
	}
	return object(all...)
}

// list is the JSON of calls.
func list(calls []call) json.RawMessage {
	all := make([][]byte, len(calls))
	for i, c := range calls {
		all[i] = object(member{"id", c.ID}, member{"type", quoted(c.Type)}, member{"function", c.Function})
	}
	return slices.Concat([]byte("["), bytes.Join(all, []byte(",")), []byte("]"))
}

const hexDigits = "0123456789abcdef"

// quoted is a text as a JSON string.
func quoted(text string) json.RawMessage {
	text = strings.ToValidUTF8(text, "\ufffd")
	n := len(text) + 2
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"', c == '\\':
			n++
		case c < 0x20:
			n += 5
		}
	}
	b := append(make([]byte, 0, n), '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"', c == '\\':
			b = append(b, '\\', c)
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
