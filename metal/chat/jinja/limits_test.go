//go:build !race

package jinja

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"runtime"
	"strings"
	"testing"
	"time"
)

// attack is a template that wants more than a render is given.
type attack struct {
	source string
	bound  Bound // that ends it
}

// growing repeats a body that makes ns.s larger, and then does something with it.
func growing(start, body, then string) string {
	return "{% set ns = namespace(s=" + start + ", t=" + start + ") %}{% for i in range(9999) %}" + body + "{% endfor %}" + then
}

func attacks() map[string]attack {
	all := attacksOnTime()
	maps.Copy(all, attacksOnMemory())
	maps.Copy(all, attacksOnBounds())
	return all
}

// attacksOnTime are templates that would take long.
func attacksOnTime() map[string]attack {
	long := func(use string) string {
		return "{% set s = 'a' * 999999 %}{% for i in range(99999) %}" + use + "{% endfor %}"
	}
	shared := func(use string) string {
		return "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}" + use
	}
	return map[string]attack{
		"nested loops":                      {strings.Repeat("{% for i in range(99999) %}", 4) + strings.Repeat("{% endfor %}", 4), BoundSteps},
		"calls that call twice":             {"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}", BoundSteps},
		"a recursive loop that calls twice": {"{% for i in [50] recursive %}{% if i %}{{ loop([i - 1]) }}{{ loop([i - 1]) }}{% endif %}{% endfor %}", BoundSteps},
		"a shared list printed":             {shared("{{ ns.s }}"), BoundSteps},
		"a shared list as JSON":             {shared("{{ ns.s | tojson }}"), BoundSteps},
		"a shared list compared":            {shared("{{ ns.s == ns.t }}"), BoundSteps},
		"a shared list ordered":             {shared("{{ ns.s < ns.t }}"), BoundSteps},
		"a shared list sorted":              {shared("{{ [ns.s, ns.t] | sort }}"), BoundSteps},
		"a shared tuple as a key":           {"{% set ns = namespace(s=(1,)) %}{% for i in range(60) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ {ns.s: 1} }}", BoundBytes},
		"membership again and again":        {"{% set l = range(99999) | list %}{% for i in l %}{{ -1 in l }}{% endfor %}", BoundSteps},
		"views as sets":                     {"{% set d = dict.fromkeys(range(9999)) %}{{ d.keys() == dict.fromkeys(range(9998, -1, -1)).keys() }}", BoundSteps},
		"a search again and again":          {long("{{ s.find('b') }}"), BoundSteps},
		"an index again and again":          {long("{{ s[-1] }}"), BoundSteps},
		"a slice again and again":           {long("{{ s[1:2] }}"), BoundSteps},
		"a length again and again":          {long("{{ s | length }}"), BoundSteps},
		"contains again and again":          {long("{{ 'b' in s }}"), BoundSteps},
		"equal texts again and again":       {"{% set s = 'a' * 999999 %}{% set t = 'a' * 999999 %}{% for i in range(99999) %}{{ s == t }}{% endfor %}", BoundSteps},
		"a text as a key again and again":   {long("{{ {'b': 1}[s] }}"), BoundSteps},
		"large integers":                    {"{% set n = 7 ** 2000 %}{% for i in range(99999) %}{% set m = n * n // n %}{% endfor %}", BoundSteps},
		"large integers printed":            {"{% set n = 7 ** 5000 %}{% for i in range(99999) %}{% if n ~ '' == '' %}{% endif %}{% endfor %}", BoundSteps},
		"a strip of a long set":             {"{% set s = 'a' * 999999 %}{% set c = 'b' * 99999 ~ 'a' %}{% for i in range(9999) %}{% set t = s.strip(c) %}{% endfor %}", BoundSteps},
		"a replace that finds nothing":      {long("{% set t = s | replace('b', '') %}"), BoundBytes},
		"a number that is none":             {long("{{ s | int }}"), BoundSteps},
		"a fraction that is none":           {long("{{ s | float }}"), BoundSteps},
		"a case that is tested":             {long("{% set t = s is upper %}"), BoundSteps},
		"letters beyond ASCII":              {"{% set s = 'ß' * 99999 %}{% for i in range(999) %}{% set t = s.title() %}{% endfor %}", BoundSteps},
		"the same again and again":          {"{% set l = [1] * 99999 %}{% for i in range(99999) %}{{ l | unique | list | length }}{% endfor %}", BoundBytes},
		"sums of nothing":                   {"{% set l = [0] * 99999 %}{% for i in range(99999) %}{{ l | sum }}{% endfor %}", BoundSteps},
		"a prefix that is not there":        {"{% set s = 'a' * 999999 %}{% for i in range(99999) %}{% set t = 'b'.removeprefix(s) %}{% endfor %}", BoundSteps},
		"a separator that is not there":     {"{% set s = 'a' * 999999 %}{% for i in range(99999) %}{% set t = 'b'.partition(s) %}{% endfor %}", BoundSteps},
		"a text that is not there":          {"{% set s = 'a' * 999999 %}{% for i in range(99999) %}{% set t = 'b'.count(s) %}{% endfor %}", BoundSteps},
		"a path of many members":            {"{% set s = 'a.' * 99999 %}{% for i in range(999) %}{{ [1] | map(attribute=s, default={'a': 1}) | list | length }}{% endfor %}", BoundSteps},
		"remainders of large integers":      {"{% set a = 7 ** 5000 %}{% set b = 3 ** 4000 %}{% for i in range(9999) %}{% for j in range(9999) %}{% set t = a % b %}{% endfor %}{% endfor %}", BoundSteps},
		"quotients of large integers":       {"{% set a = 7 ** 100 %}{% set b = 3 ** 90 %}{% for i in range(9999) %}{% for j in range(9999) %}{% set t = a / b %}{% endfor %}{% endfor %}", BoundSteps},
		"a list as JSON again and again":    {"{% set l = range(9999) | list %}{% for i in range(99999) %}{% set t = l | tojson %}{% endfor %}", BoundSteps},
		"a name beyond many scopes":         {strings.Repeat("{% with "+strings.Repeat("n", 1000)+"a=1 %}", 180) + "{% for i in range(9999) %}{{ " + strings.Repeat("n", 1000) + "b }}{% endfor %}" + strings.Repeat("{% endwith %}", 180), BoundSteps},
		"a power again and again":           {"{% for i in range(99999) %}{% set t = 3 ** 9000 %}{% endfor %}", BoundSteps},
		"a long fraction again and again":   {"{% for i in range(99999) %}{% set t = '%.1000f' % 1e300 %}{% endfor %}", BoundBytes},
		"a format of many flags":            {"{% set f = '%' ~ '-' * 999999 ~ 'd' %}{% for i in range(999) %}{% set t = f % 1 %}{% endfor %}", BoundSteps},
		"a format of a long key":            {"{% set k = 'k' * 999999 %}{% set f = '%(' ~ k ~ ')s' %}{% set d = {k: 1} %}{% for i in range(999) %}{% set t = f % d %}{% endfor %}", BoundSteps},
		"a format that ends early":          {"{% set f = '%' ~ '-' * 999999 ~ '%' %}{% for i in range(999) %}{% set t = f % () %}{% endfor %}", BoundSteps},
		"a format of many flags, reversed":  {"{% set f = '%' ~ '-' * 999999 ~ '*d' %}{% for i in range(999) %}{% set t = f % (-1, 1) %}{% endfor %}", BoundBytes},
		"a time of many flags":              {"{% set f = '%' ~ '-' * 999999 ~ 'd' %}{% for i in range(999) %}{% set t = strftime_now(f) %}{% endfor %}", BoundSteps},
		"sorting":                           {"{{ range(99999) | reverse | list | sort | sort(true) }}", BoundBytes},
	}
}

