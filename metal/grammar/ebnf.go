package grammar

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ebnf reads grammars as llama.cpp writes them (GBNF):
//
//	root ::= "yes" | [0-9]+ other{2,3} # a remark
type ebnf struct {
	b     *builder
	in    string
	at    int
	rules map[string]ref
	begun map[string]bool // defined
	order []string
	depth int
	any   expr // character
}

const (
	ebnfRoot     = "root"
	maxEBNFDepth = 200
	maxEBNFTimes = 10_000
)

func compileEBNF(b *builder, source string) (expr, error) {
	p := &ebnf{b: b, in: source, any: runes(anyRune()), rules: map[string]ref{}, begun: map[string]bool{}}
	if !utf8.ValidString(source) {
		return nil, p.wrong("the grammar is not UTF-8")
	}
	for p.blank(true); p.at < len(p.in); p.blank(true) {
		if err := p.rule(); err != nil {
			return nil, err
		}
	}
	for _, name := range p.order {
		if !p.begun[name] {
			return nil, &Error{kind: ErrInvalid, Keyword: name, Message: fmt.Sprintf("the grammar refers to the rule %s but does not define it", name)}
		}
	}
	root, ok := p.rules[ebnfRoot]
	if !ok {
		return nil, &Error{kind: ErrInvalid, Keyword: ebnfRoot, Message: "the grammar has no rule named root, which is its start rule"}
	}
	return root, nil
}

func (p *ebnf) wrong(format string, args ...any) error {
	line := strings.Count(p.in[:min(p.at, len(p.in))], "\n") + 1
	return &Error{kind: ErrInvalid, Keyword: "grammar", Message: fmt.Sprintf("line %d of the grammar: %s", line, fmt.Sprintf(format, args...))}
}

// blank skips blanks and remarks, and line ends where these mean nothing.
func (p *ebnf) blank(lines bool) {
	for p.at < len(p.in) {
		switch c := p.in[p.at]; {
		case c == ' ' || c == '\t' || lines && (c == '\n' || c == '\r'):
			p.at++
		case c == '#':
			for p.at < len(p.in) && p.in[p.at] != '\n' {
				p.at++
			}
		default:
			return
		}
	}
}

func (p *ebnf) peek() byte {
	if p.at < len(p.in) {
		return p.in[p.at]
	}
	return 0
}

func (p *ebnf) name() string {
	from := p.at
	for p.at < len(p.in) {
		c := p.in[p.at]
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			break
		}
		p.at++
	}
	return p.in[from:p.at]
}

func (p *ebnf) reference(name string) ref {
	r, ok := p.rules[name]
	if !ok {
		p.b.meter.hold(3 * entryBytes)
		r = ref(p.b.rule())
		p.rules[name] = r
		p.order = append(p.order, name)
	}
	return r
}

func (p *ebnf) rule() error {
	name := p.name()
	if name == "" {
		return p.wrong("want a rule name, found %q", p.peek())
	}
	p.blank(false)
	if !strings.HasPrefix(p.in[p.at:], "::=") {
		return p.wrong("want ::= after the rule name %s", name)
	}
	p.at += 3
	if p.begun[name] {
		return p.wrong("the rule %s is defined twice", name)
	}
	p.begun[name] = true
	r := p.reference(name)
	e, err := p.alternatives(false)
	if err != nil {
		return err
	}
	p.b.fill(int32(r), e)
	if c := p.peek(); p.at < len(p.in) && c != '\n' && c != '\r' {
		return p.wrong("unexpected %q", c)
	}
	return p.b.err
}

// alternatives reads to the end of the rule, or of the group that is open.
func (p *ebnf) alternatives(group bool) (expr, error) {
	if p.depth++; p.depth > maxEBNFDepth {
		return nil, tooLarge("nested groups", maxEBNFDepth)
	}
	defer func() { p.depth-- }()
	var all alt
	for {
		s, err := p.sequence(group)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
		if p.peek() != '|' {
			return all, nil
		}
		p.at++
	}
}

