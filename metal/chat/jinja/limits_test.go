package jinja

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// hostile templates must end with ErrLimit, soon and in little memory.
func TestHostileTemplatesEndWithALimit(t *testing.T) {
	ten := func(s string) string { return strings.Repeat(s, 10) }
	tests := map[string]string{
		"nested loops":               strings.Repeat("{% for i in range(99999) %}", 4) + strings.Repeat("{% endfor %}", 4),
		"endless recursion":          "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"mutual recursion":           "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
		"recursion by caller":        "{% macro f() %}{{ caller is defined }}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}",
		"recursive loop":             "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"a huge repetition":          "{{ 'a' * 999999999999 }}",
		"a huge list":                "{{ [1] * 999999999999 }}",
		"doubling text":              "{% set ns = namespace(s='abcdefgh') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
		"doubling by plus":           "{% set ns = namespace(s='abcdefgh') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"doubling by replace":        "{% set ns = namespace(s='aaaa') %}{% for i in range(99) %}{% set ns.s = ns.s | replace('a', 'aaaa') %}{% endfor %}",
		"doubling lists":             "{% set ns = namespace(s=[1, 2]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"a shared list printed":      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
		"a shared list as JSON":      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}",
		"a shared list compared":     "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
		"a deep list printed":        "{% set ns = namespace(s=[1]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
		"padding":                    "{{ 'a'.center(99999999999) }}",
		"a wide format":              "{{ '%99999999d' % 1 }}",
		"a long range":               "{{ range(999999999) }}",
		"joining":                    "{% set a = ('x' * 9999) %}{{ " + ten("(") + "range(99999)" + ten(")") + " | join(a) }}",
		"indenting":                  "{{ ('\n' * 9999999) | indent(900) }}",
		"endless output":             "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
		"characters of a text":       "{% set s = 'abcdefgh' * 2000000 %}{% for c in s %}{% endfor %}",
		"membership again and again": "{% set l = range(99999) %}{% for i in l %}{{ -1 in l }}{% endfor %}",
		"a search again and again":   "{% set s = 'a' * 999999 %}{% for i in range(3000) %}{{ s.find('b') }}{% endfor %}",
		"an index again and again":   "{% set s = 'a' * 999999 %}{% for i in range(3000) %}{{ s[-1] }}{% endfor %}",
		"a length again and again":   "{% set s = 'a' * 999999 %}{% for i in range(3000) %}{{ s | length }}{% endfor %}",
		"contains again and again":   "{% set s = 'a' * 999999 %}{% for i in range(3000) %}{{ 'b' in s }}{% endfor %}",
	}
	limits := Limits{Steps: 300_000, Bytes: 16 << 20}
	for name, source := range tests {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := renderText(context.Background(), source, nil, limits)
			if !errors.Is(err, ErrLimit) {
				t.Errorf("error %v", err)
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

func TestHostileSourcesAreRefused(t *testing.T) {
	for name, source := range map[string]string{
		"deep brackets":    "{{ " + strings.Repeat("(", 100_000),
		"deep lists":       "{{ " + strings.Repeat("[", 100_000) + " }}",
		"deep blocks":      strings.Repeat("{% if a %}", 50_000),
		"deep negation":    "{{ " + strings.Repeat("not ", 100_000) + "a }}",
		"deep signs":       "{{ " + strings.Repeat("- ", 100_000) + "1 }}",
		"deep conditions":  "{{ " + strings.Repeat("1 if 1 else ", 50_000) + "1 }}",
		"too long":         strings.Repeat("x", MaxSource+1),
		"unclosed in many": strings.Repeat("{{ '", 50_000),
	} {
		if _, err := Parse(source); !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A left-deep chain does not nest in the parser; it must not in the evaluator.
func TestLongChainsRender(t *testing.T) {
	source := "{{ 0" + strings.Repeat(" + 1", 20_000) + " }}"
	got, err := renderText(context.Background(), source, nil, Limits{})
	if err == nil && got != "20000" || err != nil && !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrLimit) {
		t.Errorf("%q, %v", got, err)
	}
}

// longList is {"l": [0, 1, ...]}: a list that costs a render nothing.
func longList(n int) *Dict {
	l := NewList()
	for i := range n {
		l.Items = append(l.Items, int64(i))
	}
	vars := NewDict()
	vars.Set("l", l)
	return vars
}

func TestEveryRoundOfALoopCounts(t *testing.T) {
	for _, source := range []string{"{% for i in l %}{% endfor %}", "{% for i in l if 0 %}{% endfor %}"} {
		if _, err := renderText(context.Background(), source, longList(50_000), Limits{Steps: 10_000}); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", source, err)
		}
	}
}

func TestCancelledRenderEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := renderText(ctx, "{% for i in l %}{{ i }}{% endfor %}", longList(50_000), Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	for source, line := range map[string]int{
		"a\nb\n{{ x.y.z }}": 3, "\n{% for i in [1] %}\n\n{{ 1 / 0 }}{% endfor %}": 4, "{{ 'a\nb' }}\n{% foo %}": 3, "\n\n{{ 'open }}": 3,
		"{#\n\n#}{% if x %}\n{{ }}": 4, "{% macro f() %}\n{{ nope() }}\n{% endmacro %}\n\n{{ f() }}": 2,
	} {
		_, err := renderText(context.Background(), source, nil, Limits{})
		var e *Error
		if !errors.As(err, &e) || e.Line != line {
			t.Errorf("%q: %v, want line %d", source, err, line)
		}
	}
}

func TestUnsupportedTagsAreRefusedByName(t *testing.T) {
	for _, tag := range []string{"include 'x'", "extends 'x'", "import 'x' as y", "block b", "autoescape true", "do x", "trans"} {
		_, err := Parse("{% " + tag + " %}")
		name := strings.Fields(tag)[0]
		if !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), `"`+name+`" is not supported`) {
			t.Errorf("%s: %v", tag, err)
		}
	}
}

