package toolcall

import (
	"encoding/json"
	"slices"
)

// object reads a call as one object, {"name": "f", "arguments": {…}}, in any order of its
// members, and reports the arguments as they are written where the name came first.
type object struct {
	tools Tools
	state objectState
	scan  repairer // of a key, or of a value that is kept
	key   string
	value []byte // of the member, where it is kept
	given bool   // the arguments
	name  string
	args  *arguments // while they are read
	// late are arguments that came before the name.
	late string
	// whole is set once all arguments were reported.
	whole bool
}

type objectState uint8

const (
	objectOpens objectState = iota
	objectFirst
	objectKey
	objectColon
	objectValue
	objectAfter
)

// argumentKeys are the names that models give to the arguments, and idle members that
// some write and that mean nothing.
var (
	argumentKeys = []string{"arguments", "parameters"}
	idleKeys     = []string{"id", "type"}
)

func newObject(tools Tools) *object { return &object{tools: tools} }

// push takes a byte.
func (o *object) push(b byte, out *sink) verdict {
	switch o.state {
	case objectKey:
		v := o.scan.push(b)
		if v == done {
			if json.Unmarshal([]byte(o.scan.take()), &o.key) != nil {
				return bad
			}
			o.state = objectColon
			return more
		}
		return v
	case objectValue:
		return o.inside(b, out)
	}
	if isBlank(b) {
		return more
	}
	switch {
	case o.state == objectOpens && b == '{':
		o.state = objectFirst
	case (o.state == objectFirst || o.state == objectAfter) && b == '}':
		return o.close(out)
	case o.state == objectAfter && b == ',':
		o.state = objectFirst
	case o.state == objectFirst && b == '"':
		o.state, o.scan, o.key = objectKey, repairer{}, ""
		return o.push(b, out)
	case o.state == objectColon && b == ':':
		return o.member()
	default:
		return bad
	}
	return more
}

// member begins a value. A member that no call has, or a second one, is refused.
func (o *object) member() verdict {
	o.state, o.scan, o.value = objectValue, repairer{}, nil
	switch {
	case o.key == "name" && o.name == "", slices.Contains(idleKeys, o.key):
		return more
	case slices.Contains(argumentKeys, o.key) && !o.given:
		o.given = true
		if o.name != "" {
			o.args = newArguments(o.tools, o.name)
		}
		return more
	}
	return bad
}

// inside takes a byte of a member's value.
func (o *object) inside(b byte, out *sink) verdict {
	if o.args != nil && !o.whole {
		v := o.args.push(b, out)
		if v == done {
			o.state, o.whole = objectAfter, true
			return more
		}
		return v
	}
	if len(o.value) == 0 && isBlank(b) {
		return more
	}
	v := o.scan.push(b)
	o.scan.take()
	if v == bad {
		return bad
	}
	if v != over {
		o.value = append(o.value, b)
	}
	if v == more {
		return more
	}
	o.state = objectAfter
	if !o.kept() {
		return bad
	}
	if v == over {
		return o.push(b, out)
	}
	return more
}

// kept takes a value that is whole.
func (o *object) kept() bool {
	switch {
	case o.key == "name":
		var name string
		if json.Unmarshal(o.value, &name) != nil {
			return false
		}
		o.name = o.tools.resolve(name)
		return o.name != ""
	case slices.Contains(idleKeys, o.key):
		return true
	}
	o.late = string(o.value)
	return true
}

// close ends the object: a call whose arguments came before its name, or never, is
// reported now.
func (o *object) close(out *sink) verdict {
	if o.name == "" {
		return bad
	}
	if !o.whole {
		a := newArguments(o.tools, o.name)
		if o.late == "" {
			a.none(out)
		} else if text, ok := unwrapped(o.late, a.shape); ok {
			a.begin(out)
			out.arguments(text)
		} else {
			return bad
		}
		o.args, o.whole = a, true
	}
	out.whole()
	return done
}

// reported is whether the call was begun and not ended yet, and whether all its arguments
// were reported: such a call lacks nothing but its bracket.
func (o *object) reported() (begun, whole bool) {
	return o.args != nil && o.args.begun, o.whole
}
