package text

import (
	"maps"
	"slices"
	"unicode/utf8"
)

// This JSON is read by a template alone. Package json would write each <, > and & as six bytes,
// and values within others once for each of them, in buffers that double: tool calls of 15 MB
// took half a gigabyte. Here a value within others is read where it stands and written once, into
// a buffer of the right length.

// view is JSON within other JSON.
type view []byte

// UnmarshalJSON keeps a part of what json.Unmarshal reads, which is not changed while there are
// views of it.
func (v *view) UnmarshalJSON(text []byte) error {
	*v = text
	return nil
}

// value writes a value.
type value func(w *writer)

// writer counts what is written and, once it has a buffer, writes it.
type writer struct {
	n int
	b []byte
}

// write is the JSON of a value, which is asked twice: how long it is, and what.
func write(v value) []byte {
	var w writer
	v(&w)
	w.b = make([]byte, 0, w.n)
	v(&w)
	return w.b
}

func put[T string | []byte | view](w *writer, text T) {
	if w.b == nil {
		w.n += len(text)
		return
	}
	w.b = append(w.b, text...)
}

// as is JSON as it stands; one without bytes is null.
func as(v view) value {
	if len(v) == 0 {
		v = view("null")
	}
	return func(w *writer) { put(w, v) }
}

// values are members as they stand.
func values(members map[string]view) map[string]value {
	all := make(map[string]value, len(members))
	for name, v := range members {
		all[name] = as(v)
	}
	return all
}

// member of an object.
type member struct {
	name  string
	value value
}

// object is members in this order.
func object(members ...member) value {
	return func(w *writer) {
		put(w, "{")
		for i, m := range members {
			if i > 0 {
				put(w, ",")
			}
			quoted(m.name)(w)
			put(w, ":")
			m.value(w)
		}
		put(w, "}")
	}
}

// sorted is members in the order of their names.
func sorted(members map[string]value) value {
	var all []member
	for _, name := range slices.Sorted(maps.Keys(members)) {
		all = append(all, member{name, members[name]})
	}
	return object(all...)
}

// list is calls.
func list(calls []call) value {
	return func(w *writer) {
		put(w, "[")
		for i, c := range calls {
			if i > 0 {
				put(w, ",")
			}
			object(member{"id", c.id}, member{"type", quoted(c.Type)}, member{"function", c.function})(w)
		}
		put(w, "]")
	}
}

const hexDigits = "0123456789abcdef"

// quoted is a text as a JSON string.
func quoted[T string | view](text T) value {
	return func(w *writer) {
		put(w, `"`)
		from := 0 // of what is not written yet
		for i := 0; i < len(text); {
			c, size, sign := text[i], 1, ""
			switch {
			case c == '"':
				sign = `\"`
			case c == '\\':
				sign = `\\`
			case c < 0x20:
				sign = `\u00` + hexDigits[c>>4:c>>4+1] + hexDigits[c&15:c&15+1]
			case c >= utf8.RuneSelf:
				size, sign = character(text[i:])
			}
			if sign != "" {
				put(w, text[from:i])
				put(w, sign)
				from = i + size
			}
			i += size
		}
		put(w, text[from:])
		put(w, `"`)
	}
}

// character is the length of a text's first character or, where bytes are none, theirs and the
// sign that stands for them.
func character[T string | view](text T) (size int, sign string) {
	for size < len(text) {
		first := string(text[size:min(size+utf8.UTFMax, len(text))])
		if c, n := utf8.DecodeRuneInString(first); c != utf8.RuneError || n > 1 {
			if sign == "" {
				size = n
			}
			break
		}
		size, sign = size+1, string(utf8.RuneError)
	}
	return size, sign
}
