package jinja

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"unicode"
)

// method finds a method of a value.
func method(v any, name string) (any, bool) {
	var call func(r *run, a args) (any, error)
	switch c := v.(type) {
	case markup:
		call = markupMethod(c, name)
	case string:
		call = stringMethod(c, name)
	case *Dict:
		call = dictMethod(c, name)
	case *List:
		call = listMethod(c, name)
	case *numbers:
		if i := slices.Index([]string{"start", "stop", "step"}, name); i >= 0 {
			return []int64{c.from, c.until, c.by}[i], true
		}
		call = searchMethod(c, name)
	case bool, int64, *big.Int, float64:
		return numberMember(v, name)
	}
	if call == nil {
		return nil, false
	}
	return &function{name: name, call: call}, true
}

// hidden says whether v has a member of this name that the sandbox does not
// give out: it would change v, or lead into Python's own workings.
func hidden(v any, name string) bool {
	switch v := v.(type) {
	case *Dict:
		switch name {
		case "pop", "popitem", "update", "clear", "setdefault":
			return true
		}
		return isDunder(name)
	case undefined:
		return isUndefinedDunder(name)
	case *List:
		switch name {
		case "append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear":
			return v.view == "" && !v.Tuple
		}
	}
	return false
}

// isDunder reports whether Python's dict has an attribute of this inner name: it hides a key
// of that name after a dot.
func isDunder(name string) bool {
	switch name {
	case "__class__", "__class_getitem__", "__contains__", "__delattr__", "__delitem__", "__dir__", "__doc__", "__eq__", "__format__",
		"__ge__", "__getattribute__", "__getitem__", "__getstate__", "__gt__", "__hash__", "__init__", "__init_subclass__", "__ior__", "__iter__",
		"__le__", "__len__", "__lt__", "__ne__", "__new__", "__or__", "__reduce__", "__reduce_ex__", "__repr__", "__reversed__", "__ror__",
		"__setattr__", "__setitem__", "__sizeof__", "__str__", "__subclasshook__":
		return true
	}
	return false
}

// isUndefinedDunder reports whether jinja2's Undefined has this inner name.
func isUndefinedDunder(name string) bool {
	switch name {
	case "__add__", "__aiter__", "__bool__", "__call__", "__class__", "__complex__", "__delattr__", "__dir__", "__div__", "__doc__", "__eq__",
		"__float__", "__floordiv__", "__format__", "__ge__", "__getattr__", "__getattribute__", "__getitem__", "__getstate__", "__gt__",
		"__hash__", "__init__", "__init_subclass__", "__int__", "__iter__", "__le__", "__len__", "__lt__", "__mod__", "__module__", "__mul__",
		"__ne__", "__neg__", "__new__", "__pos__", "__pow__", "__radd__", "__rdiv__", "__reduce__", "__reduce_ex__", "__repr__", "__rfloordiv__",
		"__rmod__", "__rmul__", "__rpow__", "__rsub__", "__rtruediv__", "__setattr__", "__sizeof__", "__slots__", "__str__", "__sub__",
		"__subclasshook__", "__truediv__":
		return true
	}
	return false
}

// numberMember finds what Python's numbers have.
func numberMember(v any, name string) (any, bool) {
	none := func(out func() any) (any, bool) {
		return &function{name: name, call: func(_ *run, a args) (any, error) {
			_, err := a.bind(name, 0)
			return out(), err
		}}, true
	}
	i := integer(v)
	switch {
	case name == "real" && i != nil:
		return small(i), true
	case name == "real":
		return v, true
	case name == "imag" && i != nil:
		return int64(0), true
	case name == "imag":
		return 0.0, true
	case name == "bit_length" && i != nil:
		return none(func() any { return int64(i.BitLen()) })
	case name == "is_integer" && i == nil:
		return none(func() any { f, _ := v.(float64); return f == math.Trunc(f) && !math.IsInf(f, 0) })
	}
	return nil, false
}

func dictMethod(d *Dict, name string) func(*run, args) (any, error) {
	switch name {
	case "get":
		return func(r *run, a args) (any, error) {
			p, err := a.only("get", 1, "key", "default")
			if err != nil {
				return nil, err
			}
			h, ok, err := r.hash(p[0], 0)
			if err != nil {
				return nil, err
			}
			if !ok {
				return nil, failf("a dict cannot have the key %s", typeName(p[0]))
			}
			if v, found := d.find(h); found {
				return v, nil
			}
			return orNil(p[1]), nil
		}
	case "fromkeys":
		return fromKeys
	case "items", "keys", "values", "copy":
		return func(r *run, a args) (any, error) {
			if _, err := a.bind(name, 0); err != nil {
				return nil, err
			}
			switch name {
			case "keys":
				return &List{Items: d.keys, view: "dict_keys"}, nil
			case "values":
				return &List{Items: d.vals, view: "dict_values"}, nil
			case "copy":
				return r.dictOf("copy", args{pos: []any{d}})
			}
			if err := r.charge(pairBytes * d.Len()); err != nil {
				return nil, err
			}
			return &List{Items: d.items().Items, view: "dict_items"}, nil
		}
	}
	return nil
}

