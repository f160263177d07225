//go:build !race

package engine_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// toolsModel writes a model that calls tools and whose prompts do not show them.
func toolsModel(t *testing.T) string {
	c := tinymodel.Default()
	c.Name, c.Untied, c.Type, c.Context, c.Vocabulary = "tools", true, weights.F32, 1<<18, 480
	c.Script = &tinymodel.Script{Template: brief(hermes) + "<|cue|>", Lines: []tinymodel.Line{{Cue: "<|cue|>", Says: []string{"So"}}}}
	path := filepath.Join(t.TempDir(), "tools.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAttackToolsThatNoPromptShows: the schemas of tools are many times the prompt, and in memory
// until their requests end. They count against the limit and in the share of their tenant.
func TestAttackToolsThatNoPromptShows(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: toolsModel(t)}, ref.Options{})
	e.SetLimits(guard.Limits{Sequence: 1, PausePrefill: true}) // all requests wait
	const size = 10 << 20
	ask := func(tenant string, bytes int) (*engine.Stream, error) {
		schema := `{"type":"object","$comment":"` + strings.Repeat("x", bytes) + `"}`
		tools := `[{"type":"function","function":{"name":"f","parameters":` + schema + `}}]`
		return e.Generate(t.Context(), engine.Request{Tenant: tenant, Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hi"}}, Tools: []byte(tools)}, Calls: &engine.Calls{}, MaxTokens: 3})
	}
	before, _ := engine.Held(e)
	var open []*engine.Stream
	for _, tenant := range []string{"a", "a", "a", "b"} {
		s, err := ask(tenant, size)
		if err != nil {
			t.Fatalf("tenant %s, after %d requests: %v", tenant, len(open), err)
		}
		open = append(open, s)
	}
	if held, _ := engine.Held(e); held-before < int64(len(open))*2*size {
		t.Errorf("the guard counts %d bytes of %d requests with tools of %d", held-before, len(open), size)
	}
	for bytes, want := range map[int]engine.Kind{size: engine.QueueFull, 40 << 20: engine.ContextLength} {
		if _, err := ask("a", bytes); !isKind(err, want) {
			t.Errorf("another request with tools of %d bytes: %v", bytes, err)
		}
	}
	for _, s := range open {
		s.Cancel()
		for ev, err := s.Next(t.Context()); err == nil && ev.Finished == nil; ev, err = s.Next(t.Context()) {
		}
		s.Close()
	}
	if held, _ := engine.Held(e); held-before >= size {
		t.Errorf("%d bytes are counted after all requests ended", held-before)
	}
}

// Tools are in memory together with all that the slack of a process's limit is for, so that
// those of all tenants take a part of it, however large the prompts' cache is.
func TestToolsTakeAPartOfTheSlack(t *testing.T) {
	slack := footprint.EngineLimit(0)
	e := ready(t, engine.Options{ModelPath: toolsModel(t), ContextTokens: 8192, LimitBytes: slack}, ref.Options{})
	e.SetLimits(guard.Limits{Sequence: 1, PausePrefill: true}) // all requests wait
	const size = 1 << 20
	tools := []byte(`[{"type":"function","function":{"name":"f","parameters":{"type":"object","$comment":"` + strings.Repeat("x", size) + `"}}}]`)
	before, _ := engine.Held(e)
	for i := range 64 {
		s, err := e.Generate(t.Context(), engine.Request{Tenant: strings.Repeat("t", i%4), Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hi"}}, Tools: tools}, Calls: &engine.Calls{}, MaxTokens: 3})
		if err == nil {
			defer s.Close()
		} else if i == 0 || !isKind(err, engine.QueueFull) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if held, _ := engine.Held(e); held-before > slack/4 {
		t.Errorf("requests hold %d MiB of tools, and the slack is %d", (held-before)>>20, slack>>20)
	}
}

// TestInputsShareTheSlack: texts, tools and constraints that requests hold have a part of the slack of
// the limit together, each of which would be most of it.
func TestInputsShareTheSlack(t *testing.T) {
	e := ready(t, engine.Options{LimitBytes: 50 << 20}, ref.Options{})
	received, tools := engine.InputAccounts(e)
	const texts = 30<<20 - 1<<10 // all but what the prompt below takes
	if !tools.Take("", 10<<20) || received.Take("", 31<<20) || !received.Take("", texts) {
		t.Errorf("tools take 10 MiB, and texts %d", received.Held())
	}
	ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 2})
	schema := grammar.Spec{Kind: grammar.JSONSchema, Source: `{"type":"object","properties":{"a":{"type":"string"}}}`}
	if _, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 2, Constraint: &engine.Constraint{Spec: schema}}); !isKind(err, engine.QueueFull) {
		t.Errorf("a constraint while texts and tools take all: %v", err)
	}
	received.Give("", texts)
	ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 2, Constraint: &engine.Constraint{Spec: schema}})
}

// TestCompiledConstraintsTakeAPartOfTheHeap: those that are kept for later requests take at most a
// third of what the heap of an engine may take.
func TestCompiledConstraintsTakeAPartOfTheHeap(t *testing.T) {
	var heap int64
	e := ready(t, engine.Options{LimitBytes: 50 << 20, HeapLimit: func(n int64) { heap = n }}, ref.Options{})
	for i := range 16 {
		var properties []string
		for j := range 400 {
			properties = append(properties, fmt.Sprintf(`"p%d_%d":{"type":"object","properties":{"a":{"enum":["x%d","y%d"]},"b":{"type":"string","maxLength":50}},"required":["a"]}`, i, j, j, i))
		}
		schema := `{"type":"object","properties":{` + strings.Join(properties, ",") + `}}`
		ask(t, e, engine.Request{Tenant: "a", Prompt: prompt("Hello"), MaxTokens: 2, Constraint: &engine.Constraint{Spec: grammar.Spec{Kind: grammar.JSONSchema, Source: schema}}})
	}
	if n := engine.CompiledBytes(e); n == 0 || n > heap/3 {
		t.Errorf("%d bytes are kept; the heap may take %d", n, heap)
	}
}

func isKind(err error, want engine.Kind) bool {
	r := new(engine.Refusal)
	return errors.As(err, &r) && r.Kind == want
}
