package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

func not(is class) class { return func(r rune) bool { return !is(r) } }

// member reads an escape that stands for one character, given as single, or for
// a class.
func (e *expression) member() (is class, single rune, err error) {
	c := e.in[e.at+1]
	e.at += 2
	switch c {
	case 'n', 'r', 't', 'f', 'v', 'a', 'e':
		return nil, map[rune]rune{'n': '\n', 'r': '\r', 't': '\t', 'f': '\f', 'v': '\v', 'a': '\a', 'e': 0x1b}[c], nil
	case 'x', 'u':
		single, err = e.code(c)
		return nil, single, err
	case 's', 'S':
		is = e.c.any(space)
	case 'd', 'D':
		is = e.c.digit
	case 'w', 'W':
		is = e.c.word
	case 'h', 'H':
		is = func(r rune) bool { return '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'f' && r < 0x80 }
	case 'N':
		return notLineFeed, -1, nil
	case 'O':
		return anyCharacter, -1, nil
	case 'p', 'P':
		is, err = e.property()
	default:
		if c < 0x80 && (unicode.IsLetter(c) || unicode.IsDigit(c)) {
			e.at -= 2
			return nil, -1, e.refuse(`\` + string(c))
		}
		return nil, c, nil
	}
	if unicode.IsUpper(c) && err == nil {
		is = not(is)
	}
	return is, -1, err
}

// code reads \x41, \x{1f600} and \u0041.
func (e *expression) code(kind rune) (rune, error) {
	least := map[rune]int{'x': 1, 'u': 4}[kind]
	most, braced := map[rune]int{'x': 2, 'u': 4}[kind], kind == 'x' && e.take("{")
	if braced {
		most = 8
	}
	end := e.at
	for end < len(e.in) && end-e.at < most && strings.ContainsRune("0123456789abcdefABCDEF", e.in[end]) {
		end++
	}
	text := string(e.in[e.at:end])
	n, err := strconv.ParseUint(text, 16, 32)
	if err != nil || len(text) < least || n > unicode.MaxRune || 0xd800 <= n && n < 0xe000 {
		return -1, e.refuse(`\` + string(kind) + text)
	}
	e.at = end
	if braced && !e.take("}") {
		return -1, e.refuse(`\x{ without }`)
	}
	return rune(n), nil
}

// property reads {L} or {^L} after \p.
func (e *expression) property() (class, error) {
	end := e.at
	for end < len(e.in) && e.in[end] != '}' {
		end++
	}
	if e.peek() != '{' || end == len(e.in) {
		return nil, e.refuse(`\p without {name}`)
	}
	name, negated := strings.CutPrefix(string(e.in[e.at+1:end]), "^")
	is := e.c.property(name)
	if is == nil {
		return nil, e.refuse("property " + name)
	}
	e.at = end + 1
	if negated {
		is = not(is)
	}
	return is, nil
}

// set reads the rest of [...], whose members may be sets.
func (e *expression) set() (class, error) {
	if e.depth++; e.depth > maxGroups {
		return nil, e.refuse("this nesting depth")
	}
	if e.sets++; e.fold && e.sets > maxFolded {
		return nil, e.refuse("this depth of sets without case")
	}
	defer func() { e.depth, e.sets = e.depth-1, e.sets-1 }()
	negated := e.take("^")
	var also []class  // what an intersection is made of
	var these []class // members that are together
	for first := true; ; first = false {
		switch {
		case e.at == len(e.in):
			return nil, fmt.Errorf("[ without ]: %w", ErrInvalid)
		case e.peek() == ']' && !first:
			e.at++
			is := every(append(also, some(these)))
			if e.fold {
				is = folded(is)
			}
			if negated {
				is = not(is)
			}
			return is, nil
		case e.take("&&"):
			also, these = append(also, some(these)), nil
			continue
		}
		is, err := e.setMember()
		if err != nil {
			return nil, err
		}
		these = append(these, is)
	}
}

func some(of []class) class {
	return func(r rune) bool {
		for _, is := range of {
			if is(r) {
				return true
			}
		}
		return false
	}
}

func every(of []class) class {
	return func(r rune) bool {
		for _, is := range of {
			if !is(r) {
				return false
			}
		}
		return true
	}
}

// setMember reads a character, a range, a class or a set in a set.
func (e *expression) setMember() (class, error) {
	if e.take("[:") {
		return e.named()
	}
	if e.take("[") {
		return e.set()
	}
	is, low, err := e.setCharacter()
	if err != nil || is != nil {
		return is, err
	}
	if e.peek() != '-' || e.at+1 == len(e.in) || e.in[e.at+1] == ']' {
		return func(r rune) bool { return r == low }, nil
	}
	e.at++
	is, high, err := e.setCharacter()
	switch {
	case err != nil:
		return nil, err
	case is != nil || high < low:
		return nil, e.refuse("the end of this range")
	}
	return func(r rune) bool { return low <= r && r <= high }, nil
}

// setCharacter reads one character of a set, or an escape that is a class.
func (e *expression) setCharacter() (class, rune, error) {
	if e.at == len(e.in) {
		return nil, -1, fmt.Errorf("[ without ]: %w", ErrInvalid)
	}
	c := e.in[e.at]
	if c != '\\' {
		e.at++
		return nil, c, nil
	}
	if e.at+1 == len(e.in) {
		return nil, -1, fmt.Errorf("\\ at the end: %w", ErrInvalid)
	}
	return e.member()
}

func (e *expression) named() (class, error) {
	negated := e.take("^")
	for name, is := range map[string]class{
		"digit": e.c.digit, "space": e.c.any(space), "upper": e.c.any(upper), "lower": e.c.any(lower), "punct": e.c.any(punctuation | sign), "word": e.c.word,
	} {
		if e.take(name + ":]") {
			if negated {
				is = not(is)
			}
			return is, nil
		}
	}
	return nil, e.refuse("this named set")
}
