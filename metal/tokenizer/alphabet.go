package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Byte-level BPE writes each byte as a printable character: the printable
// bytes of Latin-1 as themselves, the others as U+0100 and up, in order.

func printable(b byte) bool {
	return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae
}

// byteOf is the byte that a character of the alphabet stands for.
func byteOf(r rune) (byte, bool) {
	if r < 0x100 {
		return byte(r), printable(byte(r))
	}
	// The others are 0x00-0x20, 0x7f-0xa0 and 0xad.
	switch n := r - 0x100; {
	case n <= 0x20:
		return byte(n), true
	case n <= 0x20+0x22:
		return byte(0x7f + n - 0x21), true
	case n == 0x20+0x22+1:
		return 0xad, true
	}
	return 0, false
}

// appendAlphabet appends the bytes that text stands for; ok is false where it
// holds a character outside the alphabet.
func appendAlphabet(to []byte, text string) (out []byte, ok bool) {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		b, known := byteOf(r)
		if !known || (r == utf8.RuneError && n == 1) {
			return to, false
		}
		to = append(to, b)
		i += n
	}
	return to, true
}

// toAlphabet writes the bytes of text as characters of the alphabet.
func toAlphabet(text string) string {
	var b strings.Builder
	b.Grow(len(text) * 2)
	for i := range len(text) {
		b.WriteRune(runeOf(text[i]))
	}
	return b.String()
}

// runeOf is the character that stands for a byte; byteOf undoes it.
func runeOf(b byte) rune {
	switch {
	case printable(b):
		return rune(b)
	case b <= 0x20:
		return 0x100 + rune(b)
	case b == 0xad:
		return 0x100 + 0x20 + 0x22 + 1
	}
	return 0x100 + 0x21 + rune(b-0x7f)
}
