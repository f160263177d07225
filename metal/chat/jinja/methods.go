package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// method finds a method of a string, list or dictionary.
func method(v any, name string) (*function, bool) {
	var call func(r *run, a args) (any, error)
	switch c := v.(type) {
	case markup:
		if plain := stringMethod(string(c), name); plain != nil {
			call = func(r *run, a args) (any, error) {
				out, err := plain(r, a)
				if s, ok := out.(string); ok {
					return markup(s), err
				}
				return out, err
			}
		}
	case string:
		call = stringMethod(c, name)
	case *Dict:
		call = dictMethod(c, name)
	case *List:
		call = listMethod(c, name)
	}
	if call == nil {
		return nil, false
	}
	return &function{name: name, call: call}, true
}

// refused is the method of a list or dictionary that would change it, which
// the sandbox does not allow.
func refused(name string) func(*run, args) (any, error) {
	return func(*run, args) (any, error) {
		return nil, failf("%s would change a value; templates may not", name)
	}
}

func dictMethod(d *Dict, name string) func(*run, args) (any, error) {
	switch name {
	case "get":
		return func(_ *run, a args) (any, error) {
			p, err := a.bind("get", 1, "key", "default")
			if err != nil {
				return nil, err
			}
			if v, ok := d.get(p[0]); ok {
				return v, nil
			}
			if isAbsent(p[1]) {
				return nil, nil
			}
			return p[1], nil
		}
	case "items", "keys", "values", "copy":
		return func(r *run, a args) (any, error) {
			if _, err := a.bind(name, 0); err != nil {
				return nil, err
			}
			if err := r.charge(48 * d.Len()); err != nil {
				return nil, err
			}
			switch name {
			case "keys":
				return &List{Items: d.keys, view: "dict_keys"}, nil
			case "values":
				return &List{Items: d.vals, view: "dict_values"}, nil
			case "copy":
				out := NewDict()
				for i, k := range d.keys {
					out.put(k, d.vals[i])
				}
				return out, nil
			}
			return &List{Items: d.items().Items, view: "dict_items"}, nil
		}
	case "pop", "popitem", "update", "clear", "setdefault":
		return refused(name)
	}
	return nil
}

// items are the entries as tuples.
func (d *Dict) items() *List {
	l := &List{Items: make([]any, 0, d.Len())}
	for i, k := range d.keys {
		l.Items = append(l.Items, &List{Items: []any{k, d.vals[i]}, Tuple: true})
	}
	return l
}

func listMethod(l *List, name string) func(*run, args) (any, error) {
	if l.view != "" {
		return nil
	}
	switch name {
	case "index", "count":
		return func(r *run, a args) (any, error) {
			p, err := a.bind(name, 1, "value")
			if err != nil {
				return nil, err
			}
			n := int64(0)
			for i, item := range l.Items {
				same, err := r.equal(item, p[0], 0)
				if err != nil {
					return nil, err
				}
				if same && name == "index" {
					return int64(i), nil
				}
				if same {
					n++
				}
			}
			if name == "index" {
				return nil, failf("the value is not in the list")
			}
			return n, nil
		}
	case "copy":
		return func(r *run, _ args) (any, error) {
			return &List{Items: slices.Clone(l.Items), Tuple: l.Tuple}, r.charge(16 * len(l.Items))
		}
	case "append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear":
		if !l.Tuple {
			return refused(name)
		}
	}
	return nil
}

