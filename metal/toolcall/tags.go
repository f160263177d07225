package toolcall

import (
	"encoding/json"
	"slices"
	"strings"
)

// maxName of a function or a parameter, in bytes with the attributes after it: more than what
// metal/grammar has the model write.
const maxName = 1 << 10

type functionState uint8

const (
	functionName functionState = iota
	functionBetween
	parameterName
	parameterValue
	// nextName reads the name after a tag in a value: that of a declared parameter ends
	// the value.
	nextName
	// mayEnd follows the end of the call in a value that was not closed. It was text of the
	// value where a tag closes that later, else the end.
	mayEnd
)

// function reads a call whose parameters stand between tags. The declared types decide what
// a value is in JSON.
type function struct {
	lex   *lexer
	tools Tools
	// pairs: names of parameters stand between tags too, as in GLM's calls.
	pairs bool
	state functionState
	part  []byte // of a name
	name  string
	begun bool
	given map[string]bool // parameters
	// missing counts the required parameters that were not given.
	missing int
	shape   *shape // of the call's arguments
	value   *tagged
	pieces  []symbol // since nextName or mayEnd
}

func newFunction(l *lexer, tools Tools) *function {
	return &function{lex: l, tools: tools, pairs: slices.ContainsFunc(l.tags, func(t tag) bool { return t.text == openValue })}
}

// push takes a symbol. Where it returns done, further are the symbols that do not belong to
// the call, this one last.
func (f *function) push(s symbol, out *sink) (v verdict, further []symbol) {
	switch f.state {
	case functionName:
		if f.pairs && (s == '\n' && f.nameOf() != "" || s == tagParameter || s == tagParameterEnd || s == tagCallEnd) {
			if v := f.named(f.nameOf(), out); v != more || s == '\n' {
				return v, nil
			}
			return f.push(s, out)
		}
		return f.inName(s, out), nil
	case parameterName:
		return f.inName(s, out), nil
	case parameterValue:
		f.inValue(s, out)
		return more, nil
	case nextName:
		f.next(s, out)
		return more, nil
	case mayEnd:
		return f.afterEnd(s, out)
	}
	switch {
	case s < firstTag && isBlank(byte(s)), s == tagParameterEnd:
		return more, nil
	case s == tagParameter:
		f.state, f.part = parameterName, nil
		return more, nil
	case s == tagFunctionEnd:
		f.close(out)
		return done, nil
	case s == tagCallEnd || s == tagCall || s == tagFunction: // its own end is missing
		f.close(out)
		return done, []symbol{s}
	}
	return bad, nil
}

func (f *function) close(out *sink) {
	out.arguments("}")
	f.begun = false
	out.whole()
}

// inName takes a symbol of a name.
func (f *function) inName(s symbol, out *sink) verdict {
	if !f.namesEnd(s) {
		return f.keep(s)
	}
	name := f.nameOf()
	if f.state == parameterName {
		if name == "" || f.given[name] && f.shape.declares(name) {
			return bad
		}
		f.parameter(name, out)
		return more
	}
	return f.named(name, out)
}

// namesEnd reports whether a symbol ends a name.
func (f *function) namesEnd(s symbol) bool {
	if f.pairs {
		return s == tagValue
	}
	return s == '>'
}

// keep adds a symbol to a name; in pairs, the tag after a name and blanks are no part of it.
func (f *function) keep(s symbol) verdict {
	if f.pairs && (s == tagNameEnd && f.state != functionName || s == '\n') {
		return more
	}
	if s >= firstTag || s == '\n' || len(f.part) == maxName {
		return bad
	}
	f.part = append(f.part, byte(s))
	return more
}

// nameOf is the name that was read. In MiniMax's and DeepSeek's tags it is an attribute,
// which others may follow.
func (f *function) nameOf() string {
	name := strings.TrimSpace(string(f.part))
	if quoted, ok := strings.CutPrefix(name, `"`); ok {
		name, _, _ = strings.Cut(quoted, `"`)
	}
	return name
}

// named begins the call of a function.
func (f *function) named(name string, out *sink) verdict {
	if f.name = f.tools.resolve(name); f.name == "" {
		return bad
	}
	called := f.tools[f.name]
	f.state, f.begun, f.shape = functionBetween, true, called.shape
	f.given, f.missing = map[string]bool{}, len(called.required)
	out.begin(f.name)
	out.arguments("{")
	return more
}

// parameter begins a value.
func (f *function) parameter(name string, out *sink) {
	key, err := json.Marshal(name)
	if err != nil {
		panic("a string cannot be encoded as JSON: " + err.Error())
	}
	if len(f.given) > 0 {
		out.arguments(", ")
	}
	if !f.given[name] && f.tools[f.name].required[name] {
		f.missing--
	}
	f.given[name] = true
	out.arguments(string(key) + ": ")
	f.value = newTagged(name, f.shape.member(name), out)
	f.state = parameterValue
}

// inValue takes a symbol of a value, or of what ends it.
func (f *function) inValue(s symbol, out *sink) {
	switch {
	case s == tagParameterEnd:
		f.value.close(false, out)
		f.state = functionBetween
	case s == tagParameter && f.value.mayClose():
		f.state, f.part, f.pieces = nextName, nil, []symbol{s}
	case s == tagFunctionEnd || s == tagCallEnd:
		f.state, f.pieces = mayEnd, []symbol{s}
	default:
		f.value.text(f.lex.letters(s), out)
	}
}

// next takes a symbol of a name in a value.
func (f *function) next(s symbol, out *sink) {
	if !f.namesEnd(s) && f.keep(s) == more {
		f.pieces = append(f.pieces, s)
		return
	}
	name := f.nameOf()
	if f.namesEnd(s) && !f.given[name] && f.shape.declares(name) {
		f.value.close(true, out)
		f.parameter(name, out)
		return
	}
	f.resume(out)
	f.inValue(s, out)
}

// resume continues the value: what seemed to end it is its text.
func (f *function) resume(out *sink) {
	for _, s := range f.pieces {
		f.value.text(f.lex.letters(s), out)
	}
	f.state, f.pieces = parameterValue, nil
}

// afterEnd takes a symbol after the end of the call in a value that was not closed.
func (f *function) afterEnd(s symbol, out *sink) (verdict, []symbol) {
	switch s {
	case tagParameterEnd:
		f.resume(out)
		f.inValue(s, out)
		return more, nil
	case tagCall, tagFunction:
		if f.complete() {
			return done, append(f.ended(out), s)
		}
	}
	f.pieces = append(f.pieces, s)
	return more, nil
}

// complete reports whether all required parameters were given.
func (f *function) complete() bool { return f.missing == 0 }

// ended ends the call where it seemed to end, and returns the symbols after that.
func (f *function) ended(out *sink) []symbol {
	f.value.close(true, out)
	further := f.pieces
	if further[0] == tagFunctionEnd {
		further = further[1:]
	}
	f.close(out)
	return slices.Clone(further)
}

// end is called where nothing follows; further are the symbols after the call.
func (f *function) end(cut bool, out *sink) (further []symbol, ok bool) {
	switch {
	case f.state == functionBetween && !cut:
		f.close(out)
		return nil, true
	case f.state == mayEnd && f.complete() && (!cut || slices.Contains(f.pieces, tagCallEnd)):
		return f.ended(out), true
	}
	return nil, false
}
