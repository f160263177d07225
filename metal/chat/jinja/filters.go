package jinja

import (
	"fmt"
	"html"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// filter computes {{ v | name(a) }}; v may be markup.
type filter func(r *run, v any, a args) (any, error)

// filters lists the filters by name: those of jinja2 that chat templates use, with
// transformers' tojson.
func filters() map[string]filter {
	return map[string]filter{
		"abs": filterAbs, "attr": filterAttr, "capitalize": softText("capitalize", capitalized), "count": filterLength, "d": filterDefault,
		"default": filterDefault, "dictsort": filterDictsort, "e": filterEscape, "escape": filterEscape, "first": filterFirst, "float": filterFloat,
		"format": filterFormat, "indent": filterIndent, "int": filterInt, "items": filterItems, "join": filterJoin, "last": filterLast,
		"length": filterLength, "list": filterList, "lower": softText("lower", lowered), "map": filterMap, "max": filterMax, "min": filterMin,
		"reject": filterReject, "rejectattr": filterRejectAttr, "replace": filterReplace, "reverse": filterReverse, "round": filterRound,
		"safe": filterSafe, "select": filterSelect, "selectattr": filterSelectAttr, "sort": filterSort, "string": softText("string", identity),
		"sum": filterSum, "title": filterTitle, "tojson": tojson, "trim": filterTrim, "unique": filterUnique, "upper": softText("upper", uppered),
	}
}

// noFilter says why there is no filter of this name.
func noFilter(name string) string {
	switch name {
	case "random":
		return `the filter "random" is not supported: rendering a conversation must be deterministic`
	case "batch", "center", "filesizeformat", "forceescape", "groupby", "pprint", "slice", "striptags", "truncate", "urlencode", "urlize",
		"wordcount", "wordwrap", "xmlattr":
		return fmt.Sprintf("the filter %q of jinja2 is not supported: it lays out pages, and no known chat template uses it; rewrite the template without it", name)
	}
	return fmt.Sprintf("unknown filter %q", cut(name))
}

func identity(s string) string { return s }

// softText makes a filter of a function on str(v); markup stays markup.
func softText(name string, f func(string) string) filter {
	return func(r *run, v any, a args) (any, error) {
		if _, err := a.bind(name, 0); err != nil {
			return nil, err
		}
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		if err := r.scan(len(s)); err != nil {
			return nil, err
		}
		if err := r.letters(s); err != nil {
			return nil, err
		}
		if err := r.charge(len(s)); err != nil {
			return nil, err
		}
		out := f(s)
		return like(v, out), r.charge(max(0, len(out)-len(s)))
	}
}

// like makes markup of s where v is markup.
func like(v any, s string) any {
	if _, ok := v.(markup); ok {
		return markup(s)
	}
	return s
}

// escaped is v as markup: its text escaped, unless it is markup already.
func (r *run) escaped(v any) (markup, error) {
	if m, ok := v.(markup); ok {
		return m, nil
	}
	s, err := r.text(v)
	if err != nil {
		return "", err
	}
	if err := r.charge(5 * len(s)); err != nil {
		return "", err
	}
	return markup(html.EscapeString(s)), nil
}

func filterEscape(r *run, v any, a args) (any, error) {
	if _, err := a.bind("escape", 0); err != nil {
		return nil, err
	}
	m, err := r.escaped(v)
	return m, err
}

func filterSafe(r *run, v any, a args) (any, error) {
	if _, err := a.bind("safe", 0); err != nil {
		return nil, err
	}
	s, err := r.text(v)
	return markup(s), err
}

func filterAbs(_ *run, v any, a args) (any, error) {
	if _, err := a.bind("abs", 0); err != nil {
		return nil, err
	}
	if f, ok := v.(float64); ok {
		return math.Abs(f), nil
	}
	if i := integer(v); i != nil {
		return small(new(big.Int).Abs(i)), nil
	}
	return nil, failf("abs requires a number, not %s", typeName(v))
}

// filterAttr is v.name without a look at the items.
func filterAttr(r *run, v any, a args) (any, error) {
	p, err := a.bind("attr", 1, "name")
	if err != nil {
		return nil, err
	}
	name, ok := p[0].(string)
	if !ok {
		return nil, failf("attr requires a name, not %s", typeName(p[0]))
	}
	if u, ok := v.(undefined); ok && !hidden(v, name) {
		return nil, failf("%s is undefined and has no attribute %q", u, cut(name))
	}
	out, found, err := r.attributes(v, name)
	if err != nil || found {
		return out, err
	}
	return undefined{"attribute ", name}, nil
}

func filterLength(r *run, v any, a args) (any, error) {
	if _, err := a.bind("length", 0); err != nil {
		return nil, err
	}
	return r.length(v)
}

func filterDefault(_ *run, v any, a args) (any, error) {
	p, err := a.bind("default", 0, "default_value", "boolean")
	if err != nil {
		return nil, err
	}
	_, missing := v.(undefined)
	if !missing && (!given(p[1]) || truth(v)) {
		return v, nil
	}
	if isAbsent(p[0]) {
		return "", nil
	}
	return p[0], nil
}

func filterFloat(r *run, v any, a args) (any, error) {
	p, err := a.bind("float", 0, "default")
	if err != nil {
		return nil, err
	}
	switch v := plain(v).(type) {
	case undefined:
		return nil, failf("float requires a number, not %s", typeName(v))
	case string:
		if err := r.scan(8 * len(v)); err != nil {
			return nil, err
		}
		if f, ok := parseFloat(v); ok {
			return f, nil
		}
	default:
		if _, f, _, ok := number(v); ok {
			if _, isBig := v.(*big.Int); isBig && math.IsInf(f, 0) {
				return nil, failf("the integer is too large for a float")
			}
			return f, nil
		}
	}
	if isAbsent(p[0]) {
		return 0.0, nil
	}
	return p[0], nil
}

// parseFloat is Python's float() of a text.
func parseFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	if strings.ContainsAny(s, "xXpP") { // hexadecimal, in Go only
		return 0, false
	}
	digits, ok := withoutUnderscores(s)
	if !ok {
		return 0, false
	}
	if strings.EqualFold(strings.TrimLeft(digits, "+-"), "nan") && len(digits) <= 4 {
		return math.NaN(), true
	}
	f, err := strconv.ParseFloat(digits, 64)
	return f, err == nil || math.IsInf(f, 0)
}

