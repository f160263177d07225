package tokenizer

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

const maxPattern = 1 << 12 // bytes

// patternTime bounds the time that a pattern may take on a text.
func patternTime(text string) time.Duration {
	return 2*time.Second + time.Duration(len(text))*10*time.Microsecond
}

// compile makes a finder of an expression that has no scanner. allowed bounds
// the time on a text.
func compile(expr string, allowed func(text string) time.Duration) (finder, error) {
	if len(expr) > maxPattern {
		return nil, fmt.Errorf("pattern of %d bytes, more than %d: %w", len(expr), maxPattern, ErrUnsupported)
	}
	text, err := translate(expr)
	if err != nil {
		return nil, err
	}
	re, err := compileSafely(text, allowed(""))
	if err != nil {
		return nil, fmt.Errorf("pattern %.80q: %w", expr, err)
	}
	return func(s string, found func(from, to int)) error {
		m := matching{re: re, text: s, end: time.Now().Add(allowed(s)), last: -1}
		if err := m.each(found); err != nil {
			return fmt.Errorf("pattern %.80q: %w", expr, err)
		}
		return nil
	}, nil
}

// compileSafely and next keep panics of the library in: what they read is not
// ours to trust.
func compileSafely(expr string, match time.Duration) (re *regexp2.Regexp, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v: %w", r, ErrUnsupported)
		}
	}()
	if re, err = regexp2.Compile(expr, regexp2.Multiline); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	re.MatchTimeout = match
	return re, nil
}

// matching is one pass of an expression over a text.
type matching struct {
	re             *regexp2.Regexp
	text           string
	end            time.Time
	last           int // where the last match ended, in characters; -1 before
	byteAt, runeAt int
}

func (m *matching) each(found func(from, to int)) error {
	for match, err := m.next(nil); match != nil || err != nil; match, err = m.next(match) {
		if err != nil {
			return err
		}
		from, to := match.Index, match.Index+match.Length
		if from == to && from == m.last {
			continue // as in the reference, no empty match right behind another
		}
		m.last = to
		start := m.offset(from)
		found(start, m.offset(to))
		if time.Now().After(m.end) {
			return ErrTooSlow
		}
	}
	return nil
}

func (m *matching) next(before *regexp2.Match) (match *regexp2.Match, err error) {
	defer func() {
		if r := recover(); r != nil {
			match, err = nil, fmt.Errorf("%v: %w", r, ErrTooSlow)
		}
	}()
	if before == nil {
		match, err = m.re.FindStringMatch(m.text)
	} else {
		match, err = m.re.FindNextMatch(before)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTooSlow, err)
	}
	return match, nil
}

// offset is where a character begins, in bytes; characters come in order.
func (m *matching) offset(character int) int {
	for ; m.runeAt < character; m.runeAt++ {
		_, n := utf8.DecodeRuneInString(m.text[m.byteAt:])
		m.byteAt += n
	}
	return m.byteAt
}
