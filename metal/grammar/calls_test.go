//go:build !race

package grammar

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// called is a constraint of calls of f and g, of which f takes an integer.
func called(change func(*Calls)) Spec {
	form := Form{Before: `\{"name": "`, Middle: `", "arguments": `, After: `\}`}
	c := &Calls{Between: "\n", Many: true, Functions: []Function{{Name: "f", Schema: `{"properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`}, {Name: "g", Schema: `{"type":"object","additionalProperties":false}`}},
		Groups: []Group{{Begin: "<call>", Chains: []Chain{{Open: `\n?`, Forms: []Form{form}, End: `\n?</call>`}}}}}
	change(c)
	return Spec{Kind: Functions, Calls: c}
}

// tagsOf are those of Qwen3-Coder.
var tagsOf = Tags{Open: "<p=", Then: ">", Close: "</p>", End: "</f>", Ends: "</call>", Begins: []string{"<call>"}}

func tagged(change func(*Calls)) Spec {
	return called(func(c *Calls) {
		c.Groups[0].Chains[0].Forms[0] = Form{Style: Tagged, Before: "<f=", Middle: ">", Tags: tagsOf}
		c.Functions[0].Schema = `{"properties":{"a":{"type":"integer"},"s":{"type":"string"},"t":{"type":"string"},"e":{"enum":["x","y"]}},"required":["a"],"additionalProperties":false}`
		change(c)
	})
}

func TestCallsAreThoseOfTheFunctions(t *testing.T) {
	const f, g = "<call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</call>", `<call>{"name": "g", "arguments": {}}</call>`
	bad := []string{"", "Hi", "<call></call>", `<call>{"name": "h", "arguments": {}}</call>`, `<call>{"name": "g", "arguments": {"a":1}}</call>`, `<call>{"name": "f", "arguments": 1}</call>`, `<call>{"name": "f", "arguments": {}}</call>`}
	for name, c := range map[string]struct {
		change    func(*Calls)
		good, bad []string
	}{
		"many": {change: func(*Calls) {}, good: []string{f, g, f + "\n" + g + "\n" + f}, bad: append([]string{f + g, f + "\n", " " + f}, bad...)},
		"one":  {change: func(c *Calls) { c.Many = false }, good: []string{f, g}, bad: append([]string{f + "\n" + g}, bad...)},
		"no mark": {change: func(c *Calls) {
			c.Groups[0] = Group{Chains: []Chain{{Forms: c.Groups[0].Chains[0].Forms}}}
			c.Many = false
		}, good: []string{`{"name": "g", "arguments": {}}`}, bad: append([]string{"\n" + `{"name": "g", "arguments": {}}`, g}, bad...)},
		"a lead":  {change: func(c *Calls) { c.Lead = "(ab)*" }, good: []string{f, "abab" + g}, bad: []string{"a" + f, f + "ab"}},
		"a chain": {change: func(c *Calls) { c.Groups[0].Chains[0].Between = ", ?" }, good: []string{f, `<call>{"name": "g", "arguments": {}}, {"name": "g", "arguments": {}}</call>`}, bad: bad},
		"free": {change: func(c *Calls) { c.Free = true }, good: []string{"", "Hi", "a < b <call", "<<call" + "x", "\xff\x00", f, "Hi " + f + " and " + g + "."},
			bad: []string{"<call>", "Hi <call> you", "<call></call>", `<<call>{"name": "h"`, `a<call>{"name": "f", "arguments": 1}</call>`, f + `<call>{"name": "g", "arguments": {"a":1}}</call>`}},
		"free, with a first": {change: func(c *Calls) {
			c.Free, c.First = true, []Group{{Begin: "{f: ", Only: "f", Chains: []Chain{{Forms: []Form{{Before: "[{]", Middle: ": ", After: "[}]"}}, Between: ";"}}}}
		}, good: []string{"", "{", "{f", "{f:", "{g: x", " {f: x", `{f: {"a":1}} ok`, `{f: {"a":1}};{g: {}}` + g, "{f<call" + "x", "{" + g}, bad: []string{"{f: ", "{f: x", "{f<call>"}},
	} {
		tab := table(t, called(c.change))
		for _, text := range c.good {
			if !accepts(tab, text) {
				t.Errorf("%s: %q is refused", name, text)
			}
		}
		for _, text := range c.bad {
			if accepts(tab, text) {
				t.Errorf("%s: %q is taken", name, text)
			}
		}
	}
}

