package jinja

import (
	"strings"
	"unicode/utf8"
)

// filterPprint is Python's pprint.pformat: what does not fit into 80 columns
// is broken at commas and spaces, and dictionaries are sorted.
func filterPprint(r *run, v any, a args) (any, error) {
	if _, err := a.bind("pprint", 0); err != nil {
		return nil, err
	}
	p := &prettyPrinter{r: r}
	if err := p.format(v, 0, 0, 0); err != nil {
		return nil, err
	}
	return p.b.String(), nil
}

const prettyWidth = 80

type prettyPrinter struct {
	r *run
	b strings.Builder
}

func (p *prettyPrinter) write(s string) error {
	p.b.WriteString(s)
	return p.r.charge(len(s))
}

// format writes a value that begins at column indent and is followed by so
// many characters on its line: allowance.
func (p *prettyPrinter) format(v any, indent, allowance int64, level int) error {
	if level > maxDepth {
		return tooDeep()
	}
	text, err := p.repr(v, level)
	if err != nil {
		return err
	}
	if int64(utf8.RuneCountInString(text)) > prettyWidth-indent-allowance {
		switch v := v.(type) {
		case string:
			return p.text(v, indent, allowance, level+1)
		case *Dict:
			return p.dict(v, indent, allowance, level+1)
		case *List:
			if v.view == "" && v.fields == nil {
				return p.list(v, indent, allowance, level+1)
			}
		}
	}
	return p.write(text)
}

// repr is a value on one line, its dictionaries sorted.
func (p *prettyPrinter) repr(v any, level int) (string, error) {
	if level > maxDepth {
		return "", tooDeep()
	}
	var parts []string
	open, end := "{", "}"
	switch v := v.(type) {
	case *Dict:
		items, err := p.sorted(v)
		if err != nil {
			return "", err
		}
		for _, i := range items {
			key, err := p.repr(v.keys[i], level+1)
			if err != nil {
				return "", err
			}
			value, err := p.repr(v.vals[i], level+1)
			if err != nil {
				return "", err
			}
			parts = append(parts, key+": "+value)
		}
	case *List:
		if v.view != "" || v.fields != nil {
			return p.r.reprOf(v)
		}
		open, end = brackets(v)
		for _, item := range v.Items {
			text, err := p.repr(item, level+1)
			if err != nil {
				return "", err
			}
			parts = append(parts, text)
		}
	default:
		return p.r.reprOf(v)
	}
	text, err := p.r.join(parts, ", ")
	return open + text + end, err
}

func brackets(l *List) (open, end string) {
	switch {
	case !l.Tuple:
		return "[", "]"
	case len(l.Items) == 1:
		return "(", ",)"
	}
	return "(", ")"
}

// sorted lists the places of a dictionary's entries in order of their keys;
// keys of different kinds are ordered by the names of their types.
func (p *prettyPrinter) sorted(d *Dict) ([]int, error) {
	keys := make([]keyed, d.Len())
	kinds := map[string]bool{}
	for i, k := range d.keys {
		keys[i] = keyed{i, k}
		kinds[className(k)] = true
	}
	numbersOnly := kinds["int"] || kinds["float"] || kinds["bool"]
	for kind := range kinds {
		numbersOnly = numbersOnly && (kind == "int" || kind == "float" || kind == "bool")
	}
	if len(kinds) > 1 && !numbersOnly {
		for i, k := range d.keys {
			keys[i].key = NewList(className(k), k)
		}
	}
	keys, err := p.r.sorted(keys, false)
	if err != nil {
		return nil, err
	}
	out := make([]int, len(keys))
	for i, k := range keys {
		out[i], _ = k.item.(int)
	}
	return out, nil
}

// className is what Python calls the class of a key.
func className(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case float64:
		return "float"
	case string:
		return "str"
	case markup:
		return "markupsafe.Markup"
	case *List:
		if v.Tuple {
			return "tuple"
		}
	case undefined:
		return "jinja2.runtime.Undefined"
	}
	return "int"
}