// attacksOnMemory are templates that would take much memory.
func attacksOnMemory() map[string]attack {
	return map[string]attack{
		"a huge repetition":      {"{{ 'a' * 999999999999 }}", BoundBytes},
		"a billion letters":      {"{{ 'a' * 10 ** 9 }}", BoundBytes},
		"a huge list":            {"{{ [1] * 999999999999 }}", BoundBytes},
		"doubling text":          {growing("'abcdefgh'", "{% set ns.s = ns.s ~ ns.s %}", ""), BoundBytes},
		"doubling by plus":       {growing("'abcdefgh'", "{% set ns.s = ns.s + ns.s %}", ""), BoundBytes},
		"doubling by replace":    {growing("'aaaa'", "{% set ns.s = ns.s | replace('a', 'aaaa') %}", ""), BoundBytes},
		"doubling by join":       {growing("'aaaa'", "{% set ns.s = ns.s.join([ns.s, ns.s]) %}", ""), BoundBytes},
		"doubling by format":     {growing("'aaaa'", "{% set ns.s = '{0}{0}'.format(ns.s) %}", ""), BoundBytes},
		"doubling by percent":    {growing("'aaaa'", "{% set ns.s = '%s%s' % (ns.s, ns.s) %}", ""), BoundBytes},
		"doubling by a block":    {growing("'aaaa'", "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}", ""), BoundBytes},
		"doubling by a macro":    {"{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}" + growing("'aaaa'", "{% set ns.s = f(ns.s) %}", ""), BoundBytes},
		"doubling lists":         {growing("[1, 2]", "{% set ns.s = ns.s + ns.s %}", ""), BoundBytes},
		"a growing list":         {growing("[]", "{% set ns.s = ns.s + [i] %}", ""), BoundBytes},
		"a growing dictionary":   {growing("{}", "{% set ns.s = dict(ns.s, **{'k' ~ i: i}) %}", ""), BoundBytes},
		"a dictionary of ranges": {growing("{}", "{% set ns.s = dict.fromkeys(range(99999)) %}", ""), BoundBytes},
		"lists of characters":    {"{% set s = 'a' * 9999999 %}{{ s | list | length }}", BoundBytes},
		"lines":                  {"{{ ('\n' * 9999999).splitlines() | length }}", BoundBytes},
		"words":                  {"{{ ('a ' * 4999999).split() | length }}", BoundBytes},
		"parts":                  {"{{ ('a' * 9999999).split('a') | length }}", BoundBytes},
		"padding":                {"{{ 'a'.center(99999999999) }}", BoundBytes},
		"padding with zeros":     {"{{ 'a'.zfill(99999999999) }}", BoundBytes},
		"tabs":                   {"{{ ('\t' * 999).expandtabs(999999999) }}", BoundBytes},
		"a wide format":          {"{{ '%1000000000d' % 1 }}", BoundBytes},
		"a precise format":       {"{{ '%.1000000000f' % 1 }}", BoundBytes},
		"a width that is given":  {"{{ '%*d' % (1000000000, 1) }}", BoundBytes},
		"a wide field":           {"{{ '{:1000000000}'.format(1) }}", BoundBytes},
		"a precise field":        {"{{ '{:.1000000000f}'.format(1.5) }}", BoundBytes},
		"a width in a field":     {"{{ '{:{w}}'.format(1, w=1000000000) }}", BoundBytes},
		"many wide formats":      {"{{ ('%1000000d' * 99) % ((1,) * 99) }}", BoundBytes},
		"indenting":              {"{{ ('\n' * 99999) | indent(99999) }}", BoundBytes},
		"a wide indent":          {"{{ 'a' | indent(99999999999) }}", BoundBytes},
		"a wide indent of JSON":  {"{{ [1] | tojson(indent=99999999999) }}", BoundBytes},
		"a deep indent of JSON":  {"{{ [[[[1]]]] | tojson(indent='a' * 5000000) }}", BoundBytes},
		"wide separators":        {"{{ range(9999) | list | tojson(separators=('a' * 9999, ':')) }}", BoundBytes},
		"joining":                {"{{ range(9999) | join('x' * 9999) }}", BoundBytes},
		"a format of time":       {"{{ strftime_now('%c' * 999999) }}", BoundSteps},
		"a wide field of time":   {"{{ strftime_now('%999999d' * 99) }}", BoundBytes},
	}
}