func stringMethod(s, name string) func(*run, args) (any, error) {
	if plain := plainStringMethod(name); plain != nil {
		return func(r *run, a args) (any, error) {
			if _, err := a.bind(name, 0); err != nil {
				return nil, err
			}
			return plain(s), r.charge(2 * len(s))
		}
	}
	var call func(r *run, s, name string, a args) (any, error)
	switch name {
	case "strip", "lstrip", "rstrip":
		call = strip
	case "split", "rsplit":
		call = split
	case "splitlines":
		call = splitLines
	case "startswith", "endswith":
		call = affix
	case "removeprefix", "removesuffix":
		call = removeAffix
	case "replace":
		call = replaceMethod
	case "find", "rfind", "index", "rindex", "count":
		call = find
	case "join":
		call = joinMethod
	case "partition", "rpartition":
		call = partition
	case "center", "ljust", "rjust", "zfill":
		call = pad
	case "format":
		return func(r *run, a args) (any, error) { return r.format(s, a) }
	default:
		return nil
	}
	return func(r *run, a args) (any, error) {
		if err := r.scan(len(s)); err != nil {
			return nil, err
		}
		return call(r, s, name, a)
	}
}

// plainStringMethod finds a method without arguments.
func plainStringMethod(name string) func(string) any {
	switch name {
	case "upper":
		return func(s string) any { return pythonUpper(s) }
	case "lower":
		return func(s string) any { return strings.ToLower(s) }
	case "casefold":
		return func(s string) any { return strings.ToLower(strings.ReplaceAll(s, "ß", "ss")) }
	case "title":
		return func(s string) any { return titled(s) }
	case "capitalize":
		return func(s string) any { return capitalized(s) }
	case "swapcase":
		return func(s string) any { return strings.Map(swapCase, s) }
	case "isupper":
		return func(s string) any { return cased(s, true) }
	case "islower":
		return func(s string) any { return cased(s, false) }
	case "isspace":
		return func(s string) any { return all(s, isSpace) }
	case "isalpha":
		return func(s string) any { return all(s, unicode.IsLetter) }
	case "isdigit", "isdecimal":
		return func(s string) any { return all(s, unicode.IsDigit) }
	case "isnumeric":
		return func(s string) any { return all(s, unicode.IsNumber) }
	case "isalnum":
		return func(s string) any { return all(s, letterOrNumber) }
	}
	return nil
}

func all(s string, f func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool { return !f(c) }) < 0
}

func swapCase(c rune) rune {
	if unicode.IsUpper(c) {
		return unicode.ToLower(c)
	}
	return unicode.ToUpper(c)
}

func titled(s string) string {
	inWord := false
	return strings.Map(func(c rune) rune {
		was := inWord
		inWord = unicode.IsLetter(c)
		if was {
			return unicode.ToLower(c)
		}
		return unicode.ToTitle(c)
	}, s)
}

func capitalized(s string) string {
	c, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToTitle(c)) + strings.ToLower(s[n:])
}

func strip(_ *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 0, "chars")
	if err != nil {
		return nil, err
	}
	in := isSpace
	switch chars := p[0].(type) {
	case absent, nil:
	case string:
		in = func(c rune) bool { return strings.ContainsRune(chars, c) }
	default:
		return nil, failf("%s takes a str, not %s", name, typeName(chars))
	}
	if name != "rstrip" {
		s = strings.TrimLeftFunc(s, in)
	}
	if name != "lstrip" {
		s = strings.TrimRightFunc(s, in)
	}
	return s, nil
}

func split(r *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 0, "sep", "maxsplit")
	if err != nil {
		return nil, err
	}
	most := int64(-1)
	if !isAbsent(p[1]) {
		i, _, isInt, ok := number(p[1])
		if !ok || !isInt {
			return nil, failf("maxsplit is %s", typeName(p[1]))
		}
		most = i
	}
	var parts []string
	switch sep := p[0].(type) {
	case absent, nil:
		if err := r.chargeTimes(16, int64(len(s)/2+1)); err != nil {
			return nil, err
		}
		parts = splitSpace(s, most, name == "rsplit")
	case string:
		if sep == "" {
			return nil, failf("split takes a separator that is not empty")
		}
		if err := r.chargeTimes(16, int64(strings.Count(s, sep)+1)); err != nil {
			return nil, err
		}
		parts = splitOn(s, sep, most, name == "rsplit")
	default:
		return nil, failf("%s takes a str, not %s", name, typeName(sep))
	}
	return r.strings(parts)
}

