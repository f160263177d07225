package tokenizer

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

const (
	maxPattern  = 1 << 12
	patternTime = 2 * time.Second // for one text
)

// knownPatterns are split by hand-written scanners.
func knownPatterns() map[string]splitter {
	return map[string]splitter{
		`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:                                          splitGPT2,
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: splitLlama3,
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:      splitQwen2,
	}
}

// compile makes a finder of an expression.
func compile(expr string) (find finder, err error) {
	if len(expr) > maxPattern {
		return nil, fmt.Errorf("pattern of %d bytes, more than %d: %w", len(expr), maxPattern, ErrUnsupported)
	}
	defer func() {
		if r := recover(); r != nil { // the library's parser is not ours to trust
			find, err = nil, fmt.Errorf("pattern %.80q: %v: %w", expr, r, ErrUnsupported)
		}
	}()
	re, err := regexp2.Compile(expr, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("pattern %.80q: %w: %w", expr, ErrUnsupported, err)
	}
	re.MatchTimeout = patternTime
	return func(s string, found func(from, to int)) error { return findAll(re, s, found) }, nil
}

func findAll(re *regexp2.Regexp, s string, found func(from, to int)) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pattern %.80q: %v: %w", re.String(), r, ErrTooSlow)
		}
	}()
	end := time.Now().Add(patternTime)
	m, err := re.FindStringMatch(s)
	byteAt, runeAt := 0, 0
	offset := func(to int) int {
		for ; runeAt < to; runeAt++ {
			_, n := utf8.DecodeRuneInString(s[byteAt:])
			byteAt += n
		}
		return byteAt
	}
	for ; m != nil && err == nil; m, err = re.FindNextMatch(m) {
		from := offset(m.Index)
		found(from, offset(m.Index+m.Length))
		if time.Now().After(end) {
			return fmt.Errorf("pattern %.80q: %w", re.String(), ErrTooSlow)
		}
	}
	if err != nil {
		return fmt.Errorf("pattern %.80q: %w: %w", re.String(), ErrTooSlow, err)
	}
	return nil
}
