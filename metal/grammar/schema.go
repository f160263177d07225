package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A value has to satisfy several schemas at once if $ref, allOf, anyOf and
// oneOf are combined with other keywords or nested. A goal is such a list of
// schemas. It is opened into cases, of which one has to hold; a case is a list
// of objects whose own keywords all have to hold. Each goal becomes one rule,
// made once, so that a schema may lead back to itself.

// place is a schema and where it stands.
type place struct {
	of   value // bool or *members
	path string
}

// goal is schemas that all hold.
type goal []place

// object is a schema whose own keywords hold, but for those in skip.
type object struct {
	*members
	path string
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

// manner is how strictly a schema is read and its values are written.
type manner struct {
	// forgiving: a keyword that cannot be enforced, or read, is not enforced. Members may
	// come in any order.
	forgiving bool
	// sloppy: only types, members and listed values are enforced, other members are allowed
	// unless the schema forbids them, and JSON may have the flaws that metal/toolcall repairs.
	sloppy bool
	// inTags: values stand between tags, so that no string has a tag in it.
	inTags bool
}

// schemas compiles one document.
type schemas struct {
	b     *builder
	root  value
	rules map[string]ref
	todo  []func() error
	manner
	// tools of all documents, made once. content is any string without its quotes.
	space, char ref
	content     expr
	// patterns that were parsed already, and the canonical values of lists, by their first.
	patterns map[string]*regular
	enums    map[*value]map[string]bool
	// items of arrays, by the path of their schema.
	items map[string]itemSchemas
}

func compileSchema(b *builder, source string) (expr, error) {
	s, err := newSchemas(b, source, manner{})
	if err != nil {
		return nil, err
	}
	top, err := s.rule(goal{{s.root, ""}})
	if err != nil {
		return nil, err
	}
	return top, s.finish()
}

func newSchemas(b *builder, source string, how manner) (*schemas, error) {
	root, err := parseValue(source)
	if err != nil {
		return nil, &Error{kind: ErrInvalid, Message: fmt.Sprintf("the schema is not JSON: %v", err)}
	}
	s := &schemas{b: b, root: root, rules: map[string]ref{}, patterns: map[string]*regular{}, enums: map[*value]map[string]bool{}, items: map[string]itemSchemas{}, manner: how}
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

func (s *schemas) unsupported(keyword, path, format string, args ...any) error {
	return &Error{kind: errUnsupported, Keyword: keyword, Path: path, Message: fmt.Sprintf("the keyword %q cannot be enforced: ", keyword) + fmt.Sprintf(format, args...)}
}

func (s *schemas) malformed(keyword, path, want string) error {
	return &Error{kind: ErrInvalid, Keyword: keyword, Path: path, Message: fmt.Sprintf("the keyword %q must be %s", keyword, want)}
}

// rule of a goal; what it is made of comes later.
func (s *schemas) rule(g goal) (ref, error) {
	var keep goal
	var paths []string
	for _, p := range g {
		if p.of == true || slices.Contains(paths, p.path) {
			continue
		}
		keep = append(keep, p)
		paths = append(paths, p.path)
	}
	if len(keep) > maxGoal {
		return 0, tooLarge("schemas that apply to one value", maxGoal)
	}
	sorted := slices.Clone(paths)
	slices.Sort(sorted)
	key := strings.Join(sorted, "\x00")
	if len(keep) == 0 {
		key = "\x00any"
	}
	if r, ok := s.rules[key]; ok {
		return r, nil
	}
	r := s.b.rule()
	s.rules[key] = ref(r)
	s.todo = append(s.todo, func() error {
		all, err := s.cases(keep)
		if err != nil && s.forgives(err) {
			all, err = s.cases(slices.DeleteFunc(keep, func(p place) bool { return p.path != ownPath }))
		}
		if err != nil {
			return err
		}
		s.b.fill(r, all)
		return nil
	})
	return ref(r), nil
}

// ownPath is that of a schema of ours that applies too; no pointer is written so.
const ownPath = " "

// forgives reports whether a value may be anything where its schema cannot be read.
func (s *schemas) forgives(err error) bool {
	return s.forgiving && s.b.err == nil && s.b.meter.err == nil && !errors.Is(err, errLimit)
}

// cases are the values of a goal.
func (s *schemas) cases(g goal) (expr, error) {
	cases, err := s.open(g, nil)
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

// open finds the cases of a goal. following are the references on the way.
func (s *schemas) open(g goal, following []string) ([]oneCase, error) {
	all := []oneCase{{}}
	for _, p := range g {
		more, err := s.openOne(p, following)
		if err != nil {
			return nil, err
		}
		if all, err = s.product(all, more); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// product is each of one with each of the other.
func (s *schemas) product(a, b []oneCase) ([]oneCase, error) {
	if len(a)*len(b) > maxCases {
		return nil, tooLarge("alternatives of one value", maxCases)
	}
	var out []oneCase
	for _, x := range a {
		for _, y := range b {
			if !s.b.meter.spend(1 + len(x) + len(y)*(len(x)+len(y))) {
				return nil, s.b.meter.err
			}
			joined := slices.Clone(x)
			for _, o := range y {
				if !slices.ContainsFunc(joined, func(have object) bool { return have.path == o.path }) {
					joined = append(joined, o)
				}
			}
			out = append(out, joined)
		}
	}
	return out, nil
}

func (s *schemas) openOne(p place, following []string) ([]oneCase, error) {
	size := 0
	if m, ok := p.of.(*members); ok {
		size = len(m.names)
	}
	if s.b.exceeds(size) {
		return nil, tooLarge("steps to compile", maxWork)
	}
	switch of := p.of.(type) {
	case bool:
		if of {
			return []oneCase{{}}, nil
		}
		return nil, nil
	case *members:
		if err := s.checkKeywords(of, p.path); err != nil {
			return nil, err
		}
		return s.openObject(object{of, p.path, s.skipped()}, following)
	}
	return nil, &Error{kind: ErrInvalid, Path: p.path, Message: "a schema must be an object, true or false"}
}

func (s *schemas) openObject(o object, following []string) ([]oneCase, error) {
	all := []oneCase{{o}}
	var err error
	add := func(more []oneCase, failed error) {
		if err = failed; err == nil {
			all, err = s.product(all, more)
		}
	}
	if v, ok := o.get("$ref"); ok {
		target, found := s.resolve(v, o.path)
		if found != nil {
			return nil, found
		}
		if slices.Contains(following, target.path) {
			return nil, &Error{kind: errUnsupported, Keyword: "$ref", Path: o.path, Message: `the keyword "$ref" leads back to itself without a value in between`}
		}
		add(s.openOne(target, append(slices.Clone(following), target.path)))
	}
	if err != nil {
		return nil, err
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		v, ok := o.get(keyword)
		if !ok {
			continue
		}
		list, isList := v.([]value)
		if !isList || len(list) == 0 {
			return nil, s.malformed(keyword, o.path, "a non-empty list of schemas")
		}
		add(s.openList(keyword, list, o.path, following))
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// openList opens allOf, anyOf and oneOf.
func (s *schemas) openList(keyword string, list []value, path string, following []string) ([]oneCase, error) {
	each := make([][]oneCase, len(list))
	for i, of := range list {
		var err error
		if each[i], err = s.openOne(place{of, fmt.Sprintf("%s/%s/%d", path, keyword, i)}, following); err != nil {
			return nil, err
		}
	}
	if keyword == "allOf" {
		all := []oneCase{{}}
		for _, cases := range each {
			var err error
			if all, err = s.product(all, cases); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	var all []oneCase
	for i, cases := range each {
		if keyword == "oneOf" && !s.forgiving {
			for j := range i {
				if !s.apartAll(each[j], cases) {
					return nil, s.unsupported("oneOf", path, "alternatives %d and %d may both match the same value; use anyOf, or add a const that distinguishes them", j, i)
				}
			}
		}
		all = append(all, cases...)
	}
	if len(all) > maxCases {
		return nil, tooLarge("alternatives of one value", maxCases)
	}
	return all, nil
}

// resolve finds what a reference within the document names.
func (s *schemas) resolve(v value, path string) (place, error) {
	text, ok := v.(string)
	if !ok {
		return place{}, s.malformed("$ref", path, "a string")
	}
	pointer, local := strings.CutPrefix(text, "#")
	if !local {
		return place{}, s.unsupported("$ref", path, "%q is not in this schema; put the referenced schema under $defs and refer to it as #/$defs/NAME", text)
	}
	if pointer, err := url.PathUnescape(pointer); err == nil && (pointer == "" || pointer[0] == '/') {
		at, found := s.root, true
		canonical := ""
		for i, part := range strings.Split(pointer, "/") {
			if i == 0 {
				continue
			}
			part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
			canonical += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(part)
			switch of := at.(type) {
			case *members:
				at, found = of.get(part)
			case []value:
				n, err := strconv.Atoi(part)
				if found = err == nil && n >= 0 && n < len(of); found {
					at = of[n]
				}
			default:
				found = false
			}
			if !found {
				break
			}
		}
		if found {
			return place{at, canonical}, nil
		}
	}
	return place{}, &Error{kind: ErrInvalid, Keyword: "$ref", Path: path, Message: fmt.Sprintf(`the keyword "$ref" refers to %q, which does not exist; references are #, or # and a JSON pointer`, text)}
}

// keywords that are enforced, or say nothing about a value.
var keywords = map[string]bool{
	"$schema": true, "$defs": true, "definitions": true, "$comment": true, "title": true, "description": true, "default": true,
	"examples": true, "example": true, "deprecated": true, "readOnly": true, "writeOnly": true, "contentEncoding": true, "contentMediaType": true,
	"discriminator": true, "nullable": false,
	"type": true, "enum": true, "const": true, "$ref": true, "allOf": true, "anyOf": true, "oneOf": true,
	"properties": true, "patternProperties": true, "additionalProperties": true, "required": true, "minProperties": true, "maxProperties": true,
	"items": true, "prefixItems": true, "additionalItems": true, "minItems": true, "maxItems": true,
	"minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true,
	"minLength": true, "maxLength": true, "pattern": true, "format": true,
}

// structural are the keywords that sloppy JSON is not held to.
var notStructural = map[string]bool{
	"patternProperties": true, "minProperties": true, "maxProperties": true, "minItems": true, "maxItems": true,
	"minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true,
	"minLength": true, "maxLength": true, "pattern": true, "format": true, "multipleOf": true,
}

// skipped are the keywords that are not looked at.
func (s *schemas) skipped() map[string]bool {
	if s.sloppy {
		return notStructural
	}
	return nil
}

func (s *schemas) checkKeywords(m *members, path string) error {
	if s.forgiving {
		return nil
	}
	for _, name := range m.names {
		v := m.of[name]
		switch {
		case keywords[name] || strings.HasPrefix(name, "x-"):
		case name == "uniqueItems" && v == false:
		case name == "multipleOf" && v == json.Number("1"):
		case name == "uniqueItems":
			return s.unsupported(name, path, "an automaton cannot remember all items; omit it and validate the output, or list the values as an enum of arrays")
		case name == "multipleOf":
			return s.unsupported(name, path, "only 1 is supported; list the values as an enum, or omit it and validate the output")
		default:
			return s.unsupported(name, path, "omit it and validate the output")
		}
	}
	if v, ok := m.get("$schema"); ok && path == "" {
		if text, _ := v.(string); !strings.Contains(text, "2020-12") && !strings.Contains(text, "2019-09") && !strings.Contains(text, "draft-07") && !strings.Contains(text, "draft-06") {
			return s.unsupported("$schema", path, "unknown dialect %s; write the schema in 2020-12", written(v))
		}
	}
	return nil
}
