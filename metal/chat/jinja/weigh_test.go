//go:build !race

package jinja

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// scale is a context that weighs the memory of the process whenever a render looks at it.
type scale struct {
	context.Context
	most     uint64 // that is not looked at closely
	empty    uint64 // before the render
	made     uint64 // in all, at the last look
	heaviest uint64 // more than most, live at one look
	burst    uint64 // made between two looks
}

func newScale(ctx context.Context, most uint64) *scale {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return &scale{Context: ctx, most: most, empty: m.HeapAlloc + m.StackInuse, made: m.TotalAlloc}
}

// Err has the garbage collected only where what is left may be too much, and then ends the render.
func (s *scale) Err() error {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.burst, s.made = max(s.burst, m.TotalAlloc-s.made), m.TotalAlloc
	if m.HeapAlloc+m.StackInuse > s.empty+s.most {
		runtime.GC()
		runtime.ReadMemStats(&m)
		if m.HeapAlloc+m.StackInuse > s.empty+s.most {
			s.heaviest = m.HeapAlloc + m.StackInuse - s.empty
			return fmt.Errorf("it holds %d bytes: %w", s.heaviest, context.Canceled)
		}
	}
	return s.Context.Err()
}

// prelude makes what the expressions of makers work on.
const prelude = `{% set s = 'aB c' %}{% set long = 'é"&\n <x>\t' * 2000 %}{% set l = [3, 1, 2] %}{% set d = {'k': 1, 'a': [2]} %}{% set big = 7 ** 4000 %}` +
	`{% set wide = range(2000) | list %}{% set texts = ['a', 'B'] %}{% set e = 'a&b' | e %}{% set many = dict.fromkeys(range(2000)) %}{% set j = joiner('x') %}{% set c = cycler(1, 2) %}` +
	`{% macro f(a, b=1) %}{{ a }}{% endmacro %}{% macro v() %}{{ varargs | length }}{{ kwargs | length }}{% endmacro %}{% set n = namespace(a=1) %}`

