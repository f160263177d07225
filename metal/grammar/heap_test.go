//go:build !race

package grammar

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/share"
)

// weighs measures the memory in use at some of its looks at a context.
type weighs struct {
	context.Context
	m           *meter
	looks, each int
	base        int64
	// over is the most that was in use beyond what was counted, and live the most in use.
	over, live int64
}

func (w *weighs) Err() error {
	if w.looks++; w.looks%w.each == 0 {
		live := heap() - w.base
		w.live = max(w.live, live)
		w.over = max(w.over, live-w.m.held)
	}
	return w.Context.Err()
}

// nestedCases is a schema of an empty list in lists, where each has cases of objects.
func nestedCases(cases, objects, depth int) Spec {
	r := `{"items":{"$ref":"#/$defs/r"},"allOf":[` + listed(`{"minItems":0}`, objects) + `,{"anyOf":[` + listed("{}", cases) + `]}]}`
	return schema(`{"allOf":[{"$ref":"#/$defs/r"},{"const":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}],"$defs":{"r":` + r + `}}`)
}

// TestCompilingCountsTheMemoryThatItTakes: what a compilation counts is at least what it holds.
func TestCompilingCountsTheMemoryThatItTakes(t *testing.T) {
	const looks, slack = 6, 1 << 20
	for name, s := range map[string]Spec{
		"functions":           tools(50),
		"functions in JSON":   jsonTools(50),
		"a text":              {Kind: EBNF, Source: `root ::= "` + strings.Repeat("a", 120_000) + `"`},
		"characters":          {Kind: EBNF, Source: `root ::= ` + strings.Repeat(".", 120_000)},
		"rules":               {Kind: EBNF, Source: emptyChain(5000)},
		"items":               schema(`{"allOf":[` + listed(`{"items":{}}`, 60) + `],"prefixItems":[` + listed("{}", 60_000) + `]}`),
		"patterns":            schema(patterns(1500, "%d")),
		"references":          schema(references(10_900)),
		"values":              schema(listOf(10_000)),
		"states of a pattern": {Kind: Regex, Source: `(a|b)*a(a|b){11}c`},
		"classes of letters":  {Kind: Regex, Source: strings.Repeat(`\W`, 1000)},
		"a long parameter":    taggedCall("f", strings.Repeat("\n<parameter=", 4000)),
		"many functions":      manyFirst(1000),
		"values in values":    nestedCases(255, 8, 120),
	} {
		_, work, _ := compiled(t.Context(), s)
		w := &weighs{Context: t.Context(), each: 1 + int(work/sliceWork/looks), base: heap()}
		w.m = newMeter(w, nil)
		if _, err := compile(w.m, s); err != nil && !errors.Is(err, errLimit) {
			t.Errorf("%s: %v", name, err)
		}
		if t.Logf("%s: %d KiB at most", name, w.live>>10); w.over > slack {
			t.Errorf("%s: %d KiB are in use that are not counted", name, w.over>>10)
		}
	}
	for _, source := range []string{listed(`{"a":1}`, 30_000), listed(`{}`, 80_000), listed(`1`, 120_000), listed(`"ab"`, 50_000), listed(`[]`, 80_000), `{` + listedNames(20_000) + `}`} {
		m, before := newMeter(t.Context(), nil), heap()
		v, err := parseValue(m, "["+source+"]")
		if live := heap() - before; err != nil || live > m.held+slack {
			t.Errorf("JSON of %.9s: %d KiB, and %d are counted (%v)", source, live>>10, m.held>>10, err)
		}
		runtime.KeepAlive(v)
	}
}

// TestAttackASourceIsCompiledToManyTimesItsBytes: what a constraint allocates while it is
// compiled does not depend on how long its names are, and what is kept of it is bounded.
func TestAttackASourceIsCompiledToManyTimesItsBytes(t *testing.T) {
	long := strings.Repeat("~", 60<<10)
	under := func(keyword string, n int) Spec {
		return schema(`{"$ref":"#/$defs/` + long + `","$defs":{"` + long + `":{"` + keyword + `":[` + listed(`{}`, n) + `]}}}`)
	}
	for _, c := range []struct {
		name string
		spec Spec
		most uint64 // MiB
	}{
		{"alternatives under a long name", under("anyOf", 12_000), 32},
		{"items under a long name", under("prefixItems", 12_000), 96},
		{"members under a long name", schema(`{"$ref":"#/$defs/` + long + `","$defs":{"` + long + `":` + patterns(1500, "%d") + `}}`), 160},
		{"texts of many cases", schema(`{"anyOf":[` + listed(`{"$ref":"#/$defs/a"}`, 256) + `],"$defs":{"a":{"enum":["` + strings.Repeat("a", 190_000) + `"]}}}`), 96},
		{"items of many schemas", schema(`{"allOf":[` + listed(`{"items":{}}`, 60) + `],"prefixItems":[` + listed("{}", 60_000) + `]}`), 384},
		{"many classes of letters", Spec{Kind: Regex, Source: strings.Repeat(`\W`, 8000)}, 32},
		{"classes of letters", Spec{Kind: Regex, Source: strings.Repeat(`\W{1000}`, 8)}, 96},
		{"classes of letters that may be left out", Spec{Kind: Regex, Source: strings.Repeat(`(?:[\p{C}\p{Ll}\p{Mn}\p{Ps}\p{Po}\p{Sm}\p{Sk}\p{Nl}\p{Pf}]?){1000}`, 5)}, 64},
		{"long numbers in lists", schema(`{"enum":[` + strings.Repeat("[", 100) + listed("1e399", 3000) + strings.Repeat("]", 100) + `]}`), 64},
		{"references in a row", schema(references(10_900)), 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			allocated(t, c.spec, c.most)
		})
	}
}

