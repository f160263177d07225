package engine_test

import (
	"errors"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
)

// gemma4 is a template that writes calls as those of Gemma 4.
const gemma4 = `{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{{ '{' }}` +
	`{% for k, v in call.function.arguments.items() %}{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}{{ '}' }}<tool_call|>{% endfor %}{% endfor %}`

// Answers cannot be held to every format: what needs it is refused, and the rest is not.
func TestCallsThatCannotBeHeldAreOptional(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: templated(t, gemma4)}, ref.Options{})
	s, err := e.Generate(t.Context(), asking(nil))
	if err != nil {
		t.Fatal(err)
	}
	collect(t, s)
	for param, change := range map[string]func(*engine.Request){
		"tool_choice":     func(r *engine.Request) { r.Calls.Required = true },
		"tools":           func(r *engine.Request) { r.Calls.Strict = true },
		"response_format": func(r *engine.Request) { r.Constraint = form(grammar.JSONObject, "") },
	} {
		_, err := e.Generate(t.Context(), asking(change))
		if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != engine.Invalid || r.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
}