// withoutUnderscores takes them out where they stand between digits.
func withoutUnderscores(s string) (string, bool) {
	if !strings.Contains(s, "_") {
		return s, true
	}
	for i := range len(s) {
		if s[i] == '_' && (i == 0 || i == len(s)-1 || !isHex(s[i-1]) || !isHex(s[i+1])) {
			return "", false
		}
	}
	return strings.ReplaceAll(s, "_", ""), true
}

func filterInt(r *run, v any, a args) (any, error) {
	p, err := a.bind("int", 0, "default", "base")
	if err != nil {
		return nil, err
	}
	base := int64(10)
	if !isAbsent(p[1]) {
		i, _, isInt, ok := number(p[1])
		if !ok || !isInt {
			return nil, failf("invalid base of int: %s", typeName(p[1]))
		}
		base = i
	}
	switch v := plain(v).(type) {
	case undefined:
		return nil, failf("int requires a number, not %s", typeName(v))
	case float64:
		if math.IsInf(v, 0) {
			return nil, failf("cannot convert infinity to an integer")
		}
		if i, exact := integral(math.Trunc(v)); exact {
			return i, nil
		}
	case string:
		if err := r.scan(64 * len(v)); err != nil {
			return nil, err
		}
		if i, ok := parseInt(v, base); ok {
			return i, nil
		}
		if f, ok := parseFloat(v); ok {
			if i, exact := integral(math.Trunc(f)); exact {
				return i, nil
			}
		}
	default:
		if i := integer(v); i != nil {
			return small(i), nil
		}
	}
	if isAbsent(p[0]) {
		return int64(0), nil
	}
	return p[0], nil
}

