package openai

import (
	"bytes"
	"encoding/json"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns what a valid JSON string stands for; nil for any other value. It costs a tenth of
// json.Unmarshal, which matters where a body has millions of strings.
func Text(raw json.RawMessage) []byte {
	if kind(raw) != "string" {
		return nil
	}
	raw = skipSpace(raw)
	inner := raw[1 : stringEnd(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	return unescape(nil, inner)
}

// unescape appends what the inside of a valid JSON string stands for, as package json reads it.
func unescape(to, inner []byte) []byte {
	for i := 0; i < len(inner); {
		if inner[i] != '\\' {
			to = append(to, inner[i])
			i++
			continue
		}
		if inner[i+1] != 'u' {
			to = append(to, escaped(inner[i+1]))
			i += 2
			continue
		}
		r := unit(inner[i:])
		i += 6
		if utf16.IsSurrogate(r) {
			both := utf16.DecodeRune(r, unit(inner[i:]))
			if r = both; both != utf8.RuneError {
				i += 6
			}
		}
		to = utf8.AppendRune(to, r)
	}
	return to
}

// escaped returns what a character after a backslash stands for.
func escaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// unit reads \uXXXX at the beginning of a text; it is utf8.RuneError if there is none.
func unit(b []byte) (r rune) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return utf8.RuneError
	}
	for _, c := range b[2:6] {
		r <<= 4
		switch {
		case c >= '0' && c <= '9':
			r += rune(c - '0')
		case c >= 'a' && c <= 'f':
			r += rune(c - 'a' + 10)
		default:
			r += rune(c - 'A' + 10)
		}
	}
	return r
}
