package toolcall

// verdict is what a reader says of a byte.
type verdict int

const (
	// more is needed behind this byte.
	more verdict = iota
	// done: it ends with this byte.
	done
	// over: it ended before this byte, which belongs to what follows.
	over
	// bad: this byte cannot stand here.
	bad
)

// maxDepth of JSON in a call.
const maxDepth = 256

type scanState uint8

const (
	wantValue  scanState = iota
	wantFirst            // a value, or the end of a list
	wantName             // of a member
	wantMember           // a member's name, or the end of an object
	wantColon
	behindValue
	inString
	inEscape
	inHex
	inWord
	inMinus
	inZero
	inInteger
	inPoint
	inFraction
	inExponent
	inSign
	inPower
)

// scanner reads one JSON value byte by byte, and says where it ends or is none.
type scanner struct {
	state scanState
	stack []byte // of { and [ that are open
	name  bool   // the string under way is a member's name
	left  int    // digits of an escape
	word  string // the rest of true, false or null
}

func isBlank(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// push takes a byte of the value.
func (s *scanner) push(b byte) verdict {
	switch s.state {
	case inString, inEscape, inHex:
		return s.text(b)
	case inWord:
		if b != s.word[0] {
			return bad
		}
		if s.word = s.word[1:]; s.word == "" {
			return s.close()
		}
		return more
	}
	if s.state >= inMinus {
		if next, ok := number(s.state, b); ok {
			s.state = next
			return more
		}
		if s.state != inZero && s.state != inInteger && s.state != inFraction && s.state != inPower {
			return bad
		}
		if len(s.stack) == 0 {
			return over
		}
		s.state = behindValue
	}
	if isBlank(b) {
		return more
	}
	return s.structure(b)
}

// structure takes a byte outside of strings, words and numbers.
func (s *scanner) structure(b byte) verdict {
	switch {
	case s.state == wantColon && b == ':':
		s.state = wantValue
		return more
	case (s.state == wantMember || s.state == wantName) && b == '"':
		s.state, s.name = inString, true
		return more
	case s.state == wantMember && b == '}', s.state == wantFirst && b == ']':
		return s.pop()
	case s.state == behindValue:
		return s.behind(b)
	case s.state == wantValue || s.state == wantFirst:
		return s.value(b)
	}
	return bad
}

func (s *scanner) value(b byte) verdict {
	switch {
	case b == '{' || b == '[':
		if len(s.stack) == maxDepth {
			return bad
		}
		s.stack = append(s.stack, b)
		s.state = map[byte]scanState{'{': wantMember, '[': wantFirst}[b]
	case b == '"':
		s.state, s.name = inString, false
	case b == 't' || b == 'f' || b == 'n':
		s.state, s.word = inWord, map[byte]string{'t': "rue", 'f': "alse", 'n': "ull"}[b]
	case b == '-':
		s.state = inMinus
	case b == '0':
		s.state = inZero
	case isDigit(b):
		s.state = inInteger
	default:
		return bad
	}
	return more
}

func (s *scanner) behind(b byte) verdict {
	top := s.stack[len(s.stack)-1]
	switch {
	case b == ',' && top == '{':
		s.state = wantName
	case b == ',':
		s.state = wantValue
	case b == '}' && top == '{', b == ']' && top == '[':
		return s.pop()
	default:
		return bad
	}
	return more
}

func (s *scanner) pop() verdict {
	s.stack = s.stack[:len(s.stack)-1]
	return s.close()
}

// close ends a value inside of others, or the whole.
func (s *scanner) close() verdict {
	s.state = behindValue
	if len(s.stack) == 0 {
		return done
	}
	return more
}

func (s *scanner) text(b byte) verdict {
	switch {
	case s.state == inHex:
		if !isDigit(b) && (b|0x20 < 'a' || b|0x20 > 'f') {
			return bad
		}
		if s.left--; s.left == 0 {
			s.state = inString
		}
	case s.state == inEscape:
		switch b {
		case 'u':
			s.state, s.left = inHex, 4
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.state = inString
		default:
			return bad
		}
	case b == '\\':
		s.state = inEscape
	case b < 0x20:
		return bad
	case b == '"' && s.name:
		s.state = wantColon
	case b == '"':
		return s.close()
	}
	return more
}

// number goes on with a number.
func number(s scanState, b byte) (next scanState, ok bool) {
	switch {
	case s == inMinus && b == '0':
		return inZero, true
	case (s == inMinus || s == inInteger) && isDigit(b):
		return inInteger, true
	case (s == inZero || s == inInteger) && b == '.':
		return inPoint, true
	case (s == inPoint || s == inFraction) && isDigit(b):
		return inFraction, true
	case (s == inZero || s == inInteger || s == inFraction) && b|0x20 == 'e':
		return inExponent, true
	case s == inExponent && (b == '+' || b == '-'):
		return inSign, true
	case (s == inExponent || s == inSign || s == inPower) && isDigit(b):
		return inPower, true
	}
	return s, false
}