// attacksOnBounds are templates that exceed the bounds of output, depth, digits and ranges.
func attacksOnBounds() map[string]attack {
	return map[string]attack{
		// Output.
		"endless output": {"{% for i in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}", BoundOutput},
		"a long output":  {"{{ 'a' * 1048577 }}", BoundOutput},

		// Depth.
		"endless recursion":             {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", BoundDepth},
		"mutual recursion":              {"{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}", BoundDepth},
		"recursion by caller":           {"{% macro f() %}{{ caller is defined }}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}", BoundDepth},
		"recursion by a default":        {"{% macro f(a=f()) %}{% endmacro %}{{ f() }}", BoundDepth},
		"a recursive loop":              {"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", BoundDepth},
		"a deep list printed":           {growing("[1]", "{% set ns.s = [ns.s] %}", "{{ ns.s }}"), BoundDepth},
		"a deep list as JSON":           {growing("[1]", "{% set ns.s = [ns.s] %}", "{{ ns.s | tojson }}"), BoundDepth},
		"a deep dictionary as JSON":     {growing("{}", "{% set ns.s = {'a': ns.s} %}", "{{ ns.s | tojson }}"), BoundDepth},
		"a deep list compared":          {growing("[1]", "{% set ns.s = [ns.s] %}{% set ns.t = [ns.t] %}", "{{ ns.s == ns.t }}"), BoundDepth},
		"deep lists of two lengths":     {growing("[1]", "{% set ns.s = [[ns.s], 0] %}", "{{ ns.s < [ns.s] }}"), BoundDepth},
		"deep lists of two sorted":      {growing("[1]", "{% set ns.s = [[ns.s], 0] %}", "{{ [[ns.s], ns.s] | sort }}"), BoundDepth},
		"the least of deep lists":       {growing("[1]", "{% set ns.s = [[ns.s], 0] %}", "{{ [[ns.s], ns.s] | min }}"), BoundDepth},
		"a deep list ordered":           {growing("[1]", "{% set ns.s = [ns.s] %}{% set ns.t = [ns.t] %}", "{{ ns.s < ns.t }}"), BoundDepth},
		"a deep tuple as a key":         {growing("(1,)", "{% set ns.s = (ns.s,) %}", "{{ {ns.s: 1} }}"), BoundDepth},
		"a namespace that holds itself": {"{% set ns = namespace() %}{% set ns.ns = [ns] %}{{ ns }}", BoundDepth},
		"lazy filters within others":    {growing("[1]", "{% set ns.s = ns.s | map('string') %}", "{{ ns.s | list }}"), BoundDepth},
		"a long chain of sums":          {"{{ 0" + strings.Repeat(" + 1", 60_000) + " }}", BoundDepth},
		"a long chain of members":       {"{{ x" + strings.Repeat(".a", 90_000) + " }}", BoundDepth},
		"a long chain of filters":       {"{{ 1" + strings.Repeat("|abs", 90_000) + " }}", BoundDepth},

		// Digits and ranges.
		"a tower of powers":    {"{{ 9 ** (9 ** 9) }}", BoundDigits},
		"a power of a power":   {"{{ (2 ** 10000) ** 10000 }}", BoundDigits},
		"products":             {growing("9", "{% set ns.s = ns.s * ns.s %}", ""), BoundDigits},
		"sums":                 {"{% set x = 2 ** 14283 + 2 ** 14283 %}", BoundDigits},
		"differences":          {"{{ -(2 ** 14283) - 2 ** 14283 - 1 }}", BoundDigits},
		"a long range":         {"{{ range(999999999) }}", BoundRange},
		"a very long range":    {"{{ range(-2 ** 63, 2 ** 63 - 1) }}", BoundRange},
		"a range beyond":       {"{{ range(2 ** 99) }}", BoundRange},
		"a range that is used": {"{% for i in range(100001) %}{% endfor %}", BoundRange},
	}
}

// TestAttackHostileTemplatesEndWithTheirBound wants every attack to end soon, in
// little memory, with the bound that stopped it.
func TestAttackHostileTemplatesEndWithTheirBound(t *testing.T) {
	limits := Limits{Steps: 1_000_000, Bytes: 16 << 20, Output: 1 << 20}
	for name, a := range attacks() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := renderText(context.Background(), a.source, nil, limits)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			var e *Error
			if !errors.Is(err, ErrLimit) || !errors.As(err, &e) || e.Bound != a.bound {
				t.Errorf("error %v, want the bound %s", err, a.bound)
			}
			if took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			// All that was allocated, freed or not. A step may allocate a scope,
			// which is not counted in bytes.
			if made := after.TotalAlloc - before.TotalAlloc; made > 512<<20 {
				t.Errorf("it allocated %d MiB", made>>20)
			}
		})
	}
}