// Either calls or an answer of the other form, which may begin with a blank.
func TestAnswerMayHaveAnotherFormThanCalls(t *testing.T) {
	const f, object = `<call>{"name": "f", "arguments": {"a":1}}</call>`, `{"name":"x"}`
	spec := called(func(*Calls) {})
	spec.Else = &Spec{Kind: JSONSchema, Source: `{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}`}
	tab := table(t, spec)
	for text, want := range map[string]bool{
		f: true, f + "\n" + f: true, object: true, "\n" + object: true, " " + object: true,
		"": false, "Hi": false, "\n" + f: false, f + object: false, object + f: false, `{"name":1}`: false, `{"name": "f", "arguments": {"a":1}}`: false,
	} {
		if got := accepts(tab, text); got != want {
			t.Errorf("%q is taken: %v", text, got)
		}
	}
	// Calls without marks may begin as the other form does.
	spec = called(func(c *Calls) {
		c.Groups[0] = Group{Chains: []Chain{{Forms: c.Groups[0].Chains[0].Forms}}}
		c.Many = false
	})
	spec.Else = &Spec{Kind: JSONObject}
	tab = table(t, spec)
	for text, want := range map[string]bool{`{"name": "f", "arguments": {"a":1}}`: true, object: true, `{"name": "f", "arguments": 1}`: true, "[]": false} {
		if got := accepts(tab, text); got != want {
			t.Errorf("%q is taken: %v", text, got)
		}
	}
	choice := Spec{Kind: Choice, Choices: []string{"yes"}}
	spec.Else = &choice
	tab = table(t, spec)
	for text, want := range map[string]bool{"yes": true, " yes": false, "no": false} {
		if got := accepts(tab, text); got != want {
			t.Errorf("%q is taken: %v", text, got)
		}
	}
	spec.Calls.Final = "(so )+"
	if tab = table(t, spec); accepts(tab, "yes") || !accepts(tab, "so so yes") {
		t.Error("what stands before the other form is not required")
	}
	with := called(func(*Calls) {})
	without := with
	if with.Else = &choice; with.key() == without.key() {
		t.Error("the cache takes calls with another form for calls alone")
	}
	free := called(func(c *Calls) { c.Free = true })
	free.Else = &choice
	broken := called(func(*Calls) {})
	broken.Else = &Spec{Kind: JSONSchema, Source: "{"}
	nested := called(func(*Calls) {})
	nested.Else = &without
	for _, s := range []Spec{free, broken, nested} {
		if _, err := Compile(t.Context(), s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", s.Else, err)
		}
	}
	broken.Else = &Spec{Kind: JSONSchema, Source: strings.Repeat(" ", maxSource+1)}
	if _, err := Compile(t.Context(), broken); !errors.Is(err, errLimit) {
		t.Errorf("a source that is too large: %v", err)
	}
}

// TestFreeTextIsAnyTextWithoutTheMark: against the plain search, for marks whose
// beginning comes again within them.
func TestFreeTextIsAnyTextWithoutTheMark(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, mark := range []string{"ab", "aab", "abab", "aaa", "abaabab"} {
		tab := table(t, called(func(c *Calls) { c.Free, c.Groups[0].Begin = true, mark }))
		for range 400 {
			text := make([]byte, rng.IntN(12))
			for i := range text {
				text[i] = "abc"[rng.IntN(3)]
			}
			if got := accepts(tab, string(text)); got == strings.Contains(string(text), mark) {
				t.Fatalf("mark %q, text %q: taken %v", mark, text, got)
			}
		}
	}
}