// makers are expressions of every kind; each is evaluated again and again, and its values are kept.
func makers() []string {
	return []string{
		// Literals and operators.
		"[]", "{}", "()", "[[]]", "[{}]", "{'a': {}}", "{'a': 1, 'b': 2}", "(1, 2)", "[1000, 2000]", "nothing", "d.nothing", "d['nothing']", "d[l]", "wide[:50]", "wide[::-1]", "long[1:]", "long[::2]",
		"range(9)[1:]", "1000 + i", "1.5 * i", "i / 3", "-(1000 + i)", "big + i", "-big", "2 ** 70 + i", "s + s", "s ~ i", "long ~ i", "long + s", "s * 3", "long * 2", "l + l", "wide + l", "l * 2", "wide * 2", "'%d %s' % (i, s)",
		"'%s' % long", "'%(k)s' % d", "'%r' % long", "'%a' % long", "'%99d' % i", "'%.99f' % 1.5", "e + s", "e * 2", "('%s'|e) % s", "e ~ s", "not s", "i if 0", "s[0]", "long[5000]", "range(99)[7]", "i == 3", "i in l",
		// Globals.
		"range(i)", "namespace()", "namespace(a=1, b=2)", "namespace(many)", "dict()", "dict(a=1)", "dict(many)", "dict(d, **{'z': 1})", "dict([[1, 2]])", "dict.fromkeys(l)", "dict.fromkeys(wide)", "dict.fromkeys", "cycler(1)", "cycler(*wide)",
		"joiner()", "joiner(s)", "j()", "j", "c.next()", "c.items", "c.current", "strftime_now('%Y %c')", "strftime_now(long)", "strftime_now('%999d')",
		// Macros.
		"f(s)", "f(long)", "f(a=i)", "v(1, 2, x=3)", "v(*wide)", "v(**{'a': 1, 'b': 2})", "f.arguments", "f.name", "f ~ s", "loop", "loop.index", "loop.cycle", "loop.changed", "loop.previtem", "loop.changed(i)", "loop.cycle(s, i)",
		// Filters.
		"i|abs", "(-big)|abs", "s|attr('upper')", "s|attr('x')", "long|capitalize", "s|capitalize", "wide|count", "nothing|d(i)", "nothing|default(s)", "d|dictsort", "many|dictsort", "{'a': 2, 'b': 1}|dictsort(by='value')", "s|e", "long|e", "long|escape",
		"l|first", "[]|first", "'1.5'|float", "i|float", "'%s %s'|format(s, i)", "'%s'|format(long)", "'%(a)s'|format(a=1)", "long|indent", "long|indent(9, true)", "long|indent(long)", "'1234'|int", "('9' * 4000)|int", "d|items", "many|items|list",
		"l|join(',')", "wide|join(s)", "[long]|join", "[long, long]|join(long)", "l|last", "wide|last", "long|length", "l|list", "wide|list", "long|list", "s|list", "many|list", "range(99)|list", "long|lower", "s|lower", "wide|map('string')", "texts|map('upper')|list",
		"texts|map(attribute='upper')|list", "texts|map(attribute='x')|list", "[d]|map(attribute='a.b', default=i)|list", "wide|map('abs')|map('string')|list", "l|max", "texts|min", "l|reject('odd')|list", "l|reject", "[d]|rejectattr('k')|list", "long|replace('x', 'yy')", "s|replace('a', long)",
		"long|reverse", "s|reverse", "l|reverse", "l|reverse|list", "wide|map('abs')|reverse", "1.55|round(1)", "i|round", "big|round(-3)", "s|safe", "long|safe", "i|safe", "l|select('odd')|list", "wide|select", "[d]|selectattr('k')|list",
		"l|sort", "wide|sort", "texts|sort", "[long, s]|sort", "[d]|sort(attribute='k,a')", "[{}]|sort(attribute='a,b,c,d,e,f,g,h')", "[[1]]|sort(attribute='0,0,0,0,0,0')", "[long]|sort(attribute='upper,lower')", "i|string", "wide|string", "long|string", "l|sum", "l|sum(start=i)", "[[1], [2]]|sum(start=[])",
		"long|title", "s|title", "d|tojson", "wide|tojson", "many|tojson(sort_keys=true)", "long|tojson", "long|tojson(ensure_ascii=true)", "wide|tojson(indent=4)", "wide|tojson(indent=s)", "long|trim", "s|trim('a')", "l|unique", "wide|unique|list", "[long, s]|unique|list", "long|upper", "s|upper",
		// Methods.
		"s.upper", "s.upper()", "long.upper()", "long.lower()", "long.casefold()", "long.title()", "long.capitalize()", "long.swapcase()", "s.swapcase()", "long.isupper()", "s.isalpha()", "s.strip()", "long.strip('é')", "long.lstrip()", "long.rstrip('\n')", "s.split()", "long.split()", "long.rsplit()",
		"long.split('x')", "long.rsplit('x', 3)", "long.splitlines()", "long.splitlines(true)", "s.splitlines()", "s.startswith('a')", "long.endswith(('a', 'b'))", "long.removeprefix('é')", "long.removesuffix('é')", "long.replace('x', 'zz')", "long.replace('', '-')", "long.find('y')", "long.rfind('x')", "long.index('x')",
		"long.rindex('x')", "long.count('x')", "s.join(texts)", "long.join(texts)", "','.join(wide|map('string'))", "s.partition(' ')", "long.partition('x')", "s.rpartition('z')", "s.center(99)", "s.ljust(99)", "s.rjust(9)", "s.zfill(99)", "long.center(99999)", "long.expandtabs()", "s.expandtabs", "'{} {}'.format(s, i)", "'{0}{0}'.format(long)",
		"'{0[k]} {0[zz]}'.format(d)", "'{!r}'.format(long)", "'{!a}'.format(long)", "'{:99}'.format(i)", "'{:,}'.format(big)", "'{:099,}'.format(i)", "'{:b}'.format(big)", "'{:.99f}'.format(1.5)", "'{k}'.format_map(d)", "'{:{w}}'.format(i, w=99)", "e.upper()", "e.join([s, long])", "e.split('b')", "e.replace('a', long)", "e.format(long)", "e.partition('b')",
		"d.get('k')", "d.get", "d.items()", "d.keys()", "d.values()", "d.copy()", "many.items()", "many.keys()|list", "many.copy()", "dict.fromkeys(s)", "l.copy()", "wide.copy()", "l.index(1)", "wide.count(3)", "range(99).index(7)", "range(9).stop", "i.real", "i.bit_length", "i.bit_length()", "1.5.is_integer()", "big.real",
		// Tests.
		"i is odd", "s is lower", "long is upper", "d is mapping", "i is divisibleby(3)", "s is in(texts)", "s is sameas(s)", "s is filter", "s is test", "nothing is defined", "l is sequence", "l is iterable", "f is callable", "e is escaped", "s is eq(s)",
	}
}

