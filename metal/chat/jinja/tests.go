package jinja

import (
	"strings"
	"unicode"
)

// test answers {{ v is name(a) }}.
func (r *run) test(name string, v any, a args) (bool, error) {
	if _, safe := v.(markup); safe && name == "escaped" {
		return true, nil
	}
	v = plain(v)
	if op, ok := map[string]string{
		"==": "==", "eq": "==", "equalto": "==", "!=": "!=", "ne": "!=", "<": "<", "lt": "<", "lessthan": "<",
		"<=": "<=", "le": "<=", ">": ">", "gt": ">", "greaterthan": ">", ">=": ">=", "ge": ">=", "in": "in",
	}[name]; ok {
		p, err := a.bind(name, 1, "other")
		if err != nil {
			return false, err
		}
		return r.compare(op, v, p[0])
	}
	switch name {
	case "divisibleby", "sameas":
		return r.testWith(name, v, a)
	}
	if len(a.pos)+len(a.names) > 0 {
		return false, failf("the test %q takes no argument", cut(name))
	}
	return r.testPlain(name, v)
}

func (r *run) testWith(name string, v any, a args) (bool, error) {
	p, err := a.bind(name, 1, "other")
	if err != nil {
		return false, err
	}
	if name == "divisibleby" {
		m, err := r.binary("%", v, p[0])
		return err == nil && !truth(m), err
	}
	switch v.(type) {
	case *List, *Dict, *namespace, *function:
		return v == p[0], nil
	}
	if typeName(v) != typeName(p[0]) {
		return false, nil
	}
	return r.equal(v, p[0], 0)
}

func (r *run) testPlain(name string, v any) (bool, error) {
	switch name {
	case "defined":
		_, no := v.(undefined)
		return !no, nil
	case "undefined":
		_, yes := v.(undefined)
		return yes, nil
	case "none":
		return v == nil, nil
	case "string":
		_, ok := v.(string)
		return ok, nil
	case "boolean":
		_, ok := v.(bool)
		return ok, nil
	case "true", "false":
		b, ok := v.(bool)
		return ok && b == (name == "true"), nil
	case "mapping":
		_, ok := v.(*Dict)
		return ok, nil
	case "callable":
		_, ok := v.(*function)
		return ok, nil
	case "sequence":
		// Whatever has a length and items: Undefined, too.
		switch c := v.(type) {
		case *List:
			return c.view == "", nil
		case string, *Dict, undefined:
			return true, nil
		}
		return false, nil
	case "iterable":
		switch v.(type) {
		case string, *List, *Dict, *generator, undefined, *loopVar:
			return true, nil
		}
		return false, nil
	case "escaped":
		return false, nil
	}
	return r.testMore(name, v)
}

func (r *run) testMore(name string, v any) (bool, error) {
	switch name {
	case "number":
		_, _, _, ok := number(v)
		_, big := v.(BigInt)
		return ok || big, nil
	case "integer":
		switch v.(type) {
		case int64, BigInt:
			return true, nil
		}
		return false, nil
	case "float":
		_, ok := v.(float64)
		return ok, nil
	case "odd", "even":
		m, err := r.binary("%", v, int64(2))
		if err != nil {
			return false, err
		}
		return truth(m) == (name == "odd"), nil
	case "lower", "upper":
		s, err := r.text(v)
		return err == nil && cased(s, name == "upper"), err
	case "filter":
		s, ok := v.(string)
		_, known := r.filters[s]
		return ok && known, nil
	}
	return false, failf("there is no test %q", cut(name))
}

// cased says whether s has letters with case, all of them in the given one.
func cased(s string, upper bool) bool {
	any := false
	for _, c := range s {
		if unicode.IsUpper(c) || unicode.IsTitle(c) {
			if !upper || unicode.IsTitle(c) {
				return false
			}
			any = true
		} else if unicode.IsLower(c) {
			if upper {
				return false
			}
			any = true
		}
	}
	return any
}

// pythonUpper is str.upper for what Go maps differently.
func pythonUpper(s string) string {
	return strings.ToUpper(strings.ReplaceAll(s, "ß", "SS"))
}
