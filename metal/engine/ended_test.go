package engine_test

import (
	"bytes"
	"image"
	"image/png"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// pictured is a request with an image.
func pictured(t *testing.T) engine.Request {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewRGBA(image.Rect(0, 0, 60, 40))); err != nil {
		t.Fatal(err)
	}
	m := chat.Message{Role: "user", Parts: []chat.Part{{Text: "See "}, {Image: true}}}
	return engine.Request{Chat: &text.Chat{Messages: []chat.Message{m}}, Images: [][]byte{b.Bytes()}, MaxTokens: 3}
}

// TestAnswersThatEndedKeepTheirOutputAlone: an answer that ended may wait long for its client. Its
// tools, images, form and prompt, which do not count any more, are not in memory either.
func TestAnswersThatEndedKeepTheirOutputAlone(t *testing.T) {
	seeing := filepath.Join(t.TempDir(), "seeing")
	if err := tinymodel.Seeing("qwen3_vl").Write(seeing); err != nil {
		t.Fatal(err)
	}
	tools := engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hi"}}, Tools: []byte(`[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`)}, Calls: &engine.Calls{}, MaxTokens: 3}
	for name, c := range map[string]struct {
		path     string
		request  engine.Request
		leave    bool // before it begins
		prefixes bool
	}{
		"a form":                  {request: engine.Request{Prompt: prompt("Hello there"), MaxTokens: 3, Constraint: form(grammar.Regex, "[a-z]+")}},
		"a form, prefix cache":    {request: engine.Request{Prompt: prompt("Hello there"), MaxTokens: 3, Constraint: form(grammar.Regex, "[a-z]+")}, prefixes: true},
		"a client that left":      {request: engine.Request{Prompt: prompt("Hello there"), MaxTokens: 3}, leave: true},
		"log-probabilities":       {request: engine.Request{Prompt: prompt("Hello there"), MaxTokens: 3, Logprobs: alternatives(2), Echo: true}},
		"tools":                   {path: templated(t, hermes), request: tools},
		"images":                  {path: seeing, request: pictured(t)},
		"an image, a left client": {path: seeing, request: pictured(t), leave: true},
		"an image, prefix cache":  {path: seeing, request: pictured(t), prefixes: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := ready(t, engine.Options{ModelPath: c.path, Sequences: 2, PrefixCache: c.prefixes}, ref.Options{})
			e.SetLimits(guard.Limits{Sequence: 1, PausePrefill: true})
			var open []*engine.Stream
			for range 3 {
				s, err := e.Generate(t.Context(), c.request)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				open = append(open, s)
			}
			held, left := engine.InMemory(t.Context(), e)
			if held != len(open) {
				t.Fatalf("the engine has %d of %d requests", held, len(open))
			}
			e.SetLimits(guard.Limits{Sequence: 2, PausePrefill: c.leave})
			for _, s := range open {
				if c.leave {
					s.Cancel()
				}
				ended(s)
				if _, err := s.Next(t.Context()); err != nil { // what the transport takes
					t.Fatal(err)
				}
			}
			requests, prompts := left()
			for until := time.Now().Add(2 * time.Second); requests+prompts > 0 && time.Now().Before(until); requests, prompts = left() {
				runtime.Gosched()
			}
			if requests+prompts > 0 {
				t.Errorf("%d requests and %d prompts are in memory after %d answers ended", requests, prompts, len(open))
			}
			runtime.KeepAlive(open)
		})
	}
}
