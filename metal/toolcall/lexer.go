package toolcall

import (
	"slices"
	"strings"
)

// symbol is a byte of an answer, or a tag of the format: firstTag and those after it.
type symbol int16

const firstTag symbol = 256

// tag is a text that has a meaning in a format.
type tag struct {
	// text is how it appears in an answer: its letters, or what stands for a control token.
	text, letters string
	// control is set for the markers of a format, which never appear in the content.
	control bool
}

// lexer divides an answer into symbols. A text that may become a tag waits.
type lexer struct {
	tags []tag
	part []byte
}

// newLexer knows the markers of a format, then further tags. tokens are the markers that
// are control tokens of the vocabulary.
func newLexer(f Format, tokens []string, further ...string) *lexer {
	l := new(lexer)
	for _, m := range f.Markers() {
		text := m
		if slices.Contains(tokens, m) {
			text = f.Mark(m)
		}
		l.tags = append(l.tags, tag{text: text, letters: m, control: true})
	}
	for _, t := range further {
		l.tags = append(l.tags, tag{text: t, letters: t})
	}
	return l
}

// push takes a byte and emits the symbols that are complete.
func (l *lexer) push(b byte, emit func(symbol)) {
	l.part = append(l.part, b)
	for len(l.part) > 0 {
		at, waits := l.match(string(l.part))
		switch {
		case at >= 0:
			l.part = l.part[:0]
			emit(firstTag + symbol(at))
			return
		case waits:
			return
		}
		first := l.part[0]
		l.part = append(l.part[:0], l.part[1:]...)
		emit(symbol(first))
	}
}

// match returns the tag that a text is, or whether it may become one.
func (l *lexer) match(text string) (at int, waits bool) {
	for i, t := range l.tags {
		switch {
		case t.text == text:
			return i, false
		case strings.HasPrefix(t.text, text):
			waits = true
		}
	}
	return -1, waits
}

// flush emits a text that did not become a tag.
func (l *lexer) flush(emit func(symbol)) {
	for _, b := range l.part {
		emit(symbol(b))
	}
	l.part = l.part[:0]
}

// token reports whether a tag is a control token of the vocabulary.
func (l *lexer) token(s symbol) bool { return l.tags[s-firstTag].text != l.tags[s-firstTag].letters }

// text is the letters of a symbol; a control token has none.
func (l *lexer) text(s symbol) string {
	switch {
	case s < firstTag:
		return string([]byte{byte(s)})
	case l.tags[s-firstTag].control:
		return ""
	}
	return l.tags[s-firstTag].letters
}

// letters are those of a symbol inside a value, where a marker is ordinary text.
func (l *lexer) letters(s symbol) string {
	if s < firstTag {
		return string([]byte{byte(s)})
	}
	return l.tags[s-firstTag].letters
}

// plain is a text without the format's control tokens.
func (l *lexer) plain(all []symbol) string {
	var out strings.Builder
	for _, s := range all {
		out.WriteString(l.text(s))
	}
	return out.String()
}
