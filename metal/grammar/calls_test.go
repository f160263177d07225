package grammar

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func calls(change func(*Calls)) Spec {
	way := func(name, schema string) Way {
		return Way{Name: name, Open: `{"name": "` + name + `", "arguments": `, Schema: schema, Close: "}"}
	}
	c := &Calls{Begin: "<call>", End: "</call>", Between: "\n", Many: true, Ways: []Way{way("f", `{"properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`), way("g", `{"type":"object","additionalProperties":false}`)}}
	change(c)
	return Spec{Kind: Functions, Calls: c}
}

func TestCallsAreThoseOfTheFunctions(t *testing.T) {
	const f, g = "<call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</call>", `<call>{"name": "g", "arguments": {}}</call>`
	bad := []string{"", "Hi", "<call></call>", `<call>{"name": "h", "arguments": {}}</call>`, `<call>{"name": "g", "arguments": {"a":1}}</call>`, `<call>{"name": "f", "arguments": 1}</call>`, `<call>{"name": "f", "arguments": {}}</call>`}
	for name, c := range map[string]struct {
		change    func(*Calls)
		good, bad []string
	}{
		"many":    {func(*Calls) {}, []string{f, g, f + "\n" + g + "\n" + f}, append([]string{f + g, f + "\n", " " + f}, bad...)},
		"one":     {func(c *Calls) { c.Many = false }, []string{f, g}, append([]string{f + "\n" + g}, bad...)},
		"no mark": {func(c *Calls) { c.Begin, c.End, c.Many = "", "", false }, []string{`{"name": "g", "arguments": {}}`}, append([]string{"\n" + `{"name": "g", "arguments": {}}`, g}, bad...)},
		"free": {func(c *Calls) { c.Free = true }, []string{"", "Hi", "a < b <call", "<<call" + "x", "\xff\x00", f, "Hi " + f + " and " + g + "."},
			[]string{"<call>", "Hi <call> you", "<call></call>", `<<call>{"name": "h"`, `a<call>{"name": "f", "arguments": 1}</call>`, f + `<call>{"name": "g", "arguments": {"a":1}}</call>`}},
	} {
		tab := table(t, calls(c.change))
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
	spec := calls(func(*Calls) {})
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
	spec = calls(func(c *Calls) { c.Begin, c.End, c.Many = "", "", false })
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
	with := calls(func(*Calls) {})
	without := with
	if with.Else = &choice; with.key() == without.key() {
		t.Error("the cache takes calls with another form for calls alone")
	}
	free := calls(func(c *Calls) { c.Free = true })
	free.Else = &choice
	broken := calls(func(*Calls) {})
	broken.Else = &Spec{Kind: JSONSchema, Source: "{"}
	nested := calls(func(*Calls) {})
	nested.Else = &without
	for _, s := range []Spec{free, broken, nested} {
		if _, err := Compile(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", s.Else, err)
		}
	}
	broken.Else = &Spec{Kind: JSONSchema, Source: strings.Repeat(" ", maxSource+1)}
	if _, err := Compile(broken); !errors.Is(err, ErrLimit) {
		t.Errorf("a source that is too large: %v", err)
	}
}

// TestFreeTextIsAnyTextWithoutTheMark: against the plain search, for marks whose
// beginning comes again within them.
func TestFreeTextIsAnyTextWithoutTheMark(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, mark := range []string{"ab", "aab", "abab", "aaa", "abaabab"} {
		tab := table(t, calls(func(c *Calls) { c.Free, c.Begin = true, mark }))
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

func TestFunctionsThatCannotBeHeldAreRefused(t *testing.T) {
	odd := `{"type":"object","properties":{"a":{"not":{}}}}`
	_, err := Compile(calls(func(c *Calls) { c.Ways[0].Schema = odd }))
	if e := new(Error); !errors.As(err, &e) || !errors.Is(err, ErrUnsupported) || e.Keyword != "not" || !strings.Contains(e.Message, `"f"`) {
		t.Errorf("%v", err)
	}
	loose := table(t, calls(func(c *Calls) { c.Ways[0].Schema, c.Ways[0].Loose = odd, true }))
	if !accepts(loose, `<call>{"name": "f", "arguments": {"b":[1]}}</call>`) || accepts(loose, `<call>{"name": "f", "arguments": 1}</call>`) {
		t.Error("a schema that cannot be enforced is not any object")
	}
	for name, change := range map[string]func(*Calls){
		"none":                  func(c *Calls) { c.Ways = nil },
		"free without a mark":   func(c *Calls) { c.Free, c.Begin = true, "" },
		"no object can be said": func(c *Calls) { c.Ways = c.Ways[:1]; c.Ways[0].Schema = `{"type":"integer"}` },
	} {
		if _, err := Compile(calls(change)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFunctionsAreBounded: however many there are, and however they fail.
func TestFunctionsAreBounded(t *testing.T) {
	most := func(n int, schema string, loose bool) func(*Calls) {
		return func(c *Calls) {
			w := c.Ways[1]
			w.Schema, w.Loose = schema, loose
			c.Ways = slices.Repeat([]Way{w}, n)
		}
	}
	wide := fmt.Sprintf(`{"properties":{"a":{"type":"array","maxItems":%d}}}`, maxNodes)
	for name, change := range map[string]func(*Calls){
		"too many":               most(maxChoices+1, `{}`, false),
		"too much":               most(1, strings.Repeat(" ", maxSource)+`{}`, false),
		"large together":         most(2, fmt.Sprintf(`{"properties":{"a":{"type":"array","maxItems":%d}}}`, maxNodes/2), false),
		"each fails by itself":   most(64, wide, true),
		"each fails at the last": most(maxChoices, `{"properties":{"a":{"type":"array","maxItems":500},"b":{"not":{}}}}`, true),
	} {
		if _, err := Compile(calls(change)); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !accepts(table(t, calls(most(2, wide, true))), `<call>{"name": "g", "arguments": {"b":[1]}}</call>`) {
		t.Error("what is too large to be enforced is not any object")
	}
	if _, err := Compile(calls(most(maxChoices, `{"not":{}}`, true))); err != nil {
		t.Errorf("many of any object: %v", err)
	}
	b := &builder{sets: map[string]int32{}}
	for range 3 {
		work, spent := b.work, b.spent
		if b.holds(`{"properties":{"a":{"not":{}}}}`) || b.work <= work || b.spent <= spent {
			t.Errorf("what fails counts as %d of work and %d nodes", b.work-work, b.spent-spent)
		}
	}
}

func TestCallsThatDifferAreNotTakenForOneAnother(t *testing.T) {
	seen := map[[32]byte]string{}
	for name, change := range map[string]func(*Calls){
		"plain": func(*Calls) {}, "one": func(c *Calls) { c.Many = false }, "free": func(c *Calls) { c.Free = true }, "begin": func(c *Calls) { c.Begin = "x" },
		"end": func(c *Calls) { c.End = "x" }, "between": func(c *Calls) { c.Between = "x" }, "name": func(c *Calls) { c.Ways[0].Name = "x" },
		"open": func(c *Calls) { c.Ways[0].Open = "x" }, "schema": func(c *Calls) { c.Ways[0].Schema = "x" }, "close": func(c *Calls) { c.Ways[0].Close = "x" },
		"loose": func(c *Calls) { c.Ways[0].Loose = true }, "fewer": func(c *Calls) { c.Ways = c.Ways[:1] },
	} {
		k := calls(change).key()
		if other, twice := seen[k]; twice {
			t.Errorf("%s is taken for %s", name, other)
		}
		seen[k] = name
	}
}