func TestHostileSourcesAreRefused(t *testing.T) {
	for name, a := range map[string]attack{
		"deep brackets":       {"{{ " + strings.Repeat("(", 100_000), BoundDepth},
		"deep lists":          {"{{ " + strings.Repeat("[", 90_000) + " }}", BoundDepth},
		"deep dictionaries":   {"{{ " + strings.Repeat("{1:", 60_000) + " }}", BoundDepth},
		"deep blocks":         {strings.Repeat("{% if a %}", 40_000), BoundDepth},
		"deep loops":          {strings.Repeat("{% for a in b %}", 30_000), BoundDepth},
		"deep macros":         {strings.Repeat("{% macro a() %}", 30_000), BoundDepth},
		"deep negation":       {"{{ " + strings.Repeat("not ", 100_000) + "a }}", BoundDepth},
		"deep signs":          {"{{ " + strings.Repeat("- ", 100_000) + "1 }}", BoundDepth},
		"deep conditions":     {"{{ " + strings.Repeat("1 if 1 else ", 40_000) + "1 }}", BoundDepth},
		"deep tests":          {"{{ " + strings.Repeat("a is eq(", 30_000) + " }}", BoundDepth},
		"too long":            {strings.Repeat("x", MaxSource+1), BoundSource},
		"too many words":      {"{{ [" + strings.Repeat("1,", 200_000) + "] }}", BoundSource},
		"too many tags":       {strings.Repeat("{{a}}", 100_000), BoundSource},
		"too many parameters": {"{% macro f(" + names(1001) + ") %}{% endmacro %}", BoundSource},
		"too many arguments":  {"{{ f(" + strings.ReplaceAll(names(1001), ",", "=1,") + "=1) }}", BoundSource},
		"a long integer":      {"{{ " + strings.Repeat("9", 999_999) + " }}", BoundDigits},
		"a large hexadecimal": {"{{ 0x" + strings.Repeat("f", 9_999) + " }}", BoundDigits},
		"unclosed in many":    {strings.Repeat("{{ '", 50_000), BoundDepth},
		"raw blocks unclosed": {strings.Repeat("{% raw %}{% ", 50_000), ""},
		"comments unclosed":   {strings.Repeat("{# ", 300_000), ""},
	} {
		start := time.Now()
		_, err := Parse(a.source)
		var e *Error
		if !errors.As(err, &e) || e.Bound != a.bound || a.bound == "" && e.Kind != errSyntax {
			t.Errorf("%s: %v, want the bound %q", name, err, a.bound)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}

// names lists n different ones.
func names(n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint("n", i)
	}
	return strings.Join(out, ",")
}

// A left-deep chain does not nest in the parser; it must not in the evaluator.
func TestLongChainsRender(t *testing.T) {
	source := "{{ 0" + strings.Repeat(" + 1", 20_000) + " }}"
	got, err := renderText(context.Background(), source, nil, Limits{})
	if err == nil && got != "20000" || err != nil && !errors.Is(err, errSyntax) && !errors.Is(err, ErrLimit) {
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

func TestRenderEndsWithItsContext(t *testing.T) {
	forever := Limits{Steps: 1 << 60, Bytes: 1 << 60, Output: 1 << 60}
	for _, source := range []string{
		attacks()["nested loops"].source,
		attacks()["a shared list compared"].source,
		"{% for i in range(99999) %}{% for j in range(99999) | map('abs') | select('odd') if j < 0 %}{% endfor %}{% endfor %}",
		"{% set l = range(99999) | list %}{% for i in l %}{{ l | reverse | sort | length }}{% endfor %}",
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		start := time.Now()
		_, err := renderText(ctx, source, nil, forever)
		cancel()
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 30*time.Second {
			t.Errorf("%s: %v after %v", cut(source), err, took)
		}
	}
}

// ended is over at its first look.
type ended struct {
	context.Context
	looks int
}

func (e *ended) Err() error {
	e.looks++
	return context.Canceled
}

// A step that reads a long text counts for more than one that reads a short one.
func TestRenderLooksAtItsContextAfterTheSameWorkOfAnyKind(t *testing.T) {
	many := 64 * lookEvery
	for name, work := range map[string]func(r *run) error{
		"steps":          func(r *run) error { return r.spend(lookEvery) },
		"bytes read":     func(r *run) error { return r.scan(many) },
		"bytes made":     func(r *run) error { return r.charge(many) },
		"letters":        func(r *run) error { return r.letters(strings.Repeat("ß", many)) },
		"large integers": func(r *run) error { return r.work(new(big.Int).Lsh(big.NewInt(1), uint(many))) },
	} {
		ctx := &ended{Context: t.Context()}
		r := &run{}
		r.meter = meter{ctx: ctx, steps: 1 << 40, bytes: 1 << 40}
		if err := work(r); !errors.Is(err, context.Canceled) || ctx.looks != 1 {
			t.Errorf("%s: %v after %d looks", name, err, ctx.looks)
		}
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
		if !errors.Is(err, errSyntax) || !strings.Contains(err.Error(), `"`+name+`" is not supported`) {
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

// TestAttackLargeIntegersAreComparedInPlace: a comparison is one step, however large they are.
func TestAttackLargeIntegersAreComparedInPlace(t *testing.T) {
	a := new(big.Int).Lsh(big.NewInt(1), maxBits-1)
	b := new(big.Int).Add(a, big.NewInt(1))
	if c, ordered := compareNumbers(a, b); c != -1 || !ordered {
		t.Errorf("compared as %d, %t", c, ordered)
	}
	if n := testing.AllocsPerRun(10, func() { compareNumbers(a, b) }); n != 0 {
		t.Errorf("a comparison allocates %v times", n)
	}
}

// An operation counts as many steps as it takes time: a hundred times those of the expression.
func TestAttackOperationsThatTakeLongerThanTheirSteps(t *testing.T) {
	often := func(use string) string {
		return "{% set n = 2 ** 14000 %}{% for i in range(999) %}" + use + "{% endfor %}"
	}
	for name, source := range map[string]string{
		"rounding":               often("{% set x = 1e308 | round(300) %}"),
		"large integers":         often("{% set x = n | round(-300) %}"),
		"remainders of floats":   often("{% set x = (" + strings.Repeat("1e308 % 5e-324, ", 12) + ") %}"),
		"quotients of floats":    often("{% set x = (" + strings.Repeat("1e308 // 5e-324, ", 12) + ") %}"),
		"stripping":              "{% set s = 'a' * 99999 %}{% for i in range(20) %}{% set x = s.strip('ab') %}{% endfor %}",
		"a name among many":      "{% set d = dict.fromkeys(range(3000) | map('string')) %}{{ ('{a}' * 1500).format(**dict(d, a='')) }}",
		"letters of other cases": "{% set s = 'é' * 9999 %}{% for i in range(9) %}{% set x = s.swapcase() %}{% endfor %}",
	} {
		var e *Error
		_, err := renderText(t.Context(), source, nil, Limits{Steps: 100_000})
		if !errors.As(err, &e) || e.Bound != BoundSteps {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := renderText(t.Context(), often("{% set x = i + 1 %}"), nil, Limits{Steps: 100_000}); err != nil {
		t.Error(err)
	}
}