func (p *ebnf) sequence(group bool) (expr, error) {
	var out seq
	// A line may end after ::= and after |.
	for p.blank(true); ; p.blank(group) {
		if !p.b.meter.hold(symbolBytes) || !p.b.meter.spend(2) {
			return nil, p.b.meter.err
		}
		at := p.at
		var e expr
		var err error
		switch c := p.peek(); {
		case c == '"':
			e, err = p.text()
		case c == '[':
			e, err = p.class()
		case c == '.':
			p.at++
			e = p.any
		case c == '(':
			p.at++
			if e, err = p.alternatives(true); err == nil && p.peek() != ')' {
				err = p.wrong("the group ( is not closed")
			}
			p.at++
		default:
			name := p.name()
			if name == "" || p.defines() {
				p.at = at
				return out, nil
			}
			e = p.reference(name)
		}
		if err != nil {
			return nil, err
		}
		if e, err = p.times(e); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
}

// defines reports whether the name just read is that of the next rule.
func (p *ebnf) defines() bool {
	return strings.HasPrefix(strings.TrimLeft(p.in[p.at:], " \t"), "::=")
}

// times reads the repetition that may follow a symbol: * + ? {m} {m,} {m,n}.
func (p *ebnf) times(e expr) (expr, error) {
	for {
		switch p.peek() {
		case '*':
			e = repeat{p.b.define(e), 0, -1}
		case '+':
			e = repeat{p.b.define(e), 1, -1}
		case '?':
			if r, ok := e.(repeat); !ok || r.min > 0 {
				e = repeat{e, 0, 1} // optional already: else a row of ? is a tree as deep, and emit recurses
			}
		case '{':
			end := strings.IndexByte(p.in[p.at:], '}')
			if end < 0 {
				return nil, p.wrong("{ is not closed")
			}
			low, high, two := strings.Cut(p.in[p.at+1:p.at+end], ",")
			least, err := strconv.Atoi(strings.TrimSpace(low))
			most := least
			if high = strings.TrimSpace(high); err == nil && two && high == "" {
				most = -1
			} else if err == nil && two {
				most, err = strconv.Atoi(high)
			}
			if err != nil || least < 0 || two && high != "" && most < least {
				return nil, p.wrong("{%s} is not a valid repetition", p.in[p.at+1:p.at+end])
			}
			if max(least, most) > maxEBNFTimes {
				return nil, tooLarge("repetitions of one element", maxEBNFTimes)
			}
			e = repeat{p.b.define(e), least, most}
			p.at += end
		default:
			return e, nil
		}
		p.at++
	}
}

// character reads one, or what a backslash and it stand for.
func (p *ebnf) character() (rune, error) {
	if p.at >= len(p.in) {
		return 0, p.wrong("the grammar ends unexpectedly")
	}
	c, n := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += n
	if c != '\\' {
		return c, nil
	}
	if p.at >= len(p.in) {
		return 0, p.wrong("the grammar ends with a backslash")
	}
	c = rune(p.in[p.at])
	p.at++
	switch c {
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case '"', '\\', '[', ']', '-', '^':
		return c, nil
	}
	digits, known := map[rune]int{'x': 2, 'u': 4, 'U': 8}[c]
	if !known || p.at+digits > len(p.in) {
		return 0, p.wrong("unknown escape \\%c", c)
	}
	v, err := strconv.ParseUint(p.in[p.at:p.at+digits], 16, 32)
	if err != nil || v > utf8.MaxRune || v >= 0xd800 && v <= 0xdfff {
		return 0, p.wrong("\\%c must be followed by the %d hexadecimal digits of a character", c, digits)
	}
	p.at += digits
	return rune(v), nil
}

func (p *ebnf) text() (expr, error) {
	p.at++
	var out strings.Builder
	for p.peek() != '"' {
		if p.peek() == '\n' {
			return nil, p.wrong("a string is not closed")
		}
		c, err := p.character()
		if err != nil {
			return nil, err
		}
		if !p.b.meter.hold(2) {
			return nil, p.b.meter.err
		}
		out.WriteRune(c)
	}
	p.at++
	p.b.meter.spend(out.Len() / textBytes)
	return literal(out.String()), nil
}

func (p *ebnf) class() (expr, error) {
	p.at++
	negated := p.peek() == '^'
	if negated {
		p.at++
	}
	var ranges []runeRange
	for p.peek() != ']' {
		lo, err := p.character()
		if err != nil {
			return nil, err
		}
		hi := lo
		if p.peek() == '-' && !strings.HasPrefix(p.in[p.at:], "-]") {
			p.at++
			if hi, err = p.character(); err != nil {
				return nil, err
			}
		}
		if hi < lo {
			return nil, p.wrong("the range from %q to %q is reversed", lo, hi)
		}
		if !p.b.meter.hold(3 * 8) {
			return nil, p.b.meter.err
		}
		ranges = append(ranges, runeRange{lo, hi})
	}
	p.at++
	p.b.meter.spend(2 * len(ranges))
	s := newRuneSet(ranges...)
	if negated {
		s = s.not()
	}
	return runes(s), nil
}