func TestVariablesAreNotChanged(t *testing.T) {
	vars := variables(t, []byte(`{"l":[3,1,2],"d":{"b":1}}`))
	source := "{% set l = l + [4] %}{% for i in l %}{% set d = i %}{% endfor %}{{ l | sort }}{{ l | reverse | list }}{% set x %}{{ l[::-1] }}{% endset %}"
	if _, err := renderText(context.Background(), source, vars, Limits{}); err != nil {
		t.Fatal(err)
	}
	got, err := renderText(context.Background(), "{{ l }}{{ d }}", vars, Limits{})
	if err != nil || got != "[3, 1, 2]{'b': 1}" {
		t.Errorf("%s, %v", got, err)
	}
}

// FuzzRender wants any template over any JSON to render or to fail with a
// typed error, within its limits.
func FuzzRender(f *testing.F) {
	g := readGolden(f)
	for _, s := range g.Snippets {
		f.Add(s.Template, string(g.Variables))
	}
	for _, source := range g.Styles {
		for i, c := range g.Conversations {
			if i%9 == 0 {
				f.Add(source, string(c.Variables))
			}
		}
	}
	f.Fuzz(func(t *testing.T, source, raw string) {
		vars := NewDict()
		if v, err := ParseJSON([]byte(raw)); err == nil {
			if d, ok := v.(*Dict); ok {
				vars = d
			}
		}
		limits := Limits{Steps: 20_000, Bytes: 1 << 20}
		text, err := renderText(context.Background(), source, vars, limits)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if len(text) > limits.Bytes {
			t.Fatalf("%d bytes of output", len(text))
		}
	})
}

// FuzzJSON wants what tojson writes to read back as the same JSON.
func FuzzJSON(f *testing.F) {
	f.Add(`{"a":[1,2.5,null,true,"é\u0000\u2028"],"b":{"c":1e400,"d":-0.0}}`)
	f.Fuzz(func(t *testing.T, raw string) {
		v, err := ParseJSON([]byte(raw))
		if err != nil {
			return
		}
		vars := NewDict()
		vars.Set("v", v)
		for _, source := range []string{"{{ v | tojson }}", "{{ v | tojson(indent=2) }}", "{{ v | tojson(ensure_ascii=true) }}"} {
			text, err := renderText(context.Background(), source, vars, Limits{})
			if errors.Is(err, ErrLimit) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !json.Valid([]byte(text)) && !strings.Contains(text, "Infinity") {
				t.Fatalf("%s of %q is no JSON: %s", source, raw, text)
			}
		}
	})
}
