//go:build !race

package grammar

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

type verdicts struct {
	spec    Spec
	yes, no []string
}

func (v verdicts) check(t *testing.T) {
	t.Helper()
	tab := table(t, v.spec)
	for _, text := range v.yes {
		if !accepts(tab, text) {
			t.Errorf("%q is refused", text)
		}
	}
	for _, text := range v.no {
		if accepts(tab, text) {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestAnAnswerHasTheFormOfItsConstraint(t *testing.T) {
	for name, v := range map[string]verdicts{
		"any object": {Spec{Kind: JSONObject}, []string{`{}`, `{"a": [1, {"b": null}]}`, "{\n  \"a\": \"\\u00e9\\n\"\n}", ` {}`},
			[]string{`[]`, `1`, `{"a":}`, `{"a":1,}`, `{"a":01}`, "{\"a\":\"\n\"}", `{"a":"\ud800"}`, `{"a":"\x"}`, "{\"a\":\"\xff\"}"}},
		"choice": {Spec{Kind: Choice, Choices: []string{"yes", "no", "nothing"}}, []string{"yes", "no", "nothing"}, []string{"", "noth", "yess", "Yes"}},
		"expression": {Spec{Kind: Regex, Source: `(a|b)*c\d{2,3}(\.[^x])?`}, []string{"c12", "abbac123", "c12.y", "c12.é"},
			[]string{"c1", "c1234", "c12.x", "c12.", "xc12"}},
		"anchors": {Spec{Kind: Regex, Source: `^ab$|^c`}, []string{"ab", "c"}, []string{"abc", "a"}},
		"grammar": {Spec{Kind: EBNF, Source: "root ::= item (\",\" item)* # list\nitem ::= [a-c]{2} | \"\\\"\" [^\"\\n]+ \"\\\"\"\n"},
			[]string{"ab", `ab,cc,"x y"`}, []string{"a", "ab,", `"`, `""`, "abc"}},
		"grammar that calls itself": {Spec{Kind: EBNF, Source: `root ::= "(" root? ")"`}, []string{"()", "((()))"}, []string{"(", "(()", "())"}},
		"required and optional": {schema(`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"const":null}},"required":["b"]}`),
			[]string{`{"b":true}`, `{"a":-5,"b":false,"c":null}`, `{"b": true, "c": null}`},
			[]string{`{}`, `{"a":1}`, `{"b":true,"a":1}`, `{"b":true,"d":1}`, `{"a":1.5,"b":true}`, `{"b":1}`}},
		"other members": {schema(`{"properties":{"a":{}},"additionalProperties":{"type":"integer"},"type":"object"}`),
			[]string{`{"a":"x","b":1,"aa":2}`, `{"\"":1}`}, []string{`{"b":"x"}`, `{"b":1,"a":1}`, `{"b":1,"\u0061":"x"}`}},
		"members by pattern": {schema(`{"type":"object","patternProperties":{"^x-":{"type":"string"}},"additionalProperties":false}`),
			[]string{`{}`, `{"x-a":"b"}`}, []string{`{"x-a":1}`, `{"y":1}`}},
		"count of members": {schema(`{"type":"object","additionalProperties":{"const":1},"minProperties":1,"properties":{"a":{"const":1}}}`),
			[]string{`{"a":1}`, `{"b":1}`, `{"b":1,"c":1}`}, []string{`{}`}},
		"two at least": {schema(`{"type":"object","additionalProperties":{"const":1},"minProperties":2,"properties":{"a":{"const":1}}}`),
			[]string{`{"a":1,"b":1}`, `{"a":1,"b":1,"b":1}`}, []string{`{}`, `{"a":1}`, `{"b":1}`, `{"b":1,"b":1}`}},
		"at most one": {schema(`{"type":"object","maxProperties":1,"properties":{"a":{"const":1},"b":{"const":1}}}`), []string{`{}`, `{"a":1}`, `{"b":1}`}, []string{`{"a":1,"b":1}`}},
		"tuples":      {schema(`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}`), []string{`[]`, `[1]`, `[1,"a"]`, `[1, "a"]`}, []string{`["a"]`, `[1,"a",2]`}},
		"items":       {schema(`{"type":"array","items":{"enum":[1,"a"]},"minItems":1,"maxItems":3}`), []string{`[1]`, `[1,"a",1]`}, []string{`[]`, `[2]`, `[1,1,1,1]`}},
		"lengths": {schema(`{"type":"string","minLength":2,"maxLength":3}`), []string{`"ab"`, `"abc"`, `"éé"`, `"\u00e9\n"`, `"\ud83d\ude00😀"`},
			[]string{`"a"`, `"abcd"`, `"\ud83d\ude00"`}},
		"pattern and length":                {schema(`{"type":"string","pattern":"^a.*z$","maxLength":4}`), []string{`"az"`, `"abbz"`, `"a\"z"`}, []string{`"a"`, `"abbbz"`, `"baz"`}},
		"pattern anywhere":                  {schema(`{"type":"string","pattern":"[0-9]"}`), []string{`"a1b"`, `"1"`, `"\n1"`}, []string{`""`, `"ab"`}},
		"whole numbers":                     {schema(`{"type":"integer","minimum":-12,"exclusiveMaximum":105}`), []string{"-12", "-9", "0", "7", "99", "104"}, []string{"-13", "105", "1.0", "00", "1000"}},
		"numbers":                           {schema(`{"type":"number","minimum":-1.25,"maximum":2.5}`), []string{"-1.25", "-1.2", "0", "0.001", "2.5", "2.49999", "1", "2.50"}, []string{"-1.26", "2.51", "3", "2.500001", "-2", "1e0"}},
		"the stricter of two equal bounds":  {schema(`{"type":"integer","minimum":3,"exclusiveMinimum":3,"maximum":9,"exclusiveMaximum":9}`), []string{"4", "8"}, []string{"3", "9"}},
		"the higher minimum":                {schema(`{"type":"integer","minimum":5,"exclusiveMinimum":3,"maximum":9,"exclusiveMaximum":12}`), []string{"5", "9"}, []string{"4", "10", "11"}},
		"the higher minimum, which is last": {schema(`{"type":"integer","minimum":3,"exclusiveMinimum":5,"maximum":12,"exclusiveMaximum":9}`), []string{"6", "8"}, []string{"5", "9"}},
		"one number":                        {schema(`{"type":"number","minimum":3,"maximum":3}`), []string{"3", "3.0"}, []string{"2", "3.1", "3."}},
		"up to zero":                        {schema(`{"type":"integer","minimum":-5,"maximum":0}`), []string{"0", "-5"}, []string{"1", "-6"}},
		"below zero":                        {schema(`{"type":"number","minimum":-5,"exclusiveMaximum":0}`), []string{"-0.1", "-5"}, []string{"0", "-0", "-5.1"}},
		"whole numbers between fractions":   {schema(`{"type":"integer","minimum":1.5,"maximum":3.5}`), []string{"2", "3"}, []string{"1", "4"}},
		"numbers without their bounds": {schema(`{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1}`),
			[]string{"0.5", "0.0001", "0.999"}, []string{"0", "1", "0.0", "1.0", "0.00"}},
		"all of": {schema(`{"allOf":[{"type":"object","properties":{"a":{"type":"number"}},"required":["a"]},{"properties":{"a":{"minimum":5,"type":"integer"},"b":{"type":"null"}}}]}`),
			[]string{`{"a":5}`, `{"a":7,"b":null}`}, []string{`{"a":4}`, `{"a":5.5}`, `{"b":null}`}},
		"any of": {schema(`{"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]}`), []string{"5", `"a"`}, []string{`"ab"`, "null"}},
		"one of, told apart": {schema(`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k","v"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]}`),
			[]string{`{"k":"a","v":1}`, `{"k":"b"}`}, []string{`{"k":"a"}`, `{"k":"c"}`}},
		"a tree": {schema(`{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}}}`),
			[]string{`{"v":1,"next":null}`, `{"v":1,"next":{"v":2,"next":null}}`}, []string{`{"v":1}`, `{"v":1,"next":{}}`}},
		"enum within strict bounds": {schema(`{"enum":[1,2,3],"exclusiveMinimum":1,"exclusiveMaximum":3}`), []string{"2"}, []string{"1", "3"}},
		"enum up to its bounds":     {schema(`{"enum":[0,1,2,3,4],"minimum":1,"maximum":3}`), []string{"1", "2", "3"}, []string{"0", "4"}},
		"enum within bounds": {schema(`{"enum":[1,2,"x",null,[1],{"a":2}],"type":["integer","array","object"],"minimum":2}`),
			[]string{"2", "[1]", `{"a":2}`}, []string{"1", `"x"`, "null"}},
		"a leap day":  {schema(`{"type":"string","format":"date"}`), []string{`"2024-02-29"`, `"1999-12-31"`}, []string{`"2023-02-29"`, `"1900-02-29"`, `"2024-13-01"`, `"2024-04-31"`}},
		"true":        {schema(`true`), []string{"1", "null", `"a"`, "[]", "{}"}, []string{"x", ""}},
		"nested text": {schema(`{"type":"array","items":{"type":"string"}}`), []string{`["a\\","]"]`}, []string{`["a\"]`}},
	} {
		t.Run(name, func(t *testing.T) { v.check(t) })
	}
}

func TestWhatCannotBeEnforcedIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		kind error
		say  string
	}{
		"not":                   {schema(`{"not":{"type":"string"}}`), errUnsupported, `"not"`},
		"unique items":          {schema(`{"type":"array","uniqueItems":true}`), errUnsupported, `"uniqueItems"`},
		"multiples":             {schema(`{"type":"integer","multipleOf":3}`), errUnsupported, `"multipleOf"`},
		"an unknown format":     {schema(`{"type":"string","format":"color"}`), errUnsupported, `"format"`},
		"an unknown keyword":    {schema(`{"type":"object","properties":{"a":{"typ":"string"}}}`), errUnsupported, `"typ"`},
		"overlapping one of":    {schema(`{"oneOf":[{"type":"integer"},{"type":"number"}]}`), errUnsupported, `"oneOf"`},
		"a reference elsewhere": {schema(`{"$ref":"http://x/y"}`), errUnsupported, `"$ref"`},
		"a reference to naught": {schema(`{"$ref":"#/$defs/a"}`), ErrInvalid, `"$ref"`},
		"a circle":              {schema(`{"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}}}`), errUnsupported, `"$ref"`},
		"nothing satisfies":     {schema(`{"allOf":[{"type":"string"},{"type":"integer"}]}`), ErrInvalid, "cannot be satisfied"},
		"endless":               {schema(`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`), ErrInvalid, "cannot be satisfied"},
		"no schema":             {schema(`5`), ErrInvalid, "an object, true or false"},
		"no JSON":               {schema(`{`), ErrInvalid, "not JSON"},
		"members twice":         {schema(`{"type":"string","type":"integer"}`), ErrInvalid, "duplicate"},
		"too many alternatives": {schema(`{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"anyOf":[{"maxLength":1},{"maxLength":2},{"maxLength":3},{"maxLength":4}]},`, 8), ",") + `]}`), errLimit, "too large"},
		"too long":              {schema(`{"maxLength":250000,"type":"string"}`), errLimit, "too large"},
		"a backreference":       {Spec{Kind: Regex, Source: `(a)\1`}, errUnsupported, `\1`},
		"look-ahead":            {Spec{Kind: Regex, Source: `(?=a)b`}, errUnsupported, "(?="},
		"word boundary":         {Spec{Kind: Regex, Source: `a\b`}, errUnsupported, `\b`},
		"an open class":         {Spec{Kind: Regex, Source: `[a`}, errUnsupported, "not closed"},
		"an open group":         {Spec{Kind: Regex, Source: `(a`}, ErrInvalid, "missing closing"},
		"hostile repetition":    {Spec{Kind: Regex, Source: `((a{0,100}){0,100}){0,100}`}, errLimit, "1000"},
		"hostile states":        {Spec{Kind: Regex, Source: `(a|b)*a(a|b){14}`}, errLimit, "too large"},
		"left recursion":        {Spec{Kind: EBNF, Source: `root ::= root "a" | "b"`}, errUnsupported, "begins with itself"},
		"hidden left recursion": {Spec{Kind: EBNF, Source: "root ::= x? y\nx ::= \"a\"\ny ::= root \"b\" | \"c\""}, errUnsupported, "begins with itself"},
		"an undefined rule":     {Spec{Kind: EBNF, Source: `root ::= other`}, ErrInvalid, "other"},
		"no root":               {Spec{Kind: EBNF, Source: `rot ::= "a"`}, ErrInvalid, "root"},
		"a rule without end":    {Spec{Kind: EBNF, Source: `root ::= "a" root`}, ErrInvalid, "cannot be satisfied"},
		"no choice":             {Spec{Kind: Choice}, ErrInvalid, "choice"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(t.Context(), c.spec)
			var typed *Error
			if !errors.As(err, &typed) || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%v, want %v that says %s", err, c.kind, c.say)
			}
		})
	}
}