// statements that make much: of each the part in front of a loop, and its body.
func makersOfStatements() map[string]string {
	repeated := func(body string) string {
		return "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}" + body + "{% endfor %}"
	}
	sets := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString("{% set a" + strings.Repeat("x", b.Len()%97) + string(rune('a'+b.Len()%26)) + string(rune('a'+b.Len()/26%26)) + " = 1 %}")
		}
		return b.String()
	}
	name := strings.Repeat("n", 100_000)
	return map[string]string{
		"keys of many attributes":       `{% set k = "a," * 20000 %}{% set l = [{}] * 150 %}{{ (l | sort(attribute=k)) | length }}`,
		"keys of no name":               `{% set k = "," * 40000 %}{% set l = [{"": 1}] * 100 %}{{ (l | sort(attribute=k)) | length }}`,
		"keys of items":                 `{% set k = "0," * 40000 %}{% set l = [[1]] * 100 %}{{ (l | sort(attribute=k)) | length }}`,
		"methods of texts":              "{{ ('a' * 99999)|map(attribute='upper')|list|length }}",
		"methods of lists":              "{{ ([[]] * 99999)|map(attribute='copy')|list|length }}",
		"missing members":               "{{ ([{}] * 99999)|map(attribute='a')|list|length }}",
		"generators":                    "{{ ([[1]] * 99999)|map('map', 'string')|list|length }}",
		"generators of generators":      repeated("{% set ns.l = [ns.l, l" + strings.Repeat("|map('string')", 300) + "] %}"),
		"lists in lists":                "{{ ('a' * 99999)|map('list')|list|length }}",
		"dictionaries":                  "{{ ([[]] * 99999)|map('items')|list|length }}",
		"unique ones":                   "{{ ([[]] * 99999)|map('unique')|list|length }}",
		"sums of lists":                 "{{ ([[[1]]] * 99999)|map('sum', start=[])|list|length }}",
		"macros":                        repeated("{% macro m() %}{% endmacro %}{% set ns.l = [ns.l, m] %}"),
		"macros of long names":          repeated("{% macro " + name + "() %}{% endmacro %}{% set ns.l = [ns.l, " + name + "] %}"),
		"parameters":                    "{% macro m(" + names(900) + ") %}{% set ns.l = [ns.l, n0] %}{% endmacro %}" + repeated("{{ m() }}"),
		"parameters of long names":      "{% macro m(" + name + ") %}{% set ns.l = [ns.l, " + name + "] %}{% endmacro %}" + repeated("{{ m() }}"),
		"names of parameters":           "{% macro m(" + names(900) + ") %}{% endmacro %}" + repeated("{% set ns.l = [ns.l, m.arguments] %}"),
		"missing members of long names": repeated("{% set ns.l = [ns.l, {}." + name + ", " + name + "] %}"),
		"a caller":                      repeated("{% macro m() %}{% set ns.l = [ns.l, caller] %}{% endmacro %}{% call m() %}{% endcall %}"),
		"scopes":                        repeated(strings.Repeat("{% with %}", 90) + "{% macro m() %}{% endmacro %}{% set ns.l = [ns.l, m] %}" + strings.Repeat("{% endwith %}", 90)),
		"loops":                         repeated("{% for j in [1] %}{% set ns.l = [ns.l, loop] %}{% endfor %}"),
		"loops that are picked":         repeated("{% for j in [1] if j recursive %}{% set ns.l = [ns.l, loop] %}{% endfor %}"),
		"names in a call":               "{% macro m(i) %}" + sets(3000) + "{% if i %}{{ m(i - 1) }}{% endif %}{% endmacro %}{{ m(150) }}",
		"default parameters in a call":  "{% macro m(i," + strings.ReplaceAll(names(900), ",", "=1,") + "=1) %}{% if i %}{{ m(i - 1) }}{% endif %}{% endmacro %}{{ m(150) }}",
		"keywords in a call":            "{% set d = dict.fromkeys(range(900)|map('string')) %}{% macro m() %}{% set ns.l = [ns.l, kwargs] %}{% endmacro %}" + repeated("{{ m(**d) }}"),
		"a caller of keywords":          "{% set d = dict.fromkeys(range(900)|map('string')) %}{% macro m() %}{% set ns.l = [ns.l, kwargs, caller] %}{% endmacro %}" + repeated("{% call m(**d) %}{% endcall %}"),
		"conditions within calls":       "{% macro m(i) %}" + strings.Repeat("{% if 1 %}", 190) + "{% if i %}{{ m(i - 1) }}{% endif %}" + strings.Repeat("{% endif %}", 190) + "{% endmacro %}{{ m(190) }}",
		"loops within calls":            "{% macro m(i) %}" + strings.Repeat("{% for j in [1] %}", 190) + "{% if i %}{{ m(i - 1) }}{% endif %}" + strings.Repeat("{% endfor %}", 190) + "{% endmacro %}{{ m(190) }}",
		"blocks within calls":           "{% macro m(i) %}" + strings.Repeat("{% filter upper %}", 90) + "{% if i %}{{ m(i - 1) }}{% endif %}" + strings.Repeat("{% endfilter %}", 90) + "{% endmacro %}{{ m(190) }}",
		"a deep expression":             "{{ 0" + strings.Repeat(" + 1", 9_900) + " }}",
		"deep calls":                    "{% macro m(i) %}{% if i %}{{ " + strings.Repeat("[", 90) + "m(i - 1)" + strings.Repeat("][0]", 90) + " }}{% endif %}{% endmacro %}{{ m(190) }}",
		"deep generators":               "{% set ns = namespace(l=[1]) %}{% for i in range(2400) %}{% set ns.l = ns.l|map('string') %}{% endfor %}{{ ns.l|list }}",
		"a deep choice":                 "{% set ns = namespace(l=[1]) %}{% for i in range(2400) %}{% set ns.l = ns.l|select('eq', 1) %}{% endfor %}{{ ns.l|list }}",
		"fields of a format":            "{% set s = 'x' * 400000 %}{{ ('{0}' * 99999).format(s) }}",
		"conversions":                   "{% set s = 'x' * 400000 %}{{ ('%s' * 999) % ((s,) * 999) }}",
		"texts of a loop":               "{% for i in range(99999) %}abcdefghijklmnopqrstuvwxyz{% endfor %}",
		"a joiner in a list":            "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = joiner(ns.l) %}{% endfor %}",
		"a cycler in a list":            "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = cycler(ns.l) %}{% endfor %}",
	}
}

