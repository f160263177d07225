package grammar

import (
	"fmt"
	"slices"
	"strings"
)

// Calls is an answer that is calls of functions, or one with such calls in it.
type Calls struct {
	Functions []Function
	// Groups of calls, by how they begin. Without Free, the answer is one group
	// or, with Many, several separated by Between; the regular expression Lead
	// precedes the first.
	Groups        []Group
	Many          bool
	Lead, Between string
	// Final, a regular expression, precedes an answer of the form Spec.Else.
	Final string
	// Free allows any text around groups: a group's Begin, which must not be
	// empty, starts the group wherever it occurs. First are groups whose Begin
	// only counts at the start of the answer.
	Free  bool
	First []Group
	// Sloppy holds the arguments to what their schema contains of types, members and listed
	// values, and takes the flaws that metal/toolcall repairs.
	Sloppy bool
}

// Function is a function that can be called.
type Function struct{ Name, Schema string }

// Group is calls after a text.
type Group struct {
	Begin string
	// Only is the function that Begin names; the first call then contains no
	// name.
	Only string
	// Chains are the ways in which the calls follow one another.
	Chains []Chain
}

// Chain is one or more calls. Its regular expressions precede the first call,
// separate calls, and follow the last; an empty Between allows one call.
type Chain struct {
	Open         string
	Forms        []Form
	Between, End string
}

// Style is the notation of arguments.
type Style int

// The styles.
const (
	// JSON: an object of the schema.
	JSON Style = iota
	// Tagged: parameters between tags, see Tags.
	Tagged
	// Bare: an object of the schema in the notation of the form.
	Bare
	// Code: the text of the only parameter, of functions that have one parameter, a string.
	Code
	// Reversed: an object of the schema that stands before the name. Answers to requests with
	// many functions do not have this form.
	Reversed
)

// Form is a way to write a call. Its parts are regular expressions.
type Form struct {
	Style Style
	// Before precedes the name, Middle separates the name and the arguments,
	// and After follows them.
	Before, Middle, After string
	// None follows the name of a function that is called without arguments, and
	// Null replaces them, if its schema allows that and the format has it.
	None, Null string
	Tags       Tags
	Notation   Notation
}

// compileFunctions is calls, or an answer of another form.
func compileFunctions(b *builder, s Spec) (expr, error) {
	calls, err := compileCalls(b, s.Calls)
	if err != nil || s.Else == nil {
		return calls, err
	}
	if s.Calls.Free {
		return nil, &Error{kind: ErrInvalid, Message: "an answer of free text with calls cannot have another form as well"}
	}
	if s.Else.Kind == Functions {
		return nil, &Error{kind: ErrInvalid, Message: "an answer cannot be calls or other calls"}
	}
	other, err := b.compile(*s.Else)
	if err != nil {
		return nil, err
	}
	if s.Calls.Final != "" {
		before, err := b.pattern(s.Calls.Final)
		if err != nil {
			return nil, err
		}
		other = seq{before, other}
	} else if s.Else.Kind == JSONObject || s.Else.Kind == JSONSchema {
		other = seq{blankBeforeJSON(), other}
	}
	return alt{calls, other}, b.err
}

func compileCalls(b *builder, c *Calls) (expr, error) {
	if c == nil || len(c.Functions) == 0 || len(c.Groups)+len(c.First) == 0 {
		return nil, &Error{kind: ErrInvalid, Message: "there is no function to call"}
	}
	k := &calls{b: b, sloppy: c.Sloppy, named: map[string][]*function{}, texts: map[*Chain]string{}, chains: map[chainKey]ref{}}
	for _, f := range c.Functions {
		fn := &function{Function: f}
		k.functions = append(k.functions, fn)
		k.named[f.Name] = append(k.named[f.Name], fn)
	}
	if c.Free {
		return k.free(c)
	}
	var groups alt
	for _, g := range c.Groups {
		e, err := k.group(g)
		if err != nil {
			return nil, err
		}
		groups = append(groups, seq{literal(g.Begin), e})
	}
	lead, err := b.pattern(c.Lead)
	if err != nil {
		return nil, err
	}
	one := b.define(groups)
	if !c.Many {
		return seq{lead, one}, b.err
	}
	return seq{lead, one, repeat{seq{literal(c.Between), one}, 0, -1}}, b.err
}

// calls compiles the groups of one answer.
type calls struct {
	b         *builder
	functions []*function
	named     map[string][]*function
	sloppy    bool
	object    expr // any JSON object; nil until it is made
	// texts are the contents of chains as keys, and chains are those that were made.
	texts  map[*Chain]string
	chains map[chainKey]ref
}