// The members of arguments come in any order, and those that are required all come.
func TestArgumentsComeInAnyOrder(t *testing.T) {
	schema := `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"object","properties":{"x":{"const":1},"y":{"const":2}},"required":["y"]},"c":{"type":"null"}},"required":["a","b"]}`
	tab := table(t, called(func(c *Calls) { c.Functions = []Function{{Name: "f", Schema: schema}} }))
	call := func(arguments string) string { return `<call>{"name": "f", "arguments": ` + arguments + `}</call>` }
	for _, good := range []string{`{"a":1,"b":{"y":2}}`, `{"b":{"y":2,"x":1},"c":null,"a":1}`, `{"c":null, "b": {"x":1, "y":2}, "a":1}`} {
		if !accepts(tab, call(good)) {
			t.Errorf("%s is refused", good)
		}
	}
	for _, bad := range []string{`{}`, `{"a":1}`, `{"b":{"y":2}}`, `{"a":1,"a":1,"b":{"y":2}}`, `{"a":1,"b":{"x":1}}`, `{"a":1,"b":{"y":2,"y":2}}`, `{"a":1,"b":{"y":2},}`, `{"a":1,"b":{"y":2},"d":1}`} {
		if accepts(tab, call(bad)) {
			t.Errorf("%s is taken", bad)
		}
	}
	impossible := called(func(c *Calls) {
		c.Functions = []Function{{Name: "f", Schema: `{"properties":{"a":false},"required":["a"]}`}}
	})
	if _, err := Compile(t.Context(), impossible); !errors.Is(err, ErrInvalid) {
		t.Errorf("a member that is required and cannot be: %v", err)
	}
}

// Sloppy JSON is what package toolcall repairs, held to types, members and listed values.
func TestSloppyArguments(t *testing.T) {
	schema := `{"type":"object","properties":{"n":{"type":"integer","maximum":3},"s":{"type":"string","maxLength":2,"format":"date"},"b":{"type":"boolean"},"l":{"type":"array","items":{"enum":["x"]}},"o":{"type":"string","nullable":true}},"required":["n"]}`
	tab := table(t, called(func(c *Calls) { c.Sloppy, c.Functions = true, []Function{{Name: "f", Schema: schema}} }))
	call := func(arguments string) string { return `<call>{"name": "f", "arguments": ` + arguments + `}</call>` }
	for _, good := range []string{`{"n":1}`, "{\n\t\"n\" : 5.0 ,\n}", `{"n":12345678901234567890,"s":"it\'s long"}`, "{\"s\":\"a\n\tb\",\"n\":9}", `{"n":1,"b":True}`, `{"n":1,"l":["x", "x" , ]}`, `{"n":1,"o":None}`, `{"n":1,"more":{"a":1.5,}}`} {
		if !accepts(tab, call(good)) {
			t.Errorf("%s is refused", good)
		}
	}
	for _, bad := range []string{`{}`, `{"n":1.5}`, `{"n":"1"}`, `{"n":1,,}`, `{,"n":1}`, `{"n":1,"l":[,]}`, `{"n":1,"l":["y"]}`, `{"n":1,"b":"true"}`, `{"n":1,"n":1}`, `{"n":1,"s":"\x"}`, `{"n":1,"s":Paris}`} {
		if accepts(tab, call(bad)) {
			t.Errorf("%s is taken", bad)
		}
	}
	closed := table(t, called(func(c *Calls) { c.Sloppy = true }))
	if accepts(closed, call(`{"a":1,"b":1}`)) {
		t.Error("a member that the schema forbids is taken")
	}
}

