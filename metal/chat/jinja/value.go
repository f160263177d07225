package jinja

import (
	"math/big"
)

// Values are nil (None), bool, int64, *big.Int (beyond 64 bits), float64,
// string, *List, *Dict, and, made by templates only, markup, undefined,
// *numbers, *generator, *namespace, *loopVar and *function.

// List is a list or, where Tuple is set, a tuple.
type List struct {
	Items []any
	Tuple bool
	// view is the name of a dictionary's view, which can be looped over and
	// counted, but has no place for an index.
	view string
}

// NewList makes a list.
func NewList(items ...any) *List { return &List{Items: items} }

// numbers is the result of range: from, from+by, ..., count of them. until is
// the given end.
type numbers struct{ from, until, by, count int64 }

func (n *numbers) at(i int64) int64 { return n.from + i*n.by }

// generator is what lazy filters return: it can be looped over, once, and does
// its work when it is.
type generator struct{ next iterator }

// iterator gives one value after the other; ok is false at the end.
type iterator func() (v any, ok bool, err error)

// listed iterates over items.
func listed(items []any) iterator {
	i := 0
	return func() (any, bool, error) {
		if i == len(items) {
			return nil, false, nil
		}
		i++
		return items[i-1], true, nil
	}
}

// markup is text that the filters safe and escape made. It is text in every
// way but one: what is joined to it by its own operators and methods is
// escaped, as in the reference.
type markup string

// plain forgets that a text is markup.
func plain(v any) any {
	if m, ok := v.(markup); ok {
		return string(m)
	}
	return v
}

// undefined is what a missing name or member is: what describes it, and name is that of a member.
// They are joined only for a message.
type undefined struct{ what, name string }

func (u undefined) String() string { return u.what + cut(u.name) }

// namespace holds what {% set ns.x = ... %} changes.
type namespace struct{ vars *Dict }

// function is anything that can be called.
type function struct {
	name string
	call func(r *run, a args) (any, error)
	// macro is printed by its name; what other functions print as is not known.
	macro bool
	// members can be read by name; nil for none.
	members func(name string) (any, bool)
}

// args are the evaluated arguments of a call.
type args struct {
	pos   []any
	names []string
	named []any
}

// absent marks an argument that was not given.
type absent struct{}

// bind gives the arguments the names of parameters, of which the first need
// ones are required. Missing ones are absent.
func (a args) bind(who string, need int, params ...string) ([]any, error) {
	if len(a.pos) > len(params) {
		return nil, failf("%s accepts at most %d arguments, not %d", who, len(params), len(a.pos))
	}
	out := make([]any, len(params))
	for i := range out {
		out[i] = absent{}
	}
	for i, v := range a.pos {
		out[i] = plain(v)
	}
named:
	for i, name := range a.names {
		for j, p := range params {
			if p != name {
				continue
			}
			if !isAbsent(out[j]) {
				return nil, failf("%s received the argument %q twice", who, p)
			}
			out[j] = plain(a.named[i])
			continue named
		}
		return nil, failf("%s has no argument %q", who, cut(name))
	}
	for i := range need {
		if isAbsent(out[i]) {
			return nil, failf("%s requires the argument %q", who, params[i])
		}
	}
	return out, nil
}

// only binds arguments that have no names: methods of Python's own types take
// none.
func (a args) only(who string, need int, params ...string) ([]any, error) {
	if len(a.names) > 0 {
		return nil, failf("%s has no named arguments", who)
	}
	return a.bind(who, need, params...)
}

// isAbsent says whether a bound argument was not given.
func isAbsent(v any) bool { return v == any(absent{}) }

// given says whether an optional argument is there and true.
func given(v any) bool { return !isAbsent(v) && truth(v) }

// orNil is an optional argument whose default is None.
func orNil(v any) any {
	if isAbsent(v) {
		return nil
	}
	return v
}

func toInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// truth is Python's bool().
func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *numbers:
		return v.count > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// typeName is Python's name of a type, for messages.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case undefined:
		return "undefined (" + v.String() + ")"
	case bool:
		return "a bool"
	case int64, *big.Int:
		return "an int"
	case float64:
		return "a float"
	case string, markup:
		return "a str"
	case *List:
		if v.view != "" {
			return "a view of a dict"
		}
		if v.Tuple {
			return "a tuple"
		}
		return "a list"
	case *numbers:
		return "a range"
	case *generator:
		return "a generator"
	case *Dict:
		return "a dict"
	case *function:
		return "the function " + v.name
	case *namespace:
		return "a namespace"
	case *loopVar:
		return "loop"
	}
	return "nothing"
}
