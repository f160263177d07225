package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
)

func form(k grammar.Kind, source string) *engine.Constraint {
	return &engine.Constraint{Spec: grammar.Spec{Kind: k, Source: source}, Param: "response_format"}
}

// A random model would never write any of this by itself.
func TestAnswerHasTheRequestedFormat(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 4}, ref.Options{})
	person := `{"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":150}},"required":["name","age"]}`
	for name, c := range map[string]struct {
		form *engine.Constraint
		want string
	}{
		"schema": {form: form(grammar.JSONSchema, person), want: `^\s?\{\s*"name":\s*".*",\s*"age":\s*\d+\s*\}$`},
		"regex":  {form: form(grammar.Regex, `[a-f]{4}-\d+x`), want: `^[a-f]{4}-\d+x$`},
		"ebnf":   {form: form(grammar.EBNF, `root ::= ("ab" | "cd"){3}`), want: `^(ab|cd){3}$`},
		"choice": {form: &engine.Constraint{Spec: grammar.Spec{Kind: grammar.Choice, Choices: []string{"red", "green"}}}, want: `^(red|green)$`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, p := range []sample.Params{sample.Greedy(), *draws(3), *draws(4)} {
				s, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), Sampling: &p, MaxTokens: 300, Constraint: c.form})
				if err != nil {
					t.Fatal(err)
				}
				a := collect(t, s)
				whole := regexp.MustCompile(`(?s)` + c.want).MatchString(a.text)
				if a.finished.Reason == engine.Length {
					continue // digits without end, at 300 tokens
				}
				if a.finished.Reason != engine.Stop || !whole {
					t.Errorf("%q ended with %+v", a.text, a.finished)
				}
				if name == "schema" && !json.Valid([]byte(a.text)) {
					t.Errorf("%q is no JSON", a.text)
				}
			}
		})
	}
}

func TestARowUnderAConstraintChangesNothingForTheOthers(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 3}, ref.Options{})
	request := func(c *engine.Constraint) engine.Request {
		return engine.Request{Prompt: prompt("Hello"), Sampling: draws(7), MaxTokens: 40, Constraint: c}
	}
	held := form(grammar.Regex, `[a-z ]{10,30}`)
	alone, aloneHeld := ask(t, e, request(nil)), ask(t, e, request(held))
	var streams []*engine.Stream
	for _, c := range []*engine.Constraint{nil, held, nil} {
		s, err := e.Generate(context.Background(), request(c))
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	for i, want := range []answer{alone, aloneHeld, alone} {
		if got := collect(t, streams[i]); !slices.Equal(got.tokens, want.tokens) || got.text != want.text {
			t.Errorf("row %d in company: %q, alone: %q", i, got.text, want.text)
		}
	}
}

func TestLogprobsUnderAConstraintAreThoseOfTheModelAllTheSame(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	p := sample.Greedy()
	free := ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: &p, MaxTokens: 1, Logprobs: alternatives(1)})
	held := ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: &p, MaxTokens: 1, Logprobs: alternatives(1), Constraint: form(grammar.Regex, "Q.*")})
	if held.text == free.text {
		t.Fatal("the model begins with Q by itself; the test wants another letter")
	}
	if free.logprobs[0].Top[0] != held.logprobs[0].Top[0] {
		t.Errorf("most likely %+v, under a constraint %+v", free.logprobs[0].Top, held.logprobs[0].Top)
	}
}

func TestAConstraintThatCannotBeEnforcedIsRefusedWithItsField(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	for _, c := range []*engine.Constraint{form(grammar.JSONSchema, `{"not":{}}`), form(grammar.Regex, `(`), form(-1, "")} {
		_, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 4, Constraint: c})
		var r *engine.Refusal
		if !errors.As(err, &r) || r.Kind != engine.Invalid || r.Param != "response_format" {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if a := ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 4}); a.finished.Err != nil {
		t.Errorf("a later request ended with %+v", a.finished)
	}
}
