package jinja

import (
	"fmt"
	"math/big"
)

// comparison is the operator of a test.
func comparison(name string) string {
	switch name {
	case "==", "eq", "equalto":
		return "=="
	case "!=", "ne":
		return "!="
	case "<", "lt", "lessthan":
		return "<"
	case "<=", "le":
		return "<="
	case ">", "gt", "greaterthan":
		return ">"
	case ">=", "ge":
		return ">="
	case "in":
		return "in"
	}
	return ""
}

// isTest says whether there is a test of this name: jinja2's.
func isTest(name string) bool {
	switch name {
	case "boolean", "callable", "defined", "divisibleby", "escaped", "even", "false", "filter", "float", "integer", "iterable", "lower",
		"mapping", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined", "upper":
		return true
	}
	return comparison(name) != ""
}

func noTest(name string) string { return fmt.Sprintf("unknown test %q", cut(name)) }

// runTest answers {{ v is name(a) }}.
func runTest(r *run, name string, v any, a args) (bool, error) {
	if op := comparison(name); op != "" {
		p, err := a.only(name, 1, "other")
		if err != nil {
			return false, err
		}
		return r.compare(op, v, p[0])
	}
	switch name {
	case "divisibleby":
		p, err := a.bind(name, 1, "num")
		if err != nil {
			return false, err
		}
		m, err := r.binary("%", v, p[0])
		if err != nil {
			return false, err
		}
		return r.equal(m, int64(0), 0)
	case "sameas":
		p, err := a.bind(name, 1, "other")
		if err != nil {
			return false, err
		}
		return testSameAs(r, v, p[0])
	}
	if !isTest(name) {
		return false, failf("%s", noTest(name))
	}
	if len(a.pos)+len(a.names) > 0 {
		return false, failf("the test %q has no arguments", cut(name))
	}
	return testPlain(r, name, v)
}

// testSameAs is Python's "is", with small values as its interpreter keeps them:
// each once.
func testSameAs(r *run, v, other any) (bool, error) {
	switch v.(type) {
	case *List, *Dict, *namespace, *function, *numbers, *generator, *loopVar:
		return v == other, nil
	case nil, bool:
		return v == other, nil
	}
	if typeName(v) != typeName(other) {
		return false, nil
	}
	return r.equal(v, other, 0)
}

func testPlain(r *run, name string, v any) (bool, error) {
	_, missing := v.(undefined)
	switch name {
	case "defined":
		return !missing, nil
	case "undefined":
		return missing, nil
	case "none":
		return v == nil, nil
	case "escaped":
		_, ok := v.(markup)
		return ok, nil
	case "string":
		_, ok := plain(v).(string)
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
		switch v.(type) {
		case *function, *loopVar, undefined:
			return true, nil
		}
		return false, nil
	case "number":
		return isNumber(v), nil
	case "integer":
		switch v.(type) {
		case int64, *big.Int:
			return true, nil
		}
		return false, nil
	case "float":
		_, ok := v.(float64)
		return ok, nil
	}
	return testMore(r, name, v)
}

func testMore(r *run, name string, v any) (bool, error) {
	switch name {
	case "sequence":
		// Anything with a length and items, including Undefined.
		switch c := plain(v).(type) {
		case *List:
			return c.view == "", nil
		case string, *Dict, *numbers, undefined:
			return true, nil
		}
		return false, nil
	case "iterable":
		switch plain(v).(type) {
		case string, *List, *Dict, *numbers, *generator, undefined, *loopVar:
			return true, nil
		}
		return false, nil
	case "odd", "even":
		m, err := r.binary("%", v, int64(2))
		if err != nil {
			return false, err
		}
		return r.equal(m, map[string]int64{"odd": 1, "even": 0}[name], 0)
	case "lower", "upper":
		s, err := r.text(v)
		if err != nil {
			return false, err
		}
		return cased(s, name == "upper"), r.scan(8 * len(s))
	case "filter", "test":
		s, ok := plain(v).(string)
		if _, hashable, err := r.hash(v, 0); err != nil || !hashable {
			return false, failf("%s is not the name of a %s", typeName(v), name)
		}
		if name == "test" {
			return ok && isTest(s), nil
		}
		_, known := r.template.filters[s]
		return ok && known, nil
	}
	return false, nil
}
