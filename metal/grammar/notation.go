package grammar

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Notation is how arguments of the style Bare are written: names without quotes, and strings
// in which JSON's escapes mean nothing. The zero value is JSON.
type Notation struct {
	// Quote begins and ends strings, in which nothing is escaped. No string contains it.
	Quote string
	// Python means keyword arguments in parentheses, whose values are literals of Python.
	Python bool
}

func (n Notation) json() bool { return n == Notation{} }

// brackets are what stands around the members of an object, and after their names.
type brackets struct{ open, close, colon literal }

// inValues are those of objects within values.
func inValues() brackets { return brackets{"{", "}", ":"} }

// inCalls are those of the arguments themselves.
func (n Notation) inCalls() brackets {
	if n.Python {
		return brackets{"(", ")", "="}
	}
	return inValues()
}

// bare are the arguments of a goal in a notation that is not JSON.
func (s *schemas) bare(g goal) (expr, error) {
	cases, err := s.open(g)
	if err != nil {
		return nil, err
	}
	var all alt
	for _, c := range cases {
		e, err := s.objectIn(c, s.notation.inCalls())
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// special are the characters that end a bare name.
const special = "{}[](),:=\"'<|"

// maxBareName is how many bytes of a name without quotes metal/toolcall takes at least: 128
// characters.
const maxBareName = 512

// isBare reports whether a name can be written without quotes.
func isBare(name string) bool {
	return name != "" && len(name) <= maxBareName && strings.TrimSpace(name) == name && !strings.ContainsAny(name, special+"\n\r\t") &&
		!strings.ContainsFunc(name, func(c rune) bool { return c >= firstMark && c <= lastMark })
}

// named is the name of a member.
func (s *schemas) named(name string, in brackets) (expr, error) {
	switch {
	case s.notation.json():
		return literal(quoted(name)), nil
	case s.notation.Python && in.open == "{":
		return anyOf(s.notation.texts(name)), nil
	case isBare(name):
		return literal(name), nil
	case s.notation.Python:
		return nil, s.unsupported("properties", nil, "%q cannot be the name of an argument in this model's format; rename it", name)
	}
	return anyOf(s.notation.texts(name)), nil
}

// anyText is any of some texts of values, which are counted before there are nodes for them.
func (b *builder) anyText(of []string) (expr, error) {
	for _, text := range of {
		if len(text) > maxNodes {
			return nil, tooLarge("states", maxNodes)
		}
		if !b.meter.hold(symbolBytes+2*len(text)) || !b.meter.spend(len(text)/2) {
			return nil, b.meter.err
		}
	}
	return anyOf(of), nil
}

// anyOf is any of some texts.
func anyOf(texts []string) expr {
	var all alt
	for _, t := range texts {
		all = append(all, literal(t))
	}
	if len(all) == 1 {
		return all[0]
	}
	return all
}

// otherNames are the names of members, of those that an automaton matches or, if it is nil, all.
func (s *schemas) otherNames(all *regular, in brackets) (expr, error) {
	if s.notation.json() || s.notation.Python && in.open == "{" {
		if all == nil {
			return s.string(s.content, s.apostrophed), nil
		}
		return s.spelt(all)
	}
	simple, err := parseRegular(s.b.meter, "[^{}\\[\\](),:=\"'<|\\s\ufdd0-\ufdef]{1,64}", "name", true)
	if err != nil {
		return nil, err
	}
	inQuotes := s.string(s.content, nil)
	if all != nil {
		if simple, err = both(s.b.meter, simple, all); err != nil {
			return nil, err
		}
		if s.notation.Quote != "" {
			if inQuotes, err = s.spelt(all); err != nil {
				return nil, err
			}
		}
	}
	bare := s.b.emitRegular(simple, plainText)
	if s.notation.Python {
		return bare, nil
	}
	return alt{bare, inQuotes}, nil
}

// string is strings of a content, or of that between apostrophes where Python has them.
func (s *schemas) string(content, apostrophed expr) expr {
	switch {
	case s.notation.Quote != "":
		return seq{literal(s.notation.Quote), content, literal(s.notation.Quote)}
	case s.notation.Python:
		return alt{seq{literal(`"`), content, literal(`"`)}, seq{literal(`'`), apostrophed, literal(`'`)}}
	}
	return seq{literal(`"`), content, literal(`"`)}
}

// spelt are the strings that an automaton matches.
func (s *schemas) spelt(all *regular) (expr, error) {
	all, err := s.writable(all)
	if err != nil {
		return nil, err
	}
	if s.notation.Quote != "" {
		return s.string(s.b.emitRegular(all, plainText), nil), nil
	}
	e := s.b.emitRegular(all, inJSON)
	if !s.notation.Python {
		return s.string(e, nil), nil
	}
	plain, err := both(s.b.meter, all, onlyOf(but('\'')))
	if err != nil {
		return nil, err
	}
	return s.string(e, s.b.emitRegular(plain, inJSON)), nil
}

// commonText makes the characters and the content of strings that are not JSON's.
func (s *schemas) commonText(escaped expr) {
	if quote := s.notation.Quote; quote != "" {
		if quote[0] >= utf8.RuneSelf { // a mark, which no text contains
			s.char = s.b.define(runes(noMark))
			s.content = repeat{s.char, 0, -1}
			return
		}
		plain := noMark.both(but(rune(quote[0])))
		s.char = s.b.define(runes(plain))
		s.content = s.b.define(repeat{alt{s.char, seq{literal(quote[:1]), runes(plain.both(but(rune(quote[1]))))}}, 0, -1})
		return
	}
	if s.sloppy { // Python keeps a backslash that escapes nothing
		escaped = alt{escaped, seq{literal(`\`), runes(noMark.both(but('u')))}}
	} else {
		escaped = alt{escaped, literal(`\'`)}
	}
	plain := noMark.both(but('\\'))
	if !s.sloppy {
		plain = plain.both(newRuneSet(runeRange{' ', utf8.MaxRune}))
	}
	s.char = s.b.define(alt{runes(plain.both(but('"'))), escaped})
	s.apostrophe = s.b.define(alt{runes(plain.both(but('\''))), escaped})
	s.content, s.apostrophed = repeat{s.char, 0, -1}, repeat{s.apostrophe, 0, -1}
}

// but are all characters except one.
func but(c rune) runeSet {
	return newRuneSet(runeRange{0, c - 1}, runeRange{c + 1, utf8.MaxRune})
}

// lacking matches the texts that do not contain one: a state is how much of it came last.
func lacking(text string) *regular {
	letters := []rune(text)
	distinct := slices.Compact(slices.Sorted(slices.Values(letters)))
	out := &regular{}
	for at := range letters {
		state, next := regularState{accept: true}, rune(0)
		for _, c := range distinct {
			came := string(letters[:at]) + string(c)
			to := len(letters)
			for !strings.HasSuffix(came, string(letters[:to])) {
				to--
			}
			for _, gap := range newRuneSet(runeRange{next, c - 1}) {
				state.add(regularWay{gap, 0})
			}
			if next = c + 1; to < len(letters) {
				state.add(regularWay{runeRange{c, c}, to})
			}
		}
		for _, gap := range newRuneSet(runeRange{next, utf8.MaxRune}) {
			state.add(regularWay{gap, 0})
		}
		out.states = append(out.states, state)
	}
	return out
}

// texts are the ways to write a string, none where it cannot be written.
func (n Notation) texts(text string) []string {
	switch {
	case n.Quote != "" && strings.Contains(text, n.Quote):
		return nil
	case n.Quote != "":
		return []string{n.Quote + text + n.Quote}
	case n.Python:
		var inner strings.Builder
		for _, c := range text {
			switch c {
			case '\'':
				inner.WriteString(`\'`)
			case '"':
				inner.WriteRune(c)
			default:
				escaped := quoted(string(c))
				inner.WriteString(escaped[1 : len(escaped)-1])
			}
		}
		return []string{quoted(text), "'" + inner.String() + "'"}
	}
	return []string{quoted(text)}
}

// written are the ways to write a value; those within a list or an object are written in the
// first way.
func (n Notation) written(v value) []string {
	first := func(v value) (string, bool) {
		all := n.written(v)
		if len(all) == 0 {
			return "", false
		}
		return all[0], true
	}
	switch v := v.(type) {
	case string:
		return n.texts(v)
	case nil, bool:
		if n.Python {
			return []string{map[value]string{nil: "None", true: "True", false: "False"}[v]}
		}
	case []value:
		parts := make([]string, len(v))
		for i, e := range v {
			var ok bool
			if parts[i], ok = first(e); !ok {
				return nil
			}
		}
		return []string{"[" + strings.Join(parts, ",") + "]"}
	case *members:
		parts := make([]string, len(v.names))
		for i, name := range v.names {
			of, ok := first(v.of[name])
			key := n.texts(name)
			if !n.Python && !n.json() && isBare(name) {
				key = []string{name}
			}
			if !ok || len(key) == 0 {
				return nil
			}
			parts[i] = key[0] + ":" + of
		}
		return []string{"{" + strings.Join(parts, ",") + "}"}
	}
	return []string{written(v)}
}

// constants are the spellings of one: both, in sloppy values.
func (s *schemas) constants(json, python literal) alt {
	all := alt{json, python}
	if s.notation.Python {
		slices.Reverse(all)
	}
	if !s.sloppy {
		all = all[:1]
	}
	return all
}
