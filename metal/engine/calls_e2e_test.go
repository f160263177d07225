package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// hermes is a template that writes tools and calls as Qwen's do, and takes how
// much to think.
const hermes = `{% if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{{ reasoning_effort }}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
`

// templated is a tiny model in a folder with another template.
func templated(t *testing.T, template string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.WriteFolder(dir, tinymodel.Default(), tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	retemplate(t, dir, template)
	return dir
}

// retemplate gives a model in a folder another template.
func retemplate(t *testing.T, dir, template string) {
	t.Helper()
	path := filepath.Join(dir, "tokenizer_config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	config["chat_template"] = template
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

const definitions = `[{"type":"function","function":{"name":"f","description":"does","parameters":{"type":"object"}}}]`

func asking(change func(*engine.Request)) engine.Request {
	r := engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hi"}}, Tools: []byte(definitions)}, Calls: &engine.Calls{}, MaxTokens: 3}
	if change != nil {
		change(&r)
	}
	return r
}

func TestToolsReachTheTemplate(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: templated(t, hermes)}, ref.Options{})
	s, err := e.Generate(context.Background(), asking(func(r *engine.Request) { r.Chat.Effort = "low" }))
	if err != nil {
		t.Fatal(err)
	}
	ids := s.Prompt()
	collect(t, s)
	var prompt strings.Builder
	for _, id := range ids {
		prompt.Write(s.Spell(id))
	}
	if p := prompt.String(); !strings.Contains(p, `"description": "does"`) || !strings.Contains(p, "low<|im_start|>") {
		t.Errorf("the prompt is %q", p)
	}
	for name, c := range map[string]struct {
		change func(*engine.Request)
		param  string
	}{
		"no tools":                      {change: func(r *engine.Request) { r.Chat.Tools = nil }, param: "tools"},
		"tools of no kind":              {change: func(r *engine.Request) { r.Chat.Tools = []byte(`[{"name":"f"}]`) }, param: "tools"},
		"a form that is no schema":      {change: func(r *engine.Request) { r.Constraint = form(grammar.JSONSchema, "{") }, param: "response_format"},
		"a call of an unknown function": {change: func(r *engine.Request) { r.Calls.Required, r.Calls.Name = true, "g" }, param: "tool_choice"},
	} {
		_, err := e.Generate(context.Background(), asking(c.change))
		if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != engine.Invalid || r.Param != c.param {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestToolsAreRefusedForAnUnknownCallFormat(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	_, err := e.Generate(context.Background(), asking(nil))
	if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != engine.Invalid || r.Param != "tools" || !strings.Contains(r.Message, "GPT-OSS") {
		t.Errorf("got %v", err)
	}
}
