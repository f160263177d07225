package tokenizer

import (
	"strings"
	"unicode/utf8"
)

const replacement = "\uFFFD"

// validUTF8 replaces what is not UTF-8 as Unicode recommends and the reference
// does: one U+FFFD for each longest part that could have begun a character.
func validUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 8)
	for len(s) > 0 {
		n, whole := prefix(s)
		if whole {
			b.WriteString(s[:n])
		} else {
			b.WriteString(replacement)
		}
		s = s[n:]
	}
	return b.String()
}

// prefix measures what a non-empty s begins with: a whole character, or a part
// that is none. A part that reaches to the end of s may still become one if
// open says so.
func prefix(s string) (n int, whole bool) {
	if r, size := utf8.DecodeRuneInString(s); r != utf8.RuneError || size > 1 {
		return size, true
	}
	n, _ = part(s)
	return n, false
}

// part returns the length of the incomplete character at the start of s, at
// least 1. open: s ends inside the character.
func part(s string) (n int, open bool) {
	low, high, want := byte(0x80), byte(0xbf), 0
	switch b := s[0]; {
	case b >= 0xc2 && b <= 0xdf:
		want = 1
	case b >= 0xe0 && b <= 0xef:
		want = 2
		if b == 0xe0 {
			low = 0xa0 // no overlong forms
		}
		if b == 0xed {
			high = 0x9f // no surrogates
		}
	case b >= 0xf0 && b <= 0xf4:
		want = 3
		if b == 0xf0 {
			low = 0x90
		}
		if b == 0xf4 {
			high = 0x8f // nothing above U+10FFFF
		}
	default:
		return 1, false
	}
	for n = 1; n <= want; n++ {
		if n == len(s) {
			return n, true
		}
		if s[n] < low || s[n] > high {
			return n, false
		}
		low, high = 0x80, 0xbf
	}
	return n, false
}

// openTail is the length of the part at the end of b that may still become a
// character.
func openTail(b []byte) int {
	for n := 1; n <= min(3, len(b)); n++ {
		tail := string(b[len(b)-n:])
		if !utf8.RuneStart(tail[0]) {
			continue
		}
		if size, open := part(tail); open && size == n {
			return n
		}
		return 0
	}
	return 0
}