// strings makes a list.
func (r *run) strings(parts []string) (any, error) {
	l := &List{Items: make([]any, len(parts))}
	for i, s := range parts {
		l.Items[i] = s
	}
	return l, r.charge(16 * len(parts))
}

// splitOn cuts at sep, at most that many times, from the left or the right.
func splitOn(s, sep string, most int64, fromRight bool) []string {
	if most < 0 || !fromRight {
		n := -1
		if most >= 0 && most < int64(len(s)) {
			n = int(most) + 1
		}
		return strings.SplitN(s, sep, n)
	}
	var parts []string
	for ; most > 0; most-- {
		at := strings.LastIndex(s, sep)
		if at < 0 {
			break
		}
		parts = append(parts, s[at+len(sep):])
		s = s[:at]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return parts
}

// splitSpace cuts at runs of white space, which it drops at both ends.
func splitSpace(s string, most int64, fromRight bool) []string {
	var parts []string
	trim, index := strings.TrimLeftFunc, strings.IndexFunc
	if fromRight {
		trim, index = strings.TrimRightFunc, strings.LastIndexFunc
	}
	for s = trim(s, isSpace); s != ""; s = trim(s, isSpace) {
		at := index(s, isSpace)
		if most == 0 || at < 0 {
			parts = append(parts, s)
			break
		}
		most--
		if fromRight {
			_, n := utf8.DecodeRuneInString(s[at:])
			parts = append(parts, s[at+n:])
			s = s[:at]
		} else {
			parts = append(parts, s[:at])
			s = s[at:]
		}
	}
	if fromRight {
		slices.Reverse(parts)
	}
	return parts
}

func splitLines(r *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 0, "keepends")
	if err != nil {
		return nil, err
	}
	parts, err := r.lines(s, given(p[0]))
	if err != nil {
		return nil, err
	}
	return r.strings(parts)
}

// lines is Python's str.splitlines.
func (r *run) lines(s string, keep bool) ([]string, error) {
	n := int64(1)
	for _, c := range s {
		if lineBreak(c) {
			n++
		}
	}
	if err := r.chargeTimes(16, n); err != nil {
		return nil, err
	}
	return splitLinesOf(s, keep), r.scan(len(s))
}

func splitLinesOf(s string, keep bool) []string {
	var out []string
	for s != "" {
		at := strings.IndexFunc(s, lineBreak)
		if at < 0 {
			return append(out, s)
		}
		_, n := utf8.DecodeRuneInString(s[at:])
		if strings.HasPrefix(s[at:], "\r\n") {
			n = 2
		}
		if keep {
			out = append(out, s[:at+n])
		} else {
			out = append(out, s[:at])
		}
		s = s[at+n:]
	}
	return out
}

func lineBreak(c rune) bool {
	switch c {
	case '\n', '\r', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}

// strings binds required arguments that are all strings.
func (a args) strings(who string, params ...string) ([]string, error) {
	p, err := a.bind(who, len(params), params...)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(p))
	for i, v := range p {
		s, ok := v.(string)
		if !ok {
			return nil, failf("%s takes a str as %s, not %s", who, params[i], typeName(v))
		}
		out[i] = s
	}
	return out, nil
}

func joinMethod(r *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 1, "iterable")
	if err != nil {
		return nil, err
	}
	items, err := r.items(p[0])
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	for i, item := range items {
		text, ok := item.(string)
		if !ok {
			return nil, failf("join takes strs, not %s", typeName(item))
		}
		parts[i] = text
	}
	return r.join(parts, s)
}

func (r *run) join(parts []string, sep string) (any, error) {
	n := 0
	for _, p := range parts {
		n += len(p) + len(sep)
		if n > r.bytes {
			return nil, limitf("it makes too much text")
		}
	}
	return strings.Join(parts, sep), r.charge(n)
}
