package toolcall

import (
	"encoding/json"
	"slices"
)

// object reads {"name": "f", "arguments": {…}}, in whatever order, and tells the
// arguments while they are written where the name came before them.
type object struct {
	tools Tools
	keys  []string // of the arguments
	state objectState
	scan  scanner
	key   []byte // as JSON
	value []byte // of the member, where it is kept
	given bool
	// name of the call, args that wait for it.
	name string
	args string
	// begun says that the call was told, whole that all its arguments were.
	begun, whole bool
}

type objectState uint8

const (
	objectOpens objectState = iota
	objectFirst
	objectKey
	objectColon
	objectValue
	objectBehind
)

// beside are members that some models write and that say nothing.
var beside = []string{"id", "type"}

func newObject(tools Tools, keys ...string) *object { return &object{tools: tools, keys: keys} }

// push takes a byte. Behind bad, a call that was told has to be ended.
func (o *object) push(b byte, out *sink) verdict {
	switch o.state {
	case objectKey:
		o.key = append(o.key, b)
		if v := o.scan.push(b); v != done {
			return v
		}
		o.state = objectColon
		return more
	case objectValue:
		return o.inside(b, out)
	}
	if isBlank(b) {
		return more
	}
	switch {
	case o.state == objectOpens && b == '{':
		o.state = objectFirst
	case (o.state == objectFirst || o.state == objectBehind) && b == '}':
		return o.close(out)
	case o.state == objectBehind && b == ',':
		o.state = objectFirst
	case o.state == objectFirst && b == '"':
		o.state, o.scan, o.key = objectKey, scanner{}, nil
		return o.push(b, out)
	case o.state == objectColon && b == ':':
		o.state, o.scan, o.value = objectValue, scanner{}, nil
		return o.known()
	default:
		return bad
	}
	return more
}

// known refuses members that no call has, and those that come twice.
func (o *object) known() verdict {
	switch key := o.memberName(); {
	case key == "name" && o.name == "", slices.Contains(o.keys, key) && !o.given, slices.Contains(beside, key):
		return more
	}
	return bad
}

func (o *object) memberName() string {
	var key string
	if json.Unmarshal(o.key, &key) != nil {
		return ""
	}
	return key
}

// inside takes a byte of a member's value.
func (o *object) inside(b byte, out *sink) verdict {
	v := o.scan.push(b)
	if v == bad {
		return bad
	}
	key := o.memberName()
	streams := o.name != "" && slices.Contains(o.keys, key)
	switch {
	case v == over || len(o.value) == 0 && isBlank(b):
	case o.begun && streams:
		out.one(Arguments, b)
	case streams && len(o.value) == 0 && b == '{':
		o.begun, o.value = true, []byte{b}
		out.tell(Begin, o.name)
		out.one(Arguments, b)
	default:
		o.value = append(o.value, b)
	}
	if v == more {
		return more
	}
	o.state = objectBehind
	if !o.member(key) {
		return bad
	}
	if v == over {
		return o.push(b, out)
	}
	return more
}

// member takes a value that is whole.
func (o *object) member(key string) bool {
	switch {
	case key == "name":
		if json.Unmarshal(o.value, &o.name) != nil {
			return false
		}
		_, declared := o.tools[o.name]
		return declared
	case !slices.Contains(o.keys, key):
		return true
	}
	o.given = true
	if o.begun {
		o.whole = true
		return true
	}
	o.args = string(o.value)
	if o.args[0] == '"' { // some write the object as a string
		if json.Unmarshal(o.value, &o.args) != nil {
			return false
		}
	}
	return isObject(o.args)
}

func isObject(text string) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal([]byte(text), &members) == nil && members != nil
}

// close ends the object: a call whose arguments came before its name, or never,
// is told now.
func (o *object) close(out *sink) verdict {
	if o.name == "" || o.state == objectFirst && len(o.key) > 0 {
		return bad
	}
	if !o.begun {
		if o.args == "" {
			o.args = "{}"
		}
		out.tell(Begin, o.name)
		out.tell(Arguments, o.args)
		o.begun, o.whole = true, true
	}
	return done
}