func TestParametersBetweenTags(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*Calls)
		good, bad []string
	}{
		"strict": {change: func(*Calls) {}, good: []string{
			"<f=f><p=a>1</p></f>", "<f=f><p=s>\nlong < text </x>\n</p>\n<p=a>\n1\n</p>\n</f>", "<f=f><p=e>\nx\n</p><p=a>-7</p></f>", "<f=g></f>", "<f=f><p=s><p=t></p><p=a>1</p></f>",
			"<f=f><p=t>\n</p><p=s>\n<p=t></p><p=a>1</p></f>",
		}, bad: []string{
			"<f=f></f>", "<f=f><p=a>1</p>", "<f=f><p=a>x</p></f>", "<f=f><p=a>1</p><p=a>1</p></f>", "<f=f><p=a>1</p><p=b>1</p></f>", "<f=f><p=e>z</p><p=a>1</p></f>", "<f=h></f>",
			"<f=f><p=s>x\n<p=a>1</p></f>", "<f=f><p=a>1</p><p=s>x</f>", "<f=f><p=a>1</p><p=s>x</f>y</p></f>",
		}},
		"sloppy": {change: func(c *Calls) { c.Sloppy = true }, good: []string{
			"<f=f><p=a>5.0</p></f>", "<f=f><p=s>x\n<p=a>1</p></f>", "<f=f><p=a>1</p><p=s>x</f>", "<f=f><p=a>1</p><p=s>x</f>y</p></f>", "<f=f><p=a>1\n<p=s>x</p></f>", "<f=f><p=a>1</f>",
			"<f=f><p=a>1</p></p></f>",
		}, bad: []string{"<f=f><p=s>x</f>", "<f=f><p=s>x</f><call></p><p=a>1</p></f>", "<f=f><p=a>x\n</p></f>", "<f=f><p=a>1<p=s>x</p></f>", "<f=f><p=a>1</p>", "<f=f><p=a>1"}},
		"no schema": {change: func(c *Calls) { c.Functions[0].Schema = `{` }, good: []string{"<f=f><p=z>1</p><p=a>x</p></f>"}, bad: []string{"<f=f><p=a>"}},
		"texts that are held": {change: func(c *Calls) {
			c.Functions[0].Schema = `{"properties":{"s":{"type":"string","maxLength":3,"minLength":1},"d":{"type":"string","format":"date"},"m":{"type":["string","integer"]},"o":{"type":"object","properties":{"a":{"const":1}}}},"additionalProperties":{"type":"integer"}}`
		}, good: []string{"<f=f><p=s>\nabc\n</p><p=d>2024-02-29</p><p=m>any\n</p><p=o>{\"a\":1}</p><p=x>1</p></f>"}, bad: []string{"<f=f><p=s>abcd</p></f>", "<f=f><p=s></p></f>", "<f=f><p=d>2023-02-29</p></f>", "<f=f><p=o>{\"a\":2}</p></f>", "<f=f><p=s>a<b</p></f>"}},
	} {
		tab := table(t, tagged(c.change))
		for _, text := range c.good {
			if !accepts(tab, "<call>"+text+"</call>") {
				t.Errorf("%s: %q is refused", name, text)
			}
		}
		for _, text := range c.bad {
			if accepts(tab, "<call>"+text+"</call>") {
				t.Errorf("%s: %q is taken", name, text)
			}
		}
	}
}

func TestCallsInOtherStyles(t *testing.T) {
	for name, c := range map[string]struct {
		form      Form
		good, bad []string
	}{
		"no arguments":    {form: Form{Before: "[(]", Middle: " ", After: "[)]", None: " none[)]"}, good: []string{`(g none)`, `(g {})`, `(f {"a":1})`}, bad: []string{"(f none)"}},
		"null":            {form: Form{Before: "[(]", Middle: " ", After: "[)]", Null: "null"}, good: []string{`(g null)`, `(g {})`, `(f {"a":1})`}, bad: []string{"(f null)"}},
		"arguments first": {form: Form{Style: Reversed, Before: "[(]", Middle: " ", After: "[)]"}, good: []string{`({} g)`, `({"a":1} f)`}, bad: []string{`({"a":1} g)`, `({} f)`, `({} k)`}},
		"code":            {form: Form{Style: Code, Before: "[(]", Middle: " ", After: "[)]"}, good: []string{"(h print(1))"}, bad: []string{"(f print(1))", "(g x)", "(h \ufdd0)"}},
	} {
		tab := table(t, called(func(c2 *Calls) {
			c2.Functions = append(c2.Functions, Function{Name: "h", Schema: `{"properties":{"code":{"type":"string"}}}`})
			c2.Groups[0].Chains[0].Forms[0] = c.form
		}))
		if c.form.Style != Code {
			c.bad = append(c.bad, "(h)")
		}
		for _, text := range c.good {
			if !accepts(tab, "<call>"+text+"</call>") {
				t.Errorf("%s: %q is refused", name, text)
			}
		}
		for _, text := range c.bad {
			if accepts(tab, "<call>"+text+"</call>") {
				t.Errorf("%s: %q is taken", name, text)
			}
		}
	}
}