type chainKey struct{ chain, only string }

// function is one that can be called, with its arguments in the styles that were needed.
type function struct {
	Function
	written map[string]expr
}

// free is any text in which a group follows each Begin.
func (k *calls) free(c *Calls) (expr, error) {
	t := newText(k.b)
	for i, g := range slices.Concat(c.Groups, c.First) {
		if g.Begin == "" {
			return nil, &Error{kind: ErrInvalid, Message: "a call in free text needs a beginning"}
		}
		e, err := k.group(g)
		if err != nil {
			return nil, err
		}
		if i < len(c.Groups) {
			t.mark(g.Begin, k.b.define(e))
		} else {
			t.first(g.Begin, k.b.define(e))
		}
	}
	return t.rule(), k.b.err
}

// group is the calls of a group, without its beginning.
func (k *calls) group(g Group) (expr, error) {
	var chains alt
	for i := range g.Chains {
		e, err := k.chain(&g.Chains[i], g.Only)
		if err != nil {
			return nil, err
		}
		chains = append(chains, e)
	}
	return chains, nil
}

func (k *calls) chain(c *Chain, only string) (expr, error) {
	text := k.texts[c]
	if text == "" {
		text = fmt.Sprintf("%#v", *c)
		k.b.meter.spend(len(text))
		k.texts[c] = text
	}
	key := chainKey{text, only}
	k.b.meter.spend((len(text) + len(only)) / (4 * textBytes))
	if r, made := k.chains[key]; made {
		return r, nil
	}
	var parts [3]expr
	for i, source := range []string{c.Open, c.Between, c.End} {
		var err error
		if parts[i], err = k.b.pattern(source); err != nil {
			return nil, err
		}
	}
	first, err := k.call(c.Forms, only)
	if err != nil {
		return nil, err
	}
	next := first
	if only != "" {
		parts[0] = literal("")
		if next, err = k.call(c.Forms, ""); err != nil {
			return nil, err
		}
	}
	further := repeat{seq{parts[1], next}, 0, -1}
	if c.Between == "" {
		further.max = 0
	}
	r := k.b.define(seq{parts[0], first, further, parts[2]})
	k.chains[key] = r
	return r, nil
}

// call is one call in any of some forms; one of the function only has no name.
func (k *calls) call(forms []Form, only string) (expr, error) {
	var all alt
	for _, f := range forms {
		e, err := k.form(f, only)
		if err != nil {
			return nil, err
		}
		if e != nil {
			all = append(all, e)
		}
	}
	return k.b.define(all), nil
}

// form is the calls of all functions in one form, or what follows the name of only one; nil
// where it suits none.
func (k *calls) form(f Form, only string) (expr, error) {
	var parts [5]expr
	for i, source := range []string{f.Before, f.Middle, f.After, f.None, f.Null} {
		var err error
		if parts[i], err = k.b.pattern(source); err != nil {
			return nil, err
		}
	}
	before, middle, after, none, null := parts[0], parts[1], parts[2], parts[3], parts[4]
	if f.Style == Reversed && (only != "" || len(k.functions) > maxReversed) {
		return nil, nil
	}
	var all alt
	functions := k.functions
	if only != "" {
		functions = k.named[only]
	}
	key := f.arguments()
	for _, fn := range functions {
		if k.b.err != nil {
			return nil, k.b.err
		}
		k.b.hold(2*symbolBytes + entryBytes)
		arguments, empty, err := k.arguments(fn, f, key)
		if err != nil {
			return nil, err
		}
		if arguments == nil {
			continue
		}
		if f.Null != "" && empty {
			arguments = alt{arguments, null}
		}
		switch {
		case only != "":
			return seq{arguments, after}, nil
		case f.Style == Reversed:
			all = append(all, seq{arguments, middle, literal(fn.Name)})
			continue
		}
		all = append(all, seq{literal(fn.Name), middle, arguments, after})
		if f.None != "" && empty {
			all = append(all, seq{literal(fn.Name), none})
		}
	}
	switch {
	case len(all) == 0:
		return nil, nil
	case f.Style == Reversed:
		return seq{before, all, after}, nil
	}
	return seq{before, all}, nil
}

// maxReversed functions may be called with the arguments first: until the name comes, those
// of all of them are followed at once.
const maxReversed = 32

// arguments is a key: forms whose arguments are written alike have the same.
func (f Form) arguments() string {
	style := f.Style
	if style == Reversed {
		style = JSON
	}
	return fmt.Sprint(style, f.Tags, f.Notation)
}