// parseInt is Python's int() of a text.
func parseInt(s string, base int64) (any, bool) {
	s = strings.TrimFunc(s, isSpace)
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	if base != 0 && (base < 2 || base > 36) || s == "" || s[0] == '-' || s[0] == '+' {
		return nil, false
	}
	if len(s) > 2 && s[0] == '0' {
		if of := map[byte]int64{'b': 2, 'o': 8, 'x': 16}[s[1]|0x20]; of != 0 && (base == 0 || base == of) {
			base, s = of, strings.TrimPrefix(s[2:], "_")
		}
	}
	if base == 0 {
		if base = 10; s[0] == '0' && strings.Trim(s, "0_") != "" {
			return nil, false
		}
	}
	for i := range len(s) {
		if s[i] == '_' && (i == 0 || i == len(s)-1 || s[i-1] == '_') {
			return nil, false
		}
	}
	s = strings.ReplaceAll(s, "_", "")
	if len(s) > maxBits {
		return nil, false
	}
	v, ok := new(big.Int).SetString(sign+s, int(base))
	if !ok || v.BitLen() > maxBits {
		return nil, false
	}
	return small(v), true
}

// roundSteps is the work of rounding a number, which may have hundreds of digits.
const roundSteps = 128

func filterRound(r *run, v any, a args) (any, error) {
	p, err := a.bind("round", 0, "precision", "method")
	if err != nil {
		return nil, err
	}
	if err := r.spend(roundSteps); err != nil {
		return nil, err
	}
	method, ok := p[1].(string)
	if isAbsent(p[1]) {
		method, ok = "common", true
	}
	if !ok || (method != "common" && method != "ceil" && method != "floor") {
		return nil, failf("round supports the methods common, ceil and floor")
	}
	if !isNumber(v) {
		return nil, failf("round requires a number, not %s", typeName(v))
	}
	precision, isInt := int64(0), true
	if !isAbsent(p[0]) {
		if precision, _, isInt, ok = number(p[0]); !ok || !isInt {
			return nil, failf("invalid precision of round: %s", typeName(p[0]))
		}
	}
	precision = min(max(precision, -400), 400)
	i := integer(v)
	if method != "common" && i != nil && precision >= 0 {
		return divide(i, big.NewInt(1))
	}
	if method != "common" {
		return roundTo(v, precision, method)
	}
	if i != nil {
		if err := r.work(i); err != nil {
			return nil, err
		}
		return small(roundInteger(i, precision)), nil
	}
	return roundFloat(v.(float64), precision)
}

// roundTo is ceil or floor at a decimal place, reckoned in floats.
func roundTo(v any, precision int64, method string) (any, error) {
	_, f, _, _ := number(v)
	scale := math.Pow(10, float64(precision))
	if precision < -323 || precision > 308 {
		return nil, failf("round: the precision %d is out of range", precision)
	}
	f = f * scale
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, failf("round: the number is out of range")
	}
	if method == "ceil" {
		return math.Ceil(f) / scale, nil
	}
	return math.Floor(f) / scale, nil
}

// roundInteger rounds before the decimal point, halves to even.
func roundInteger(i *big.Int, precision int64) *big.Int {
	if precision >= 0 {
		return i
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(-precision), nil)
	q, m := new(big.Int).DivMod(i, unit, new(big.Int))
	switch twice := m.Lsh(m, 1); twice.Cmp(unit) {
	case 1:
		q.Add(q, big.NewInt(1))
	case 0:
		q.Add(q, big.NewInt(int64(q.Bit(0))))
	}
	return q.Mul(q, unit)
}

// roundFloat rounds the exact decimal value, halves to even.
func roundFloat(f float64, precision int64) (any, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) || precision > 323 {
		return f, nil
	}
	if precision < 0 {
		b, _ := new(big.Float).SetFloat64(math.Trunc(f)).Int(nil)
		// The digits after the point decide a half.
		b.Mul(b, big.NewInt(10))
		if f != math.Trunc(f) {
			b.Add(b, big.NewInt(int64(math.Copysign(1, f))))
		}
		b = roundInteger(b, precision-1)
		out, _ := new(big.Rat).SetFrac(b, big.NewInt(10)).Float64()
		return math.Copysign(out, f), nil
	}
	out, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(precision), 64), 64)
	if err != nil {
		return nil, failf("round: %v", err)
	}
	return out, nil
}
