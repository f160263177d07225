package jinja

import (
	"strings"
)

// formatter fills the fields of one str.format.
type formatter struct {
	r    *run
	args args
	// mapping is what format_map was given; nil for format.
	mapping any
	safe    bool // the text is markup: what is filled in is escaped
	next    int  // the next field without a number
	manual  bool // a field had a number
}

// format is Python's str.format, or str.format_map, as in the sandbox: an
// attribute in a field follows the same rules as elsewhere.
func (r *run) format(s string, a args, isMap, safe bool) (any, error) {
	f := &formatter{r: r, args: a, safe: safe}
	if isMap {
		p, err := a.only("format_map", 1, "mapping")
		if err != nil {
			return nil, err
		}
		f.mapping = p[0]
	}
	out, err := f.fill(s, 2)
	if err != nil {
		return nil, err
	}
	if safe {
		return markup(out), nil
	}
	return out, nil
}

// fill replaces the fields of a text; a field's specification may hold fields
// itself, once.
func (f *formatter) fill(s string, depth int) (string, error) {
	if depth < 0 {
		return "", failf("the fields of format are nested too deeply")
	}
	if err := f.r.charge(len(s)); err != nil {
		return "", err
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '{' && strings.HasPrefix(s[i+1:], "{"), s[i] == '}' && strings.HasPrefix(s[i+1:], "}"):
			b.WriteByte(s[i])
			i++
		case s[i] == '}':
			return "", failf("single } in a format string")
		case s[i] == '{':
			end := fieldEnd(s[i:])
			if end < 0 {
				return "", failf("a format field is not closed")
			}
			text, err := f.field(s[i+1:i+end], depth)
			if err != nil {
				return "", err
			}
			if err := f.r.charge(len(text)); err != nil {
				return "", err
			}
			b.WriteString(text)
			i += end
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), nil
}

// fieldEnd finds the brace that closes the one s begins with. Within square
// brackets braces do not count.
func fieldEnd(s string) int {
	open, inBrackets, inSpec := 0, false, false
	for i := range len(s) {
		switch {
		case inBrackets:
			inBrackets = s[i] != ']'
		case s[i] == '[' && !inSpec:
			inBrackets = true
		case s[i] == '{':
			open++
		case s[i] == '}':
			if open--; open == 0 {
				return i
			}
		case (s[i] == ':' || s[i] == '!') && open == 1:
			inSpec = true
		}
	}
	return -1
}

// field writes one field: name, then !conversion and :specification.
func (f *formatter) field(s string, depth int) (string, error) {
	name, conversion, spec := s, "", ""
	inBrackets := false
split:
	for i := range len(s) {
		switch {
		case inBrackets:
			inBrackets = s[i] != ']'
		case s[i] == '[':
			inBrackets = true
		case s[i] == ':':
			name, spec = s[:i], s[i+1:]
			break split
		case s[i] == '!':
			rest := s[i+1:]
			if len(rest) == 0 || (len(rest) > 1 && rest[1] != ':') {
				return "", failf("a format conversion must be one letter after !")
			}
			name, conversion, spec = s[:i], rest[:1], strings.TrimPrefix(rest[1:], ":")
			break split
		case s[i] == '{':
			return "", failf("unexpected { in the name of a field")
		}
	}
	v, err := f.value(name)
	if err != nil {
		return "", err
	}
	switch conversion {
	case "r", "a":
		text, err := f.r.reprOf(v)
		if err != nil {
			return "", err
		}
		if v = text; conversion == "a" {
			v = ascii(text)
		}
	case "s":
		if v, err = f.r.text(v); err != nil {
			return "", err
		}
	case "":
	default:
		return "", failf("unknown conversion !%s in a format string", conversion)
	}
	if spec, err = f.fill(spec, depth-1); err != nil {
		return "", err
	}
	return f.write(v, spec)
}

func (f *formatter) write(v any, spec string) (string, error) {
	if f.safe {
		if m, ok := v.(markup); ok && spec == "" {
			return string(m), nil
		}
		text, err := f.r.formatted(v, spec)
		if err != nil {
			return "", err
		}
		m, err := f.r.escaped(text)
		return string(m), err
	}
	return f.r.formatted(v, spec)
}

// value finds what a field names: an argument, then members and items of it.
func (f *formatter) value(name string) (any, error) {
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	v, err := f.first(name[:end])
	if err != nil {
		return nil, err
	}
	for rest := name[end:]; rest != ""; {
		if err := f.r.step(); err != nil {
			return nil, err
		}
		if rest[0] == '[' {
			end := strings.IndexByte(rest, ']')
			if end < 2 {
				return nil, failf("a format field has an empty or unclosed [")
			}
			if v, err = f.item(v, rest[1:end]); err != nil {
				return nil, err
			}
			if rest = rest[end+1:]; rest != "" && rest[0] != '.' && rest[0] != '[' {
				return nil, failf("only . or [ may follow ] in a format field")
			}
			continue
		}
		end := strings.IndexAny(rest[1:], ".[") + 1
		if end == 0 {
			end = len(rest)
		}
		if end == 1 {
			return nil, failf("a format field has an empty member")
		}
		if v, err = f.r.attribute(v, rest[1:end]); err != nil {
			return nil, err
		}
		rest = rest[end:]
	}
	return v, nil
}

// item is v[key] of a field, where a number is an index.
func (f *formatter) item(v any, key string) (any, error) {
	if u, ok := v.(undefined); ok {
		return nil, failf("%s is undefined and has no members", u)
	}
	var k any = key
	if all(key, isDigit) {
		i, ok := parseInt(key, 10)
		if !ok {
			return nil, failf("invalid index %q", cut(key))
		}
		k = i
	}
	out, found, err := f.r.member(v, k)
	if err == nil && !found {
		return undefined{"member ", key}, nil
	}
	return out, err
}

// first finds the argument of a field: the next one, one by number, or one by
// name.
func (f *formatter) first(name string) (any, error) {
	if f.mapping != nil {
		v, found, err := f.r.member(f.mapping, name)
		if err == nil && !found {
			err = failf("format_map has no argument %q", cut(name))
		}
		return v, err
	}
	if name != "" && !all(name, isDigit) {
		if err := f.r.spend(len(f.args.names) / 16); err != nil {
			return nil, err
		}
		for i, n := range f.args.names {
			if n == name {
				return f.args.named[i], nil
			}
		}
		return nil, failf("format has no argument %q", cut(name))
	}
	i := int64(f.next)
	if name == "" {
		if f.manual {
			return nil, failf("format cannot switch from manual field numbering to automatic numbering")
		}
		f.next++
	} else {
		if f.next > 0 {
			return nil, failf("format cannot switch from automatic field numbering to manual numbering")
		}
		f.manual = true
		n, _ := parseInt(name, 10)
		if i, _, _, _ = number(n); n == nil {
			i = -1
		}
	}
	if i < 0 || i >= int64(len(f.args.pos)) {
		return nil, failf("format has no argument %s", cut(name))
	}
	return f.args.pos[i], nil
}
