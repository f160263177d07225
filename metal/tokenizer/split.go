package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// Hand-written scanners for the split expressions of the known families. Each
// takes what the expression in its comment takes, alternatives in order.

// class is what the expressions tell apart.
type class uint8

const (
	classOther class = iota
	classLetter
	classNumber
	classSpace
)

func classOf(r rune) class {
	switch {
	case r < utf8.RuneSelf:
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z':
			return classLetter
		case '0' <= r && r <= '9':
			return classNumber
		case r == ' ', '\t' <= r && r <= '\r':
			return classSpace
		}
		return classOther
	case unicode.IsLetter(r):
		return classLetter
	case unicode.IsNumber(r):
		return classNumber
	case unicode.IsSpace(r):
		return classSpace
	}
	return classOther
}

// at returns the class and size of the character at i; size is 0 at the end.
func at(s string, i int) (class, int) {
	if i >= len(s) {
		return classOther, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return classOf(rune(b)), 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classOf(r), n
}

// run returns the end of the characters of class c from i on.
func run(s string, i int, c class) int {
	for {
		k, n := at(s, i)
		if n == 0 || k != c {
			return i
		}
		i += n
	}
}

// splitGPT2 follows
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func splitGPT2(s string, piece func(string)) {
	for i := 0; i < len(s); {
		end := i + contraction(s[i:], false)
		if end == i {
			end = gpt2Word(s, i)
		}
		if end == i {
			end = spaces(s, i)
		}
		piece(s[i:end])
		i = end
	}
}

// gpt2Word takes an optional space and a run of letters, numbers or others; i
// itself if there is none.
func gpt2Word(s string, i int) int {
	from := i
	if s[i] == ' ' {
		from++
	}
	k, n := at(s, from)
	if n == 0 || k == classSpace {
		return i
	}
	return run(s, from, k)
}

// spaces takes a run of white space, but leaves its last character to a word
// that follows, unless it is the only one.
func spaces(s string, i int) int {
	end := run(s, i, classSpace)
	if end == len(s) {
		return end
	}
	_, last := utf8.DecodeLastRuneInString(s[i:end])
	if end-last > i {
		return end - last
	}
	return end
}

// splitDigitsGPT2 cuts out each number character and splits the rest as GPT-2
// does, each part on its own.
func splitDigitsGPT2(s string, piece func(string)) {
	from := 0
	for i := 0; i < len(s); {
		k, n := at(s, i)
		if k == classNumber {
			if from < i {
				splitGPT2(s[from:i], piece)
			}
			piece(s[i : i+n])
			from = i + n
		}
		i += n
	}
	if from < len(s) {
		splitGPT2(s[from:], piece)
	}
}

// splitLlama3 follows
// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func splitLlama3(s string, piece func(string)) { splitModern(s, 3, piece) }

// splitQwen2 is splitLlama3 with single digits.
func splitQwen2(s string, piece func(string)) { splitModern(s, 1, piece) }

func splitModern(s string, digits int, piece func(string)) {
	for i := 0; i < len(s); {
		end := modernPiece(s, i, digits)
		piece(s[i:end])
		i = end
	}
}

func modernPiece(s string, i, digits int) int {
	if n := contraction(s[i:], true); n > 0 {
		return i + n
	}
	k, n := at(s, i)
	if k == classLetter {
		return run(s, i, classLetter)
	}
	if k != classNumber && s[i] != '\r' && s[i] != '\n' {
		if next, _ := at(s, i+n); next == classLetter {
			return run(s, i+n, classLetter)
		}
	}
	if k == classNumber {
		for ; digits > 0; digits-- {
			k, n := at(s, i)
			if k != classNumber {
				break
			}
			i += n
		}
		return i
	}
	from := i
	if s[i] == ' ' {
		from++
	}
	if k, n := at(s, from); n > 0 && k == classOther {
		end := run(s, from, classOther)
		for end < len(s) && newline(s[end]) {
			end++
		}
		return end
	}
	return modernSpaces(s, i)
}

// modernSpaces takes white space up to its last line break, or what spaces
// takes where there is none.
func modernSpaces(s string, i int) int {
	for end := run(s, i, classSpace); end > i; end-- {
		if newline(s[end-1]) {
			return end
		}
	}
	return spaces(s, i)
}

func newline(b byte) bool { return b == '\r' || b == '\n' }

// contraction measures 's 't 're 've 'm 'll 'd at the start of s. The long s
// folds to s.
func contraction(s string, fold bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	lower := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		b := s[i]
		if fold && 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		return b
	}
	a, b := lower(1), lower(2)
	switch {
	case a == 's', a == 't', a == 'm', a == 'd':
		return 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 3
	case fold && a == 0xc5 && b == 0xbf:
		return 3
	}
	return 0
}