// arguments of a function in a form, nil where that does not suit it; empty is set where it
// may be called without any. Forms of the same key have the same. A schema that is too large
// is not enforced: the arguments are then any object.
func (k *calls) arguments(fn *function, f Form, key string) (e expr, empty bool, err error) {
	if e, done := fn.written[key]; done {
		return e, fn.written["empty"] != nil, nil
	}
	var without expr
	e, ok := k.b.attempt(func() (expr, error) {
		s, err := newSchemas(k.b, fn.Schema, manner{forgiving: true, sloppy: k.sloppy, inTags: f.Style == Tagged, notation: f.Notation})
		if err != nil {
			return nil, err
		}
		object := &members{names: []string{"type"}, of: map[string]value{"type": "object"}}
		of := goal{{of: s.root}, {of: object, own: true}}
		if fits, err := s.satisfiesGoal(&members{}, of); fits && err == nil {
			without = literal("")
		}
		e, err := s.written(of, f)
		if err != nil {
			return nil, err
		}
		return e, s.finish()
	})
	if !ok {
		without = literal("")
		if e, err = k.unheld(f); err != nil {
			return nil, false, err
		}
	}
	if fn.written == nil {
		fn.written = map[string]expr{}
	}
	fn.written[key] = e
	if without != nil {
		fn.written["empty"] = without
	}
	return e, without != nil, k.b.err
}

// unheld are arguments that no schema is enforced of.
func (k *calls) unheld(f Form) (expr, error) {
	switch f.Style {
	case Tagged, Bare:
		s, err := newSchemas(k.b, anyObject, manner{forgiving: true, sloppy: k.sloppy, inTags: f.Style == Tagged, notation: f.Notation})
		if err != nil {
			return nil, err
		}
		e, err := s.written(goal{{of: s.root}}, f)
		if err != nil {
			return nil, err
		}
		return e, s.finish()
	case Code:
		return nil, nil
	}
	return k.anyObject()
}

// written are the arguments of a goal in the style of a form.
func (s *schemas) written(g goal, f Form) (expr, error) {
	switch f.Style {
	case Tagged:
		return s.tagged(g, f.Tags)
	case Bare:
		return s.bare(g)
	case Code:
		return s.code(g)
	}
	return s.rule(g)
}

// anyObject is made once.
func (k *calls) anyObject() (expr, error) {
	if k.object != nil {
		return k.object, nil
	}
	s, err := newSchemas(k.b, anyObject, manner{forgiving: true, sloppy: k.sloppy})
	if err != nil {
		return nil, err
	}
	if k.object, err = s.rule(goal{{of: s.root}}); err != nil {
		return nil, err
	}
	return k.object, s.finish()
}

const anyObject = `{"type":"object"}`

// code is the text of the only parameter, if that is a string: any text without control
// tokens. It is nil for other functions.
func (s *schemas) code(g goal) (expr, error) {
	cases, err := s.open(g)
	if err != nil || len(cases) != 1 {
		return nil, err
	}
	sh, err := s.membersOf(cases[0])
	if err != nil || len(sh.names) != 1 {
		return nil, err
	}
	of, err := s.member(cases[0], sh.names[0], true, s.matchesName(cases[0], sh.names[0]))
	if err != nil {
		return nil, err
	}
	if kinds, err := s.kinds(of); err != nil || kinds != typeString {
		return nil, err
	}
	return repeat{runes(noMark), 0, -1}, nil
}

// kinds are the types of a goal.
func (s *schemas) kinds(g goal) (types, error) {
	cases, err := s.open(g)
	if err != nil {
		return 0, err
	}
	all := types(0)
	for _, c := range cases {
		kinds, err := s.typesOf(c)
		if err != nil {
			return 0, err
		}
		all |= kinds
	}
	return all, nil
}

// Marks are the characters that stand for control tokens; no text contains them.
const (
	firstMark = 0xfdd0
	lastMark  = 0xfdef
)

// Mark is the character that represents control token n of a format, 0 to 31.
func Mark(n int) string { return string(rune(firstMark + n&31)) }

// noMark are the characters of text.
var noMark = newRuneSet(runeRange{0, firstMark - 1}, runeRange{lastMark + 1, 0x10ffff})

// Literal is a regular expression of a text.
func Literal(text string) string {
	var out strings.Builder
	for _, c := range text {
		if strings.ContainsRune(`\.+*?()|[]{}^$`, c) {
			out.WriteByte('\\')
		}
		out.WriteRune(c)
	}
	return out.String()
}
