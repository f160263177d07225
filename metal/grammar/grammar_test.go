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
		"any object": {spec: Spec{Kind: JSONObject}, yes: []string{`{}`, `{"a": [1, {"b": null}]}`, "{\n  \"a\": \"\\u00e9\\n\"\n}", ` {}`},
			no: []string{`[]`, `1`, `{"a":}`, `{"a":1,}`, `{"a":01}`, "{\"a\":\"\n\"}", `{"a":"\ud800"}`, `{"a":"\x"}`, "{\"a\":\"\xff\"}"}},
		"choice": {spec: Spec{Kind: Choice, Choices: []string{"yes", "no", "nothing"}}, yes: []string{"yes", "no", "nothing"}, no: []string{"", "noth", "yess", "Yes"}},
		"expression": {spec: Spec{Kind: Regex, Source: `(a|b)*c\d{2,3}(\.[^x])?`}, yes: []string{"c12", "abbac123", "c12.y", "c12.é"},
			no: []string{"c1", "c1234", "c12.x", "c12.", "xc12"}},
		"anchors": {spec: Spec{Kind: Regex, Source: `^ab$|^c`}, yes: []string{"ab", "c"}, no: []string{"abc", "a"}},
		"grammar": {spec: Spec{Kind: EBNF, Source: "root ::= item (\",\" item)* # list\nitem ::= [a-c]{2} | \"\\\"\" [^\"\\n]+ \"\\\"\"\n"},
			yes: []string{"ab", `ab,cc,"x y"`}, no: []string{"a", "ab,", `"`, `""`, "abc"}},
		"grammar that calls itself": {spec: Spec{Kind: EBNF, Source: `root ::= "(" root? ")"`}, yes: []string{"()", "((()))"}, no: []string{"(", "(()", "())"}},
		"required and optional": {spec: schema(`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"const":null}},"required":["b"]}`),
			yes: []string{`{"b":true}`, `{"a":-5,"b":false,"c":null}`, `{"b": true, "c": null}`},
			no:  []string{`{}`, `{"a":1}`, `{"b":true,"a":1}`, `{"b":true,"d":1}`, `{"a":1.5,"b":true}`, `{"b":1}`}},
		"other members": {spec: schema(`{"properties":{"a":{}},"additionalProperties":{"type":"integer"},"type":"object"}`),
			yes: []string{`{"a":"x","b":1,"aa":2}`, `{"\"":1}`}, no: []string{`{"b":"x"}`, `{"b":1,"a":1}`, `{"b":1,"\u0061":"x"}`}},
		"members by pattern": {spec: schema(`{"type":"object","patternProperties":{"^x-":{"type":"string"}},"additionalProperties":false}`),
			yes: []string{`{}`, `{"x-a":"b"}`}, no: []string{`{"x-a":1}`, `{"y":1}`}},
		"count of members": {spec: schema(`{"type":"object","additionalProperties":{"const":1},"minProperties":1,"properties":{"a":{"const":1}}}`),
			yes: []string{`{"a":1}`, `{"b":1}`, `{"b":1,"c":1}`}, no: []string{`{}`}},
		"two at least": {spec: schema(`{"type":"object","additionalProperties":{"const":1},"minProperties":2,"properties":{"a":{"const":1}}}`),
			yes: []string{`{"a":1,"b":1}`, `{"a":1,"b":1,"b":1}`}, no: []string{`{}`, `{"a":1}`, `{"b":1}`, `{"b":1,"b":1}`}},
		"at most one": {spec: schema(`{"type":"object","maxProperties":1,"properties":{"a":{"const":1},"b":{"const":1}}}`), yes: []string{`{}`, `{"a":1}`, `{"b":1}`}, no: []string{`{"a":1,"b":1}`}},
		"tuples":      {spec: schema(`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}`), yes: []string{`[]`, `[1]`, `[1,"a"]`, `[1, "a"]`}, no: []string{`["a"]`, `[1,"a",2]`}},
		"items":       {spec: schema(`{"type":"array","items":{"enum":[1,"a"]},"minItems":1,"maxItems":3}`), yes: []string{`[1]`, `[1,"a",1]`}, no: []string{`[]`, `[2]`, `[1,1,1,1]`}},
		"lengths": {spec: schema(`{"type":"string","minLength":2,"maxLength":3}`), yes: []string{`"ab"`, `"abc"`, `"éé"`, `"\u00e9\n"`, `"\ud83d\ude00😀"`},
			no: []string{`"a"`, `"abcd"`, `"\ud83d\ude00"`}},
		"pattern and length":                {spec: schema(`{"type":"string","pattern":"^a.*z$","maxLength":4}`), yes: []string{`"az"`, `"abbz"`, `"a\"z"`}, no: []string{`"a"`, `"abbbz"`, `"baz"`}},
		"pattern anywhere":                  {spec: schema(`{"type":"string","pattern":"[0-9]"}`), yes: []string{`"a1b"`, `"1"`, `"\n1"`}, no: []string{`""`, `"ab"`}},
		"whole numbers":                     {spec: schema(`{"type":"integer","minimum":-12,"exclusiveMaximum":105}`), yes: []string{"-12", "-9", "0", "7", "99", "104"}, no: []string{"-13", "105", "1.0", "00", "1000"}},
		"numbers":                           {spec: schema(`{"type":"number","minimum":-1.25,"maximum":2.5}`), yes: []string{"-1.25", "-1.2", "0", "0.001", "2.5", "2.49999", "1", "2.50"}, no: []string{"-1.26", "2.51", "3", "2.500001", "-2", "1e0"}},
		"the stricter of two equal bounds":  {spec: schema(`{"type":"integer","minimum":3,"exclusiveMinimum":3,"maximum":9,"exclusiveMaximum":9}`), yes: []string{"4", "8"}, no: []string{"3", "9"}},
		"equal bounds in all of":            {spec: schema(`{"allOf":[{"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":9},{"minimum":3,"maximum":9}]}`), yes: []string{"4", "8"}, no: []string{"3", "9"}},
		"a bound of forty digits":           {spec: schema(`{"type":"integer","minimum":1` + strings.Repeat("0", 39) + `}`), yes: []string{"1" + strings.Repeat("0", 39)}, no: []string{strings.Repeat("9", 39)}},
		"the higher minimum":                {spec: schema(`{"type":"integer","minimum":5,"exclusiveMinimum":3,"maximum":9,"exclusiveMaximum":12}`), yes: []string{"5", "9"}, no: []string{"4", "10", "11"}},
		"the higher minimum, which is last": {spec: schema(`{"type":"integer","minimum":3,"exclusiveMinimum":5,"maximum":12,"exclusiveMaximum":9}`), yes: []string{"6", "8"}, no: []string{"5", "9"}},
		"one number":                        {spec: schema(`{"type":"number","minimum":3,"maximum":3}`), yes: []string{"3", "3.0"}, no: []string{"2", "3.1", "3."}},
		"up to zero":                        {spec: schema(`{"type":"integer","minimum":-5,"maximum":0}`), yes: []string{"0", "-5"}, no: []string{"1", "-6"}},
		"below zero":                        {spec: schema(`{"type":"number","minimum":-5,"exclusiveMaximum":0}`), yes: []string{"-0.1", "-5"}, no: []string{"0", "-0", "-5.1"}},
		"whole numbers between fractions":   {spec: schema(`{"type":"integer","minimum":1.5,"maximum":3.5}`), yes: []string{"2", "3"}, no: []string{"1", "4"}},
		"numbers without their bounds": {spec: schema(`{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1}`),
			yes: []string{"0.5", "0.0001", "0.999"}, no: []string{"0", "1", "0.0", "1.0", "0.00"}},
		"all of": {spec: schema(`{"allOf":[{"type":"object","properties":{"a":{"type":"number"}},"required":["a"]},{"properties":{"a":{"minimum":5,"type":"integer"},"b":{"type":"null"}}}]}`),
			yes: []string{`{"a":5}`, `{"a":7,"b":null}`}, no: []string{`{"a":4}`, `{"a":5.5}`, `{"b":null}`}},
		"any of": {spec: schema(`{"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]}`), yes: []string{"5", `"a"`}, no: []string{`"ab"`, "null"}},
		"one of, told apart": {spec: schema(`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k","v"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]}`),
			yes: []string{`{"k":"a","v":1}`, `{"k":"b"}`}, no: []string{`{"k":"a"}`, `{"k":"c"}`}},
		"a tree": {spec: schema(`{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}}}`),
			yes: []string{`{"v":1,"next":null}`, `{"v":1,"next":{"v":2,"next":null}}`}, no: []string{`{"v":1}`, `{"v":1,"next":{}}`}},
		"enum within strict bounds": {spec: schema(`{"enum":[1,2,3],"exclusiveMinimum":1,"exclusiveMaximum":3}`), yes: []string{"2"}, no: []string{"1", "3"}},
		"enum up to its bounds":     {spec: schema(`{"enum":[0,1,2,3,4],"minimum":1,"maximum":3}`), yes: []string{"1", "2", "3"}, no: []string{"0", "4"}},
		"enum within bounds": {spec: schema(`{"enum":[1,2,"x",null,[1],{"a":2}],"type":["integer","array","object"],"minimum":2}`),
			yes: []string{"2", "[1]", `{"a":2}`}, no: []string{"1", `"x"`, "null"}},
		"a leap day":  {spec: schema(`{"type":"string","format":"date"}`), yes: []string{`"2024-02-29"`, `"1999-12-31"`}, no: []string{`"2023-02-29"`, `"1900-02-29"`, `"2024-13-01"`, `"2024-04-31"`}},
		"true":        {spec: schema(`true`), yes: []string{"1", "null", `"a"`, "[]", "{}"}, no: []string{"x", ""}},
		"nested text": {spec: schema(`{"type":"array","items":{"type":"string"}}`), yes: []string{`["a\\","]"]`}, no: []string{`["a\"]`}},
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
		"not":                    {spec: schema(`{"not":{"type":"string"}}`), kind: errUnsupported, say: `"not"`},
		"unique items":           {spec: schema(`{"type":"array","uniqueItems":true}`), kind: errUnsupported, say: `"uniqueItems"`},
		"multiples":              {spec: schema(`{"type":"integer","multipleOf":3}`), kind: errUnsupported, say: `"multipleOf"`},
		"an unknown format":      {spec: schema(`{"type":"string","format":"color"}`), kind: errUnsupported, say: `"format"`},
		"an unknown keyword":     {spec: schema(`{"type":"object","properties":{"a":{"typ":"string"}}}`), kind: errUnsupported, say: `"typ"`},
		"overlapping one of":     {spec: schema(`{"oneOf":[{"type":"integer"},{"type":"number"}]}`), kind: errUnsupported, say: `"oneOf"`},
		"a reference elsewhere":  {spec: schema(`{"$ref":"http://x/y"}`), kind: errUnsupported, say: `"$ref"`},
		"a reference to naught":  {spec: schema(`{"$ref":"#/$defs/a"}`), kind: ErrInvalid, say: `"$ref"`},
		"a circle":               {spec: schema(`{"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}}}`), kind: errUnsupported, say: `"$ref"`},
		"nothing satisfies":      {spec: schema(`{"allOf":[{"type":"string"},{"type":"integer"}]}`), kind: ErrInvalid, say: "cannot be satisfied"},
		"endless":                {spec: schema(`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`), kind: ErrInvalid, say: "cannot be satisfied"},
		"no number between":      {spec: schema(`{"type":"number","minimum":3,"exclusiveMaximum":3}`), kind: ErrInvalid, say: "cannot be satisfied"},
		"bounds that cross":      {spec: schema(`{"type":"number","minimum":3.5,"maximum":2.5}`), kind: ErrInvalid, say: "cannot be satisfied"},
		"a bound of many digits": {spec: schema(`{"type":"integer","minimum":1` + strings.Repeat("0", 40) + `}`), kind: errLimit, say: "digits of a number"},
		"no schema":              {spec: schema(`5`), kind: ErrInvalid, say: "an object, true or false"},
		"no JSON":                {spec: schema(`{`), kind: ErrInvalid, say: "not JSON"},
		"members twice":          {spec: schema(`{"type":"string","type":"integer"}`), kind: ErrInvalid, say: "duplicate"},
		"too many alternatives":  {spec: schema(`{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"anyOf":[{"maxLength":1},{"maxLength":2},{"maxLength":3},{"maxLength":4}]},`, 8), ",") + `]}`), kind: errLimit, say: "too large"},
		"too long":               {spec: schema(`{"maxLength":250000,"type":"string"}`), kind: errLimit, say: "too large"},
		"a backreference":        {spec: Spec{Kind: Regex, Source: `(a)\1`}, kind: errUnsupported, say: `\1`},
		"look-ahead":             {spec: Spec{Kind: Regex, Source: `(?=a)b`}, kind: errUnsupported, say: "(?="},
		"word boundary":          {spec: Spec{Kind: Regex, Source: `a\b`}, kind: errUnsupported, say: `\b`},
		"an open class":          {spec: Spec{Kind: Regex, Source: `[a`}, kind: errUnsupported, say: "not closed"},
		"an open group":          {spec: Spec{Kind: Regex, Source: `(a`}, kind: ErrInvalid, say: "missing closing"},
		"hostile repetition":     {spec: Spec{Kind: Regex, Source: `((a{0,100}){0,100}){0,100}`}, kind: errLimit, say: "1000"},
		"hostile states":         {spec: Spec{Kind: Regex, Source: `(a|b)*a(a|b){14}`}, kind: errLimit, say: "too large"},
		"left recursion":         {spec: Spec{Kind: EBNF, Source: `root ::= root "a" | "b"`}, kind: errUnsupported, say: "begins with itself"},
		"hidden left recursion":  {spec: Spec{Kind: EBNF, Source: "root ::= x? y\nx ::= \"a\"\ny ::= root \"b\" | \"c\""}, kind: errUnsupported, say: "begins with itself"},
		"an undefined rule":      {spec: Spec{Kind: EBNF, Source: `root ::= other`}, kind: ErrInvalid, say: "other"},
		"no root":                {spec: Spec{Kind: EBNF, Source: `rot ::= "a"`}, kind: ErrInvalid, say: "root"},
		"a rule without end":     {spec: Spec{Kind: EBNF, Source: `root ::= "a" root`}, kind: ErrInvalid, say: "cannot be satisfied"},
		"no choice":              {spec: Spec{Kind: Choice}, kind: ErrInvalid, say: "choice"},
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
			v, err := parseValue(newMeter(t.Context(), nil), text)
			if err != nil && !strings.Contains(err.Error(), "duplicate") && !strings.Contains(err.Error(), "levels deep") {
				t.Errorf("%s: %q: %v", source, text, err)
			} else if ok, err := satisfied(source, v); v != nil && (err != nil || !ok) {
				t.Errorf("%s: %q: %v", source, text, err)
			}
		}
	}
}

func satisfied(source string, v value) (bool, error) {
	root, err := parseValue(newMeter(context.Background(), nil), source)
	if err != nil {
		return false, err
	}
	s := newOpener(newBuilder(newMeter(context.Background(), nil)), root, manner{})
	return s.satisfiesGoal(v, goal{{of: root}})
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
