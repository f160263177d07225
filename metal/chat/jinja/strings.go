package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Methods of strings that cut and join.

func strip(r *run, s, name string, a args) (any, error) {
	p, err := a.only(name, 0, "chars")
	if err != nil {
		return nil, err
	}
	in := isSpace
	switch chars := p[0].(type) {
	case absent, nil:
	case string:
		if err := r.charge(8 * len(chars)); err != nil {
			return nil, err
		}
		set := make(map[rune]bool)
		for _, c := range chars {
			set[c] = true
		}
		in = func(c rune) bool { return set[c] }
	default:
		return nil, failf("%s requires a str, not %s", name, typeName(chars))
	}
	rest := s
	if name != "rstrip" {
		rest = strings.TrimLeftFunc(rest, in)
	}
	if name != "lstrip" {
		rest = strings.TrimRightFunc(rest, in)
	}
	return rest, r.spend((len(s) - len(rest)) / 8)
}

func split(r *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 0, "sep", "maxsplit")
	if err != nil {
		return nil, err
	}
	most, err := wholeNumber(name, "count", p[1], -1)
	if err != nil {
		return nil, err
	}
	var parts []string
	switch sep := p[0].(type) {
	case absent, nil:
		if err := r.chargeTimes(textBytes, int64(len(s)/2+1)); err != nil {
			return nil, err
		}
		parts = splitSpace(s, most, name == "rsplit")
	case string:
		if sep == "" {
			return nil, failf("split requires a separator that is not empty")
		}
		if err := r.scan(len(sep)); err != nil {
			return nil, err
		}
		if err := r.chargeTimes(textBytes, int64(strings.Count(s, sep)+1)); err != nil {
			return nil, err
		}
		parts = splitOn(s, sep, most, name == "rsplit")
	default:
		return nil, failf("%s requires a str, not %s", name, typeName(sep))
	}
	return r.strings(parts)
}

// strings makes a list.
func (r *run) strings(parts []string) (any, error) {
	l := &List{Items: make([]any, len(parts))}
	for i, s := range parts {
		l.Items[i] = s
	}
	return l, nil
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
func (r *texts) lines(s string, keep bool) ([]string, error) {
	if err := r.scan(len(s)); err != nil {
		return nil, err
	}
	n := int64(1)
	for _, c := range s {
		if lineBreak(c) {
			n++
		}
	}
	if err := r.chargeTimes(textBytes, n); err != nil {
		return nil, err
	}
	return splitLinesOf(s, keep), nil
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
			return nil, failf("%s requires a str as %s, not %s", who, params[i], typeName(v))
		}
		out[i] = s
	}
	return out, nil
}

func joinMethod(r *run, s, name string, a args) (any, error) {
	p, err := a.only(name, 1, "iterable")
	if err != nil {
		return nil, err
	}
	items, err := r.items(p[0])
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	if err := r.charge(itemBytes * len(items)); err != nil {
		return nil, err
	}
	for i, item := range items {
		text, ok := plain(item).(string)
		if !ok {
			return nil, failf("join requires strs, not %s", typeName(item))
		}
		parts[i] = text
	}
	out, err := r.join(parts, s)
	return out, err
}

func (r *texts) join(parts []string, sep string) (string, error) {
	n := 0
	for _, p := range parts {
		if n += len(p) + len(sep); n > r.bytes {
			return "", tooMuch()
		}
	}
	if err := r.charge(n); err != nil {
		return "", err
	}
	return strings.Join(parts, sep), nil
}

// place is where the n-th character begins, in bytes.
func place(s string, n int64) int {
	for at := range s {
		if n == 0 {
			return at
		}
		n--
	}
	return len(s)
}