func (p *prettyPrinter) dict(d *Dict, indent, allowance int64, level int) error {
	items, err := p.sorted(d)
	if err != nil {
		return err
	}
	indent++
	if err := p.write("{"); err != nil {
		return err
	}
	for n, i := range items {
		key, err := p.repr(d.keys[i], level)
		if err != nil {
			return err
		}
		after := int64(1)
		if n == len(items)-1 {
			after = allowance + 1
		}
		if err := p.write(key + ": "); err != nil {
			return err
		}
		if err := p.format(d.vals[i], indent+int64(utf8.RuneCountInString(key))+2, after, level); err != nil {
			return err
		}
		if n < len(items)-1 {
			if err := p.newline(",", indent); err != nil {
				return err
			}
		}
	}
	return p.write("}")
}

func (p *prettyPrinter) newline(before string, indent int64) error {
	if err := p.r.chargeTimes(1, indent); err != nil {
		return err
	}
	return p.write(before + "\n" + strings.Repeat(" ", int(indent)))
}

func (p *prettyPrinter) list(l *List, indent, allowance int64, level int) error {
	open, end := brackets(l)
	indent++
	if err := p.write(open); err != nil {
		return err
	}
	for i, item := range l.Items {
		if i > 0 {
			if err := p.newline(",", indent); err != nil {
				return err
			}
		}
		after := int64(1)
		if i == len(l.Items)-1 {
			after = allowance + int64(len(end))
		}
		if err := p.format(item, indent, after, level); err != nil {
			return err
		}
	}
	return p.write(end)
}

// text writes a string as several literals, in brackets where it stands alone.
func (p *prettyPrinter) text(s string, indent, allowance int64, level int) error {
	if level == 1 {
		indent++
		allowance++
	}
	chunks, err := p.literals(s, prettyWidth-indent, allowance)
	if err != nil {
		return err
	}
	if len(chunks) == 1 {
		return p.write(chunks[0])
	}
	for i, chunk := range chunks {
		if i == 0 && level == 1 {
			chunk = "(" + chunk
		}
		if i > 0 {
			if err := p.newline("", indent); err != nil {
				return err
			}
		}
		if err := p.write(chunk); err != nil {
			return err
		}
	}
	if level == 1 {
		return p.write(")")
	}
	return nil
}

// literals cuts a string at line ends, and lines that are too wide behind
// white space.
func (p *prettyPrinter) literals(s string, width, allowance int64) (chunks []string, err error) {
	lines, err := p.r.lines(s, true)
	if err != nil {
		return nil, err
	}
	wide := func(s string) int64 { return int64(utf8.RuneCountInString(quoted(s))) }
	for i, line := range lines {
		if err := p.r.charge(4 * len(line)); err != nil {
			return nil, err
		}
		last := i == len(lines)-1
		room := width
		if last {
			room -= allowance
		}
		if wide(line) <= room {
			chunks = append(chunks, quoted(line))
			continue
		}
		current := ""
		for parts := line; parts != ""; {
			n := wordEnd(parts)
			part := parts[:n]
			parts = parts[n:]
			room := width
			if last && parts == "" {
				room -= allowance
			}
			if wide(current+part) <= room {
				current += part
				continue
			}
			if current != "" {
				chunks = append(chunks, quoted(current))
			}
			current = part
		}
		if current != "" {
			chunks = append(chunks, quoted(current))
		}
	}
	return chunks, nil
}

// wordEnd measures a word with the white space behind it.
func wordEnd(s string) int {
	n := strings.IndexFunc(s, isSpace)
	if n < 0 {
		return len(s)
	}
	rest := strings.TrimLeftFunc(s[n:], isSpace)
	return len(s) - len(rest)
}

func quoted(s string) string {
	var b strings.Builder
	quote(&b, s)
	return b.String()
}
