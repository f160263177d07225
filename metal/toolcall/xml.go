package toolcall

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

const (
	openFunction   = "<function="
	closeFunction  = "</function>"
	openParameter  = "<parameter="
	closeParameter = "</parameter>"
)

type xmlState uint8

const (
	xmlFunction xmlState = iota // <function= follows
	xmlName
	xmlBetween
	xmlValue
)

// xml is a function with its parameters, each between tags. What a parameter is
// in JSON, its declared types say.
type xml struct {
	tools Tools
	state xmlState
	part  []byte // of a tag, a name, or what may end a value
	name  string
	begun bool
	given []string // parameters

	types  []string // of the parameter under way
	string bool     // and it is told while it is written
	value  []byte
	first  bool // byte of the value
}

func newXML(tools Tools, marker string) body {
	x := &xml{tools: tools}
	if marker == openFunction {
		x.state = xmlName
	}
	return x
}

func (x *xml) told() (begun, whole bool) { return x.begun, false }
func (x *xml) held() int                 { return len(x.part) }
func (x *xml) closes() string            { return closeCall }

func (x *xml) push(b byte, out *sink) verdict {
	if x.state == xmlValue {
		return x.inValue(b, out)
	}
	if len(x.part) == 0 && isBlank(b) && x.state != xmlName {
		return more
	}
	if x.part = append(x.part, b); len(x.part) > maxName {
		return bad
	}
	part := string(x.part)
	switch x.state {
	case xmlFunction:
		if part == openFunction {
			x.state, x.part = xmlName, nil
			return more
		}
		return begins(part, openFunction)
	case xmlName:
		return x.named(b, out)
	}
	switch {
	case part == closeFunction:
		out.tell(Arguments, "}")
		x.begun = false
		out.whole()
		return done
	case strings.HasPrefix(part, openParameter) && b == '>':
		return x.parameter(strings.TrimSpace(part[len(openParameter):len(part)-1]), out)
	case strings.HasPrefix(part, openParameter):
		return more
	}
	return begins(part, closeFunction, openParameter)
}

func begins(part string, tags ...string) verdict {
	if slices.ContainsFunc(tags, func(t string) bool { return strings.HasPrefix(t, part) }) {
		return more
	}
	return bad
}

func (x *xml) named(b byte, out *sink) verdict {
	if b != '>' {
		return more
	}
	x.name = strings.TrimSpace(string(x.part[:len(x.part)-1]))
	if _, declared := x.tools[x.name]; !declared {
		return bad
	}
	x.state, x.part, x.begun = xmlBetween, nil, true
	out.tell(Begin, x.name)
	out.tell(Arguments, "{")
	return more
}

// parameter begins one; none comes twice.
func (x *xml) parameter(name string, out *sink) verdict {
	if name == "" || slices.Contains(x.given, name) {
		return bad
	}
	key, err := json.Marshal(name)
	if err != nil {
		return bad
	}
	if len(x.given) > 0 {
		out.tell(Arguments, ", ")
	}
	x.given = append(x.given, name)
	out.tell(Arguments, fmt.Sprintf("%s: ", key))
	x.types = x.tools.typesOf(x.name, name)
	x.string = len(x.types) == 1 && x.types[0] == "string"
	if x.string {
		out.tell(Arguments, `"`)
	}
	x.state, x.part, x.value, x.first = xmlValue, nil, nil, true
	return more
}

// inValue takes a byte of a value, or of what ends it. A line end after the
// opening tag and one before the closing tag are not of the value.
func (x *xml) inValue(b byte, out *sink) verdict {
	first := x.first
	x.first = false
	if first && b == '\n' {
		return more
	}
	x.part = append(x.part, b)
	if p := string(x.part); p == closeParameter || p == "\n"+closeParameter {
		x.part, x.state = nil, xmlBetween
		if x.string {
			out.tell(Arguments, `"`)
		} else {
			out.tell(Arguments, inJSON(string(x.value), x.types))
		}
		return more
	}
	at := 0
	for at < len(x.part) && begins(string(x.part[at:]), closeParameter, "\n"+closeParameter) == bad {
		if x.string {
			out.tell(Arguments, escaped(x.part[at]))
		} else {
			x.value = append(x.value, x.part[at])
		}
		at++
	}
	x.part = x.part[at:]
	return more
}

// escaped is a byte of a JSON string.
func escaped(b byte) string {
	switch {
	case b == '"' || b == '\\':
		return `\` + string(b)
	case b == '\n':
		return `\n`
	case b < 0x20:
		return fmt.Sprintf(`\u%04x`, b)
	}
	return string([]byte{b})
}

// inJSON is a value of one of these types. What is none of them is a string;
// where no type is said, an object or a list is one.
func inJSON(value string, types []string) string {
	trimmed := strings.TrimSpace(value)
	if types == nil {
		types = []string{"string", "object", "array"}
	}
	if lower := strings.ToLower(trimmed); lower == "true" || lower == "false" {
		if slices.Contains(types, "boolean") {
			return lower
		}
	}
	if t := typeOf(trimmed); slices.Contains(types, t) || t == "integer" && slices.Contains(types, "number") {
		if t != "string" {
			return trimmed
		}
	}
	var out strings.Builder
	out.WriteByte('"')
	for i := range len(value) {
		out.WriteString(escaped(value[i]))
	}
	out.WriteByte('"')
	return out.String()
}

// typeOf is the type of a JSON text; empty where it is none.
func typeOf(text string) string {
	if !json.Valid([]byte(text)) {
		return ""
	}
	switch text[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	if strings.ContainsAny(text, ".eE") {
		return "number"
	}
	return "integer"
}
