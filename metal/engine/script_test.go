package engine_test

import (
	"context"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// From the prompt to the call through a whole engine, with a model whose output
// is known.
func TestScriptedModelCallsItsToolAndReadsTheResult(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caller.gguf")
	if err := tinymodel.Write(path, tinymodel.Caller()); err != nil {
		t.Fatal(err)
	}
	e := ready(t, engine.Options{ModelPath: path}, ref.Options{})
	user := chat.Message{Role: "user", Content: "How is the weather?"}
	asked := chat.Message{Role: "assistant", Extra: []byte(`{"tool_calls":[{"id":"c1","type":"function","function":{"name":"get_weather","arguments":{"city":"Paris"}}}]}`)}
	result := func(s string) chat.Message {
		return chat.Message{Role: "tool", Content: s, Extra: []byte(`{"tool_call_id":"c1"}`)}
	}
	tools := []byte(`[{"type":"function","function":{"name":"get_weather","description":"does","parameters":{"type":"object"}}}]`)
	for name, c := range map[string]struct {
		messages []chat.Message
		tools    []byte
		want     string
	}{
		"tools":         {messages: []chat.Message{user}, tools: tools, want: `get_weather{"city": "Paris"}`},
		"a result":      {messages: []chat.Message{user, asked, result("It is sunny.")}, tools: tools, want: "It is sunny in Paris."},
		"other results": {messages: []chat.Message{user, asked, result("rain")}, tools: tools, want: "The tool did not say sunny."},
		"no tools":      {messages: []chat.Message{user}, want: "I have no tool to ask."},
	} {
		r := engine.Request{Chat: &text.Chat{Messages: c.messages, Tools: c.tools}, MaxTokens: 30}
		if c.tools != nil {
			r.Calls = &engine.Calls{}
		}
		if got := saidAndCalled(t, e, r); got != c.want {
			t.Errorf("%s: it says %q, want %q", name, got, c.want)
		}
	}
}

func saidAndCalled(t *testing.T, e *engine.Engine, r engine.Request) (out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := e.Generate(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := s.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		out += ev.Text
		for _, call := range ev.Calls {
			out += call.Name + call.Arguments
		}
		if ev.Finished != nil {
			return out
		}
	}
}
