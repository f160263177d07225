package toolcall

import "encoding/json"

// arguments reads the arguments of a call whose name is known: an object, or null, an
// empty string or a string with an object in it.
type arguments struct {
	name   string
	shape  *shape
	json   *repairer
	text   []byte // of a value that is no object
	object bool
	// begun is set once the call was reported.
	begun bool
}

func newArguments(tools Tools, name string) *arguments {
	return &arguments{name: name, shape: tools[name].shape, json: new(repairer)}
}

// push takes a byte of the value. The verdict done or over means that all of it was
// reported.
func (a *arguments) push(b byte, out *sink) verdict {
	if !a.begun && len(a.text) == 0 {
		if isBlank(b) {
			return more
		}
		if b == '{' {
			a.object, a.json.shape = true, a.shape
			a.begin(out)
		}
	}
	if !a.object {
		a.text = append(a.text, b)
	}
	v := a.json.push(b)
	written := a.json.take()
	if a.object {
		out.arguments(written)
		return v
	}
	if v == done {
		return a.other(out)
	}
	if v == over || len(a.text) == 1 && b != '"' && b != 'n' && b != 'N' {
		return bad // a number, a list or another constant
	}
	return v
}

func (a *arguments) begin(out *sink) {
	a.begun = true
	out.begin(a.name)
}

// other reports a value that is no object.
func (a *arguments) other(out *sink) verdict {
	text, ok := unwrapped(string(a.text), a.shape)
	if !ok {
		return bad
	}
	a.begin(out)
	out.arguments(text)
	return done
}

// none reports a call that has no arguments.
func (a *arguments) none(out *sink) {
	a.begin(out)
	out.arguments("{}")
}

// unwrapped is the object that a value stands for: null and an empty string stand for an
// empty one, a string for the object in it.
func unwrapped(value string, s *shape) (string, bool) {
	canonical, ok := repaired(value, s)
	if !ok {
		return "", false
	}
	if canonical[0] == '"' {
		var inner string
		if json.Unmarshal([]byte(canonical), &inner) != nil {
			return "", false
		}
		if inner == "" {
			return "{}", true
		}
		canonical, ok = repaired(inner, s)
		return canonical, ok && isObject(canonical)
	}
	if canonical == "null" {
		return "{}", true
	}
	return canonical, isObject(canonical)
}