func listMethod(l *List, name string) func(*run, args) (any, error) {
	if l.view != "" {
		return nil
	}
	if name == "copy" && !l.Tuple {
		return func(r *run, a args) (any, error) {
			if _, err := a.bind(name, 0); err != nil {
				return nil, err
			}
			if err := r.charge(itemBytes * len(l.Items)); err != nil {
				return nil, err
			}
			return &List{Items: slices.Clone(l.Items)}, nil
		}
	}
	return searchMethod(l, name)
}

// searchMethod is index or count of a sequence.
func searchMethod(v any, name string) func(*run, args) (any, error) {
	if name != "index" && name != "count" {
		return nil
	}
	return func(r *run, a args) (any, error) {
		params := []string{"value", "start", "stop"}
		if _, isList := v.(*List); name == "count" || !isList {
			params = params[:1]
		}
		p, err := a.only(name, 1, params...)
		if err != nil {
			return nil, err
		}
		items, err := r.items(v)
		if err != nil {
			return nil, err
		}
		from, to := int64(0), int64(len(items))
		if len(p) == 3 {
			within, err := sliceOf(to, orNil(p[1]), orNil(p[2]), nil)
			if err != nil {
				return nil, err
			}
			from, to = within.from, within.from+within.count
		}
		n := int64(0)
		for i, item := range items[from:to] {
			same, err := r.equal(item, p[0], 0)
			if err != nil {
				return nil, err
			}
			if same && name == "index" {
				return from + int64(i), nil
			}
			n += toInt(same)
		}
		if name == "index" {
			return nil, failf("the value is not in the list")
		}
		return n, nil
	}
}

// markupMethod is a method of text that gives markup, of arguments that are
// escaped.
func markupMethod(m markup, name string) func(*run, args) (any, error) {
	plainCall := stringMethod(string(m), name)
	if plainCall == nil {
		return nil
	}
	return func(r *run, a args) (any, error) {
		pos, names, named := slices.Clone(a.pos), a.names, slices.Clone(a.named)
		switch name {
		case "format", "format_map":
			return r.format(string(m), a, name == "format_map", true)
		case "join":
			if len(pos) != 1 {
				break
			}
			items, err := r.items(pos[0])
			if err != nil {
				return nil, err
			}
			l := NewList()
			for _, item := range items {
				if err := r.charge(textBytes); err != nil {
					return nil, err
				}
				text, err := r.escaped(item)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, text)
			}
			pos[0] = l
		case "replace", "ljust", "rjust", "center":
			if len(pos) > 1 {
				text, err := r.escaped(pos[1])
				if err != nil {
					return nil, err
				}
				pos[1] = text
			}
		}
		out, err := plainCall(r, args{pos, names, named})
		return asMarkup(out), err
	}
}

// asMarkup makes markup of a text, and of the texts in a list.
func asMarkup(v any) any {
	switch v := v.(type) {
	case string:
		return markup(v)
	case *List:
		for i, item := range v.Items {
			v.Items[i] = asMarkup(item)
		}
	}
	return v
}

func stringMethod(s, name string) func(*run, args) (any, error) {
	if plain := plainStringMethod(name); plain != nil {
		return func(r *run, a args) (any, error) {
			if _, err := a.bind(name, 0); err != nil {
				return nil, err
			}
			if err := r.charge(3 * len(s)); err != nil {
				return nil, err
			}
			if err := r.letters(s); err != nil {
				return nil, err
			}
			return plain(s), nil
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
		call = padMethod
	case "expandtabs":
		call = expandTabs
	case "format", "format_map":
		return func(r *run, a args) (any, error) { return r.format(s, a, name == "format_map", false) }
	case "encode", "translate", "maketrans":
		return func(*run, args) (any, error) { return nil, failf("the method %s is not supported", name) }
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
	text := func(f func(string) string) func(string) any { return func(s string) any { return f(s) } }
	each := func(f func(rune) bool) func(string) any { return func(s string) any { return all(s, f) } }
	switch name {
	case "upper":
		return text(uppered)
	case "lower":
		return text(lowered)
	case "casefold":
		return text(folded)
	case "title":
		return text(titled)
	case "capitalize":
		return text(capitalized)
	case "swapcase":
		return text(swapped)
	case "isupper":
		return func(s string) any { return cased(s, true) }
	case "islower":
		return func(s string) any { return cased(s, false) }
	case "istitle":
		return func(s string) any { return isTitled(s) }
	case "isspace":
		return each(isSpace)
	case "isalpha":
		return each(unicode.IsLetter)
	case "isdecimal":
		return each(unicode.IsDigit)
	case "isdigit":
		return each(isDigit)
	case "isnumeric":
		return each(isNumeric)
	case "isalnum":
		return each(isAlnum)
	case "isidentifier":
		return func(s string) any { return isIdentifier(s) }
	case "isascii":
		return func(s string) any { return isASCII(s) }
	case "isprintable":
		return func(s string) any { return s == "" || all(s, strconv.IsPrint) }
	}
	return nil
}