// kept evaluates an expression a hundred times in each round of a loop and keeps the values.
func kept(e string) string {
	return prelude + "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l" + strings.Repeat(", "+e, 100) + "] %}{% endfor %}"
}

// TestAttackNoTemplateHoldsMoreThanItsBudget: the memory that a render holds is no more than a
// small multiple of what it may make, by any operation.
func TestAttackNoTemplateHoldsMoreThanItsBudget(t *testing.T) {
	const budget, most = 2 << 20, 2 * (2 << 20)
	sources := makersOfStatements()
	for _, e := range makers() {
		sources[e] = kept(e)
	}
	for name := range filters() {
		if !slices.ContainsFunc(makers(), func(e string) bool { return strings.Contains(e, "|"+name) }) {
			t.Errorf("no expression has the filter %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		tmpl, err := Parse(sources[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := newScale(t.Context(), most)
		_, err = tmpl.Render(s, Input{Variables: NewDict(), Limits: Limits{Bytes: budget, Steps: 500_000}})
		var e *Error
		if err != nil && !errors.Is(err, context.Canceled) && (!errors.As(err, &e) || e.Kind != ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
		if s.heaviest > most || s.burst > most {
			t.Errorf("%s: with a budget of %d bytes it held %d and made %d at once", name, budget, s.heaviest, s.burst)
		}
	}
}