// A keyword that cannot be enforced or read is not enforced; what else the schema contains is.
func TestSchemasOfToolsAreNeverRefused(t *testing.T) {
	for name, schema := range map[string]string{
		"not":               `{"type":"object","not":{},"properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`,
		"a dialect":         `{"$schema":"http://json-schema.org/draft-04/schema#","properties":{"a":{"type":"integer","multipleOf":2,"x":1}},"required":["a"]}`,
		"odd keywords":      `{"properties":{"a":{"allOf":[{"type":"integer"},{"type":5}]},"b":{"pattern":"(","type":"string"}},"required":["a"]}`,
		"an odd nesting":    `{"properties":{"a":{"oneOf":[{"type":"integer"},{"type":"number"}]}},"required":["a"]}`,
		"a foreign schema":  `{"properties":{"a":{"$ref":"https://example.com/x"},"b":{"$ref":"#/none"},"c":{"$ref":"#/properties/c"}},"required":["a"]}`,
		"a boolean":         `{"type":"object","properties":{"a":true},"required":["a"]}`,
		"a format":          `{"properties":{"a":{"type":"integer"},"b":{"type":"string","format":"colour"}},"required":["a"]}`,
		"something unknown": `{"properties":{"a":{"type":"integer","if":{},"then":5,"contains":1,"uniqueItems":true}},"required":["a"]}`,
	} {
		tab := table(t, called(func(c *Calls) { c.Functions[0].Schema = schema }))
		if !accepts(tab, `<call>{"name": "f", "arguments": {"a":1}}</call>`) || accepts(tab, `<call>{"name": "f", "arguments": {}}</call>`) {
			t.Errorf("%s: the rest of the schema is not enforced", name)
		}
	}
	for name, schema := range map[string]string{"no JSON": "{", "not an object": "5", "an odd list": `{"properties":[],"required":"a"}`, "an odd reference": `{"$ref":"#/none"}`, "too large": fmt.Sprintf(`{"properties":{"a":{"type":"array","maxItems":%d}}}`, maxNodes)} {
		tab := table(t, called(func(c *Calls) { c.Functions[0].Schema = schema }))
		if !accepts(tab, `<call>{"name": "f", "arguments": {"b":[1]}}</call>`) || accepts(tab, `<call>{"name": "f", "arguments": 1}</call>`) {
			t.Errorf("%s: the arguments are not any object", name)
		}
	}
}

func TestCallsThatCannotBeAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Calls){
		"no function":         func(c *Calls) { c.Functions = nil },
		"no group":            func(c *Calls) { c.Groups = nil },
		"free without a mark": func(c *Calls) { c.Free, c.Groups[0].Begin = true, "" },
	} {
		if _, err := Compile(t.Context(), called(change)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// However many functions there are, and however they fail.
func TestFunctionsAreBounded(t *testing.T) {
	most := func(n int, schema string) func(*Calls) {
		return func(c *Calls) { c.Functions = slices.Repeat([]Function{{Name: "g", Schema: schema}}, n) }
	}
	for name, change := range map[string]func(*Calls){
		"too many": most(maxChoices+1, `{}`),
		"too much": most(1, strings.Repeat(" ", maxSource)+`{}`),
	} {
		if _, err := Compile(t.Context(), called(change)); !errors.Is(err, errLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wide := fmt.Sprintf(`{"properties":{"a":{"type":"array","maxItems":%d}}}`, maxNodes)
	for name, change := range map[string]func(*Calls){
		"each fails":         most(64, wide),
		"large together":     most(8, fmt.Sprintf(`{"properties":{"a":{"type":"array","maxItems":%d}}}`, maxNodes/8)),
		"each fails at last": most(maxChoices, `{"properties":{"a":{"type":"array","maxItems":500},"b":{"type":"array","maxItems":`+fmt.Sprint(maxNodes)+`}}}`),
	} {
		g, err := Compile(t.Context(), called(change))
		if err != nil && !errors.Is(err, errLimit) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && len(g.nodes) > maxNodes {
			t.Errorf("%s: %d nodes", name, len(g.nodes))
		}
	}
	b := newBuilder(newMeter(t.Context(), nil))
	for range 3 {
		work, spent, nodes := b.work, b.spent, len(b.nodes)
		_, ok := b.attempt(func() (expr, error) { return compileSchema(b, `{"properties":{"a":{"not":{}}}}`) })
		if ok || b.work <= work || b.spent <= spent || len(b.nodes) != nodes {
			t.Errorf("what fails counts as %d of work and %d nodes", b.work-work, b.spent-spent)
		}
	}
}

func TestCallsThatDifferAreNotTakenForOneAnother(t *testing.T) {
	seen := map[[32]byte]string{}
	for name, change := range map[string]func(*Calls){
		"plain": func(*Calls) {}, "one": func(c *Calls) { c.Many = false }, "free": func(c *Calls) { c.Free = true }, "begin": func(c *Calls) { c.Groups[0].Begin = "x" },
		"end": func(c *Calls) { c.Groups[0].Chains[0].End = "x" }, "between": func(c *Calls) { c.Between = "x" }, "name": func(c *Calls) { c.Functions[0].Name = "x" },
		"schema": func(c *Calls) { c.Functions[0].Schema = "x" }, "form": func(c *Calls) { c.Groups[0].Chains[0].Forms[0].Before = "x" },
		"style": func(c *Calls) { c.Groups[0].Chains[0].Forms[0].Style = Tagged }, "tags": func(c *Calls) { c.Groups[0].Chains[0].Forms[0].Tags = tagsOf },
		"sloppy": func(c *Calls) { c.Sloppy = true }, "first": func(c *Calls) { c.First = c.Groups }, "lead": func(c *Calls) { c.Lead = "x" }, "final": func(c *Calls) { c.Final = "x" }, "fewer": func(c *Calls) { c.Functions = c.Functions[:1] },
		"same chains": func(c *Calls) { c.First = []Group{c.Groups[0], c.Groups[0]} },
		"other chains": func(c *Calls) {
			c.First = []Group{c.Groups[0], {Begin: c.Groups[0].Begin, Chains: []Chain{{End: "x"}}}}
		},
		"moved": func(c *Calls) { c.Groups, c.First = append(c.Groups, c.Groups[0]), c.Groups[:1] },
	} {
		k := called(change).key()
		if other, twice := seen[k]; twice {
			t.Errorf("%s is taken for %s", name, other)
		}
		seen[k] = name
	}
}

// Each of many functions begins groups of its own, whose chains are those of all. The key is made
// for every request, without a turn.
func TestKeyOfManyGroupsReadsTheirChainsOnce(t *testing.T) {
	spec := called(func(c *Calls) {
		g := c.Groups[0]
		g.Chains = []Chain{{Open: strings.Repeat("x", 2000)}}
		c.First = slices.Repeat([]Group{g}, 4*maxChoices)
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	spec.key()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("the key of %d groups took %d bytes of memory", len(spec.Calls.First), n)
	}
}