// numbers is a schema that lists numbers of many digits next to 64 of another schema.
func numbers(format, number, other string) Spec {
	all := make([]string, 250)
	for i := range all {
		all[i] = fmt.Sprintf(number, i+1, strings.Repeat("7", 900))
	}
	return schema(fmt.Sprintf(format, strings.Join(all, ","), listed(other, 64)))
}

func TestAttackAConstraintOverTheBudgetOfCompilingIsRefused(t *testing.T) {
	for name, s := range map[string]Spec{
		"optional characters":      {Kind: Regex, Source: strings.Repeat(".?", 3500)},
		"letters and digits":       {Kind: Regex, Source: strings.Repeat(`[\w\d ]?`, 1000)},
		"types of listed values":   schema(`{"type":[` + listed(`"null"`, 2000) + `],"enum":[` + listed("1", 10_000) + `]}`),
		"fractions, all are whole": numbers(`{"enum":[%s],"anyOf":[%s]}`, "%d.%s1e-400", `{"type":"integer"}`),
		"fractions in members":     numbers(`{"enum":[%s],"items":{"anyOf":[%s]}}`, `[{"a":%d.%s1e-400}]`, `{"const":{"a":1}}`),
		"one pattern of a schema":  schema(patterns(1, "^"+strings.Repeat(".?", 1300)+"%d$")),
		"many patterns":            schema(patterns(2000, "^(a|b)*a(a|b){11}c%d")),
		"patterns in alternatives": schema(`{"anyOf":[` + strings.TrimSuffix(strings.Repeat(`{"type":"string","pattern":"(a|b)*a(a|b){9}c","minLength":3000},`, 200), ",") + `]}`),
	} {
		t.Run(name, func(t *testing.T) {
			_, work, err := compiled(t.Context(), s)
			if !errors.Is(err, errLimit) || !strings.Contains(err.Error(), "simplify it") {
				t.Errorf("error %v, want one of %v with a next step", err, errLimit)
			}
			if most := int64(compileWork + 10*sliceWork); work > most {
				t.Errorf("%d units of work, want at most %d", work, most)
			}
		})
	}
}

// The states and masks of all constraints in use have a bound together, also where each needs
// more for one token, and the masks are those of a table alone.
func TestStatesOfConstraintsInUseHaveABound(t *testing.T) {
	v, tokens := vocabularyOf(20_000)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<20)
	c.used = share.NewBytes(1 << 30)
	const n = 24
	most, waited := int64(0), false
	for i := range n {
		s := Spec{Kind: EBNF, Source: fmt.Sprintf(`root ::= [a-z ]* "e" [a-z ]{10} # %d`, i)}
		table, release, err := c.Table(t.Context(), "a", s)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		if i == n-1 { // the others leave nothing
			c.tenants["a"].use(statesBytes)
			defer c.tenants["a"].use(-statesBytes)
		}
		m, alone := table.Match(false), NewTable(table.g, v).Match(false)
		for _, text := range []string{"e", "een", " the"} {
			for _, m := range []*Matcher{&m, &alone} {
				if ok, err := m.Follow(t.Context(), []byte(text)); !ok || err != nil {
					t.Fatalf("%q: %v, %v", text, ok, err)
				}
			}
			got, err := m.Mask(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want, err := alone.Mask(t.Context())
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("constraint %d has another mask after %q (%v)", i, text, err)
			}
			waited = waited || alone.t.bytes.Load() > leastBytes
			if most = max(most, table.bytes.Load()); i == n-1 && table.bytes.Load() > leastBytes {
				t.Errorf("a table keeps %d bytes where others leave none", table.bytes.Load())
			}
		}
	}
	if !waited {
		t.Error("no mask needed a heavy place")
	}
	if limit := int64(statesBytes/2 + n*leastBytes); c.states.Load()-statesBytes > limit {
		t.Errorf("the states of a tenant take %d bytes, want at most %d", c.states.Load()-statesBytes, limit)
	}
	t.Logf("a table has %d KiB at most", most>>10)
}
