package grammar

import (
	"errors"
	"fmt"
)

// Calls is an answer that is calls of functions, or one with such calls in it.
type Calls struct {
	// Ways to call, of which each call is one.
	Ways []Way
	// Begin and End stand around each call, Between between two; line ends may stand
	// inside of Begin and End. They may be empty.
	Begin, End, Between string
	// Many calls may follow one another; else the answer is one.
	Many bool
	// Free lets any text stand around calls: Begin, which must not be empty then,
	// begins a call wherever it comes.
	Free bool
}

// Way is a call of one function: JSON of a schema between two texts.
type Way struct {
	Name         string
	Open, Schema string
	Close        string
	// Loose takes any object for arguments where the schema cannot be enforced;
	// else it is refused.
	Loose bool
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
	if s.Else.Kind == JSONObject || s.Else.Kind == JSONSchema {
		other = seq{blankBeforeJSON(), other}
	}
	return alt{calls, other}, b.err
}

func compileCalls(b *builder, c *Calls) (expr, error) {
	if c == nil || len(c.Ways) == 0 || c.Free && c.Begin == "" {
		return nil, &Error{kind: ErrInvalid, Message: "there is no function to call"}
	}
	all := 0
	for _, w := range c.Ways {
		all += len(w.Schema)
	}
	if len(c.Ways) > maxChoices || all > maxSource {
		return nil, &Error{kind: ErrLimit, Message: fmt.Sprintf("too many functions: at most %d are supported, with schemas of %d bytes in total", maxChoices, maxSource)}
	}
	var ways alt
	for _, w := range c.Ways {
		arguments, err := b.arguments(w)
		if err != nil {
			return nil, err
		}
		ways = append(ways, seq{literal(w.Open), arguments, literal(w.Close)})
	}
	line := repeat{literal("\n"), 0, 1}
	if c.Begin == "" {
		line.max = 0
	}
	call := b.define(seq{line, ways, line, literal(c.End)})
	if c.Free {
		return b.text(c.Begin, call), b.err
	}
	one := b.define(seq{literal(c.Begin), call})
	if !c.Many {
		return one, b.err
	}
	return seq{one, repeat{seq{literal(c.Between), one}, 0, -1}}, b.err
}

// arguments of a function are an object, whatever else its schema says.
func (b *builder) arguments(w Way) (expr, error) {
	if w.Loose && !b.holds(w.Schema) {
		return b.anyObject()
	}
	e, err := compileArguments(b, w.Schema)
	if at := new(Error); errors.As(err, &at) {
		named := *at
		named.Message = fmt.Sprintf("the parameters of %q: %s", w.Name, at.Message)
		return nil, &named
	}
	return e, err
}

// holds says whether a schema can be enforced. What fails counts, and has half of
// what is left, so that many that fail take no longer than one grammar.
func (b *builder) holds(schema string) bool {
	used := b.spent + len(b.nodes)
	trial := &builder{sets: map[string]int32{}, spent: used + (maxNodes-used)/2, work: b.work + (maxWork-b.work)/2}
	began := trial.work
	_, err := compileArguments(trial, schema)
	if err == nil && trial.err == nil {
		return true
	}
	b.spent += len(trial.nodes)
	b.work += trial.work - began
	return false
}

// anyObject is made once.
func (b *builder) anyObject() (expr, error) {
	if b.object != nil {
		return b.object, nil
	}
	var err error
	b.object, err = compileSchema(b, anyObject)
	return b.object, err
}

const anyObject = `{"type":"object"}`

// text is any text in which a call stands behind each marker.
func (b *builder) text(marker string, call ref) ref {
	rule := b.rule()
	nodes := []int32{b.rules[rule]}
	for range len(marker) - 1 {
		nodes = append(nodes, b.node())
	}
	called := b.node()
	if b.err != nil {
		return ref(rule)
	}
	for i, from := range nodes {
		b.nodes[from].final = true
		for lo := 0; lo < 256; {
			to, hi := behind(marker, i, byte(lo)), lo
			for hi < 255 && behind(marker, i, byte(hi+1)) == to {
				hi++
			}
			next := called
			if to < len(marker) {
				next = nodes[to]
			}
			b.join(from, edge{kind: edgeBytes, lo: byte(lo), hi: byte(hi), to: next})
			lo = hi + 1
		}
	}
	b.join(called, edge{kind: edgeCall, rule: int32(call), to: nodes[0]})
	return ref(rule)
}

// behind is how many bytes of a marker stand at the end of text that had n of them,
// with one byte more.
func behind(marker string, n int, next byte) int {
	text := marker[:n] + string([]byte{next})
	for k := len(text); k > 0; k-- {
		if text[len(text)-k:] == marker[:k] {
			return k
		}
	}
	return 0
}
