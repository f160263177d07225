package grammar

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// A value has to satisfy several schemas at once if $ref, allOf, anyOf and
// oneOf are combined with other keywords or nested. A goal is such a list of
// schemas. It is opened into cases, of which one has to hold; a case is a list
// of objects whose own keywords all have to hold. Each goal becomes one rule,
// made once, so that a schema may lead back to itself.

// object is a schema whose own keywords hold, but for those in skip.
type object struct {
	*members
	at   *spot
	skip map[string]bool
}

func (o object) get(name string) (value, bool) {
	if o.skip[name] {
		return nil, false
	}
	return o.members.get(name)
}

// oneCase is objects that all hold.
type oneCase []object

const (
	maxCases = 256
	maxWork  = 100_000
	maxGoal  = 64
)

// schemas compiles one document.
type schemas struct {
	opener
	rules map[string]ref
	todo  []func() error
	// tools of all documents, made once. content is any string without its quotes.
	space, char ref
	content     expr
	// apostrophe and apostrophed are char and content between apostrophes, in Python.
	apostrophe  ref
	apostrophed expr
}

func compileSchema(b *builder, source string) (expr, error) {
	s, err := newSchemas(b, source, manner{})
	if err != nil {
		return nil, err
	}
	top, err := s.rule(goal{{of: s.root}})
	if err != nil {
		return nil, err
	}
	return top, s.finish()
}

func newSchemas(b *builder, source string, how manner) (*schemas, error) {
	if !b.meter.spend(len(source) / textBytes) {
		return nil, b.meter.err
	}
	root, err := parseValue(b.meter, source)
	if b.meter.err != nil {
		return nil, b.meter.err
	}
	if err != nil {
		return nil, &Error{kind: ErrInvalid, Message: fmt.Sprintf("the schema is not JSON: %v", err)}
	}
	s := &schemas{opener: newOpener(b, root, how), rules: map[string]ref{}}
	s.common()
	return s, nil
}

// finish makes the rules that were only named so far.
func (s *schemas) finish() error {
	for len(s.todo) > 0 {
		next := s.todo[0]
		s.todo = s.todo[1:]
		if err := next(); err != nil {
			return err
		}
		if s.b.err != nil {
			return s.b.err
		}
	}
	return nil
}

// common are the rules that every schema needs: bounded blanks between tokens,
// and a character of a string, escaped or not.
func (s *schemas) common() {
	s.space = s.b.define(alt{literal(""), literal(" "), seq{literal("\n"), alt{repeat{literal(" "), 0, 32}, repeat{literal("\t"), 0, 16}}}})
	if s.sloppy {
		s.space = s.b.define(repeat{blank, 0, maxBlanks})
	}
	hex := runes(newRuneSet(runeRange{'0', '9'}, runeRange{'a', 'f'}, runeRange{'A', 'F'}))
	pick := func(set string) expr {
		var ranges []runeRange
		for _, c := range set {
			ranges = append(ranges, runeRange{c, c})
		}
		return runes(newRuneSet(ranges...))
	}
	plain, escapes := newRuneSet(runeRange{0x20, 0x21}, runeRange{0x23, 0x5b}, runeRange{0x5d, utf8.MaxRune}), `"\/bfnrt`
	if s.sloppy {
		plain, escapes = newRuneSet(runeRange{0, 0x21}, runeRange{0x23, 0x5b}, runeRange{0x5d, utf8.MaxRune}), `"\/bfnrt'`
	}
	escaped := s.b.define(alt{
		seq{literal(`\`), pick(escapes)},
		seq{literal(`\u`), alt{
			seq{pick("0123456789abcefABCEF"), hex, hex, hex},
			seq{pick("dD"), pick("01234567"), hex, hex},
			seq{pick("dD"), pick("89abAB"), hex, hex, literal(`\u`), pick("dD"), pick("cdefCDEF"), hex, hex},
		}},
	})
	if !s.notation.json() {
		s.commonText(escaped)
		return
	}
	if s.forgiving { // a control token ends a string, so that none stands in it
		plain = plain.both(noMark)
	}
	if !s.inTags {
		s.char = s.b.define(alt{runes(plain), escaped})
		s.content = repeat{s.char, 0, -1}
		return
	}
	plain = plain.both(noTag)
	s.char = s.b.define(alt{runes(plain), escaped})
	// A tag begins with </, or with < in a line of its own.
	opens := repeat{literal("<"), 1, -1}
	afterOpen := alt{runes(plain.both(newRuneSet(runeRange{0, '/' - 1}, runeRange{'/' + 1, utf8.MaxRune}))), escaped}
	s.content = s.b.define(seq{repeat{alt{s.char, seq{opens, afterOpen}}, 0, -1}, repeat{literal("<"), 0, -1}})
}

// maxBlanks may stand between two parts of sloppy JSON: a model that writes nothing else does
// not come to an end.
const maxBlanks = 64

var blank = alt{literal(" "), literal("\n"), literal("\t"), literal("\r")}

// rule of a goal; what it is made of comes later.
func (s *schemas) rule(g goal) (ref, error) {
	if !s.b.meter.spend(8 * len(g)) {
		return 0, s.b.meter.err
	}
	keep, key, err := g.distinct()
	if err != nil {
		return 0, err
	}
	if r, ok := s.rules[key]; ok {
		return r, nil
	}
	if !s.b.meter.hold(2*entryBytes + len(key) + 2*placeBytes*len(keep)) {
		return 0, s.b.meter.err
	}
	r := s.b.rule()
	s.rules[key] = ref(r)
	s.todo = append(s.todo, func() error {
		all, err := s.cases(keep)
		if err != nil && s.forgives(err) {
			all, err = s.cases(slices.DeleteFunc(keep, func(p place) bool { return !p.own }))
		}
		if err != nil {
			return err
		}
		s.b.fill(r, all)
		return nil
	})
	return ref(r), nil
}

// cases are the values of a goal.
func (s *schemas) cases(g goal) (expr, error) {
	cases, err := s.open(g)
	if err != nil {
		return nil, err
	}
	var all alt
	for _, c := range cases {
		e, err := s.emitCase(c)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}