// write lets a model that answers at random write an answer: it draws among what
// the mask allows, and ends now and then where it may.
func write(t *testing.T, tab *Table, tokens [][]byte, rng *rand.Rand, most int) string {
	t.Helper()
	m := tab.Match(false)
	var out []byte
	for n := 0; ; n++ {
		if m.Ended() || m.Accepting() && (rng.IntN(3) == 0 || n > most) {
			return string(out)
		}
		if n > 100*most {
			t.Fatalf("no end in sight after %.200q", out)
		}
		mask, err := m.Mask(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var may []int32
		for id := range int32(len(tokens)) {
			if Allows(mask, id) {
				may = append(may, id)
			}
		}
		if len(may) == 0 {
			t.Fatalf("nothing may follow %q, which is no end", out)
		}
		id := may[rng.IntN(len(may))]
		if n > most { // hurry: what ends things comes first
			for _, c := range []byte(`"}],:e0nltrufas`) {
				if Allows(mask, int32(c)) {
					id = int32(c)
					break
				}
			}
		}
		if !m.Advance(tokens[id]) {
			t.Fatalf("the mask allows %q after %q, the matcher does not", tokens[id], out)
		}
		out = append(out, tokens[id]...)
	}
}

func TestTheMaskIsWhatTheMatcherTakes(t *testing.T) {
	v, tokens := bytesAlone(append([]string{"<call>", "call>", "calm", "cat", "<f=", "f=g", "f>", "</p>", "p=s", "/p>x", "<", "\ufdd0"}, words...)...)
	free := func(c *Calls) { c.Free, c.Sloppy = true, true }
	for _, spec := range []Spec{
		{Kind: JSONObject},
		schema(`{"type":"object","properties":{"a":{"type":"string","maxLength":5},"b":{"type":"array","items":{"type":"number","minimum":0.5,"maximum":12.5}}},"required":["a","b"]}`),
		schema(`{"type":"string","pattern":"^[a-z ]{3,40}$"}`),
		{Kind: Regex, Source: `[^x]{20}|(the ?)*`},
		{Kind: Regex, Source: `日?.{0,3}`},
		{Kind: Regex, Source: `[a-m].{2}|[^a-m].{9}`},
		called(func(*Calls) {}), called(free), tagged(func(*Calls) {}), tagged(free),
	} {
		g, err := Compile(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		tab := NewTable(g, v)
		rng := rand.New(rand.NewPCG(1, 2))
		for range 30 {
			m := tab.Match(false)
			for range 40 {
				mask, err := m.Mask(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var may []int32
				for id, text := range tokens {
					trial := m
					if taken := trial.Advance(text); taken != Allows(mask, int32(id)) {
						t.Fatalf("%v: token %q is allowed by the mask: %v", spec, text, !taken)
					} else if taken {
						may = append(may, int32(id))
					}
				}
				if len(may) == 0 {
					break
				}
				m.Advance(tokens[may[rng.IntN(len(may))]])
			}
		}
	}
}

func TestARandomAnswerEndsAndHoldsWhatItsSchemaWants(t *testing.T) {
	v, tokens := bytesAlone(words...)
	for _, source := range []string{
		`{"type":"object"}`,
		`{"type":"array","items":{"$ref":"#"},"maxItems":3}`,
		`{"type":"object","properties":{"n":{"type":"integer","minimum":3,"maximum":1234},"s":{"type":"string","minLength":1,"maxLength":9},"t":{"$ref":"#"}},"required":["n"],"additionalProperties":{"type":"boolean"}}`,
	} {
		g, err := Compile(t.Context(), schema(source))
		if err != nil {
			t.Fatal(err)
		}
		tab := NewTable(g, v)
		for seed := range uint64(60) {
			text := write(t, tab, tokens, rand.New(rand.NewPCG(seed, 1)), 60)
			if !accepts(tab, text) {
				t.Errorf("%s: %q", source, text)
			}
			v, err := parseValue(text)
			if err != nil && !strings.Contains(err.Error(), "duplicate") && !strings.Contains(err.Error(), "levels deep") {
				t.Errorf("%s: %q: %v", source, text, err)
			} else if ok, err := satisfied(source, v); v != nil && (err != nil || !ok) {
				t.Errorf("%s: %q: %v", source, text, err)
			}
		}
	}
}

func satisfied(source string, v value) (bool, error) {
	root, err := parseValue(source)
	if err != nil {
		return false, err
	}
	s := &schemas{b: newBuilder(newMeter(context.Background(), nil, nil)), root: root, rules: map[string]ref{}, patterns: map[string]*regular{}, enums: map[*value]map[string]bool{}, items: map[string]itemSchemas{}}
	return s.satisfiesGoal(v, goal{{root, ""}})
}

func TestNestingEndsBeforeItIsTooDeepAndNeverInADeadEnd(t *testing.T) {
	tab := table(t, Spec{Kind: JSONObject})
	m := tab.Match(false)
	m.Advance([]byte(`{"a":`))
	depth := 0
	for m.Advance([]byte("[")) {
		if depth++; depth > 2*maxDepth {
			t.Fatal("arrays nest without end")
		}
	}
	if depth < 50 {
		t.Errorf("only %d arrays in one another", depth)
	}
	for range depth {
		if !m.Advance([]byte("]")) {
			t.Fatal("what was opened cannot be closed")
		}
	}
	if !m.Advance([]byte("}")) || !m.Accepting() || !m.Ended() {
		t.Error("the object does not end")
	}
}

// The innermost takes calls of its own here.
func TestNestingEndsBeforeItIsTooDeepToBeClosedByCalls(t *testing.T) {
	tab := table(t, Spec{Kind: EBNF, Source: "root ::= \"(\" root \")\" | a\na ::= b \"x\"\nb ::= c \"y\"\nc ::= \"z\""})
	m := tab.Match(false)
	depth := 0
	for m.Advance([]byte("(")) {
		if depth++; depth > 2*maxDepth {
			t.Fatal("it nests without end")
		}
	}
	if !m.Advance([]byte("zyx" + strings.Repeat(")", depth))) {
		t.Fatalf("what was opened %d deep cannot be ended", depth)
	}
	if depth < 50 || !m.Accepting() {
		t.Errorf("%d deep, at its end: %v", depth, m.Accepting())
	}
}

func TestBehindReasoningBlankLinesMayComeFirst(t *testing.T) {
	tab := table(t, Spec{Kind: Choice, Choices: []string{"a"}})
	for text, afterReasoning := range map[string]bool{"\n\na": true, "a": true} {
		m := tab.Match(afterReasoning)
		if !m.Advance([]byte(text)) || !m.Accepting() {
			t.Errorf("%q is refused after reasoning", text)
		}
	}
	if m := tab.Match(false); m.Advance([]byte("\n")) {
		t.Error("a blank line comes first where nothing was thought")
	}
}

func TestARefusedTokenLeavesTheMatcherWhereItWas(t *testing.T) {
	tab := table(t, Spec{Kind: Choice, Choices: []string{"abc"}})
	m := tab.Match(false)
	m.Advance([]byte("a"))
	if m.Advance([]byte("bx")) {
		t.Fatal("bx is taken")
	}
	if !m.Advance([]byte("bc")) || !m.Ended() {
		t.Error("the matcher went on with half a token")
	}
}

func TestStatesAreForgottenWhereTheyTakeTooMuchAndFoundAgain(t *testing.T) {
	tab := table(t, schema(`{"type":"array","items":{"type":"string","maxLength":5000}}`))
	held := tab.Match(false)
	held.Advance([]byte(`["ab`))
	m := tab.Match(false)
	m.Advance([]byte(`["`))
	for range 3 {
		for range 4000 {
			if !m.Advance([]byte("x")) {
				t.Fatal("refused")
			}
		}
		if _, err := m.Mask(t.Context()); err != nil {
			t.Fatal(err)
		}
		tab.held <- struct{}{}
		tab.bytes.Store(tableBytes + 1)
		<-tab.held
		if !m.Advance([]byte(`","`)) {
			t.Fatal("refused after forgetting")
		}
		if n := len(tab.states); n > 2000 {
			t.Errorf("%d states are kept", n)
		}
	}
	if !held.Advance([]byte(`cd"]`)) || !held.Accepting() {
		t.Error("a matcher from before lost its way")
	}
}

func TestAGrammarOfTooManyReadingsEndsInAnErrorNotAHang(t *testing.T) {
	g, err := Compile(t.Context(), Spec{Kind: EBNF, Source: "root ::= \"(\" a\na ::= \"x\" a b | \"x\" b a | \"y\"\nb ::= \"x\" b | \"x\" a b | \"x\" b b | \"x\""})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := bytesAlone()
	tab := NewTable(g, v)
	m := tab.Match(false)
	m.Advance([]byte("("))
	for range 200 {
		if !m.Advance([]byte("x")) {
			return
		}
		if n := len(m.s.items); n > maxItems {
			t.Fatalf("a state has %d items", n)
		}
		if _, err := m.Mask(t.Context()); err != nil {
			return
		}
	}
	if n := tab.Bytes(); n > 2*mostBytes {
		t.Errorf("%d bytes", n)
	}
}

func TestATokenWithoutTextOrOutsideOfTheVocabularyNeverComes(t *testing.T) {
	texts := []string{"1", "", "2"}
	v := NewVocabulary(len(texts), func(id int32) []byte { return []byte(texts[id]) })
	g, err := Compile(t.Context(), schema(`{"type":"integer"}`))
	if err != nil {
		t.Fatal(err)
	}
	m := NewTable(g, v).Match(false)
	mask, err := m.Mask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int32]bool{-1: false, 0: true, 1: false, 2: true, 64: false} {
		if Allows(mask, id) != want {
			t.Errorf("token %d is allowed: %v", id, !want)
		}
	}
}
