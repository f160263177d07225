//go:build !race

package text

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/toolcall"
)

// calling is a template that writes definitions, turns, and calls in a format.
func calling(call string) string {
	return `{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}` + call +
		`{% endfor %}{% if m.tool_call_id %}[{{ m.tool_call_id }}]{% endif %}{% endfor %}`
}

// calls of the families, as their templates write them.
var callsOf = map[toolcall.Format]string{
	toolcall.GLM:         "<tool_call>{{ call.function.name }}{% for k, v in call.function.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson if v is not string else v }}</arg_value>{% endfor %}</tool_call>",
	toolcall.MiniMax:     "<minimax:tool_call>\n<invoke name=\"{{ call.function.name }}\">\n{% for k, v in call.function.arguments.items() %}<parameter name=\"{{ k }}\">{{ v }}</parameter>\n{% endfor %}</invoke>\n</minimax:tool_call>",
	toolcall.DeepSeekV32: "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"{{ call.function.name }}\">\n{% for k, v in call.function.arguments.items() %}<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">{{ v }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n</｜DSML｜function_calls>",
	toolcall.Kimi:        "<|tool_calls_section_begin|><|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>",
	toolcall.DeepSeekV3:  "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name + '\n```json\n' + call.function.arguments + '\n```' + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}",
	toolcall.DeepSeekV31: "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + call.function.arguments + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}",
	toolcall.Gemma:       `<|tool_call>call:{{ call.function.name }}{ {%- for k, v in call.function.arguments | dictsort %}{{ k }}:{{ '<|"|>' + v + '<|"|>' if v is string else v }}{{ ',' if not loop.last }}{% endfor -%} }<tool_call|>`,
	toolcall.LFM:         `<|tool_call_start|>[{{ call.function.name }}({% for k, v in call.function.arguments.items() %}{{ k }}={{ "'" + v + "'" if v is string else v }}{{ ', ' if not loop.last }}{% endfor %})]<|tool_call_end|>`,
}

// What a template writes is read back as the call that it was.
func TestFormatsOfFamiliesAreFoundAndReadBack(t *testing.T) {
	const tools = `[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"},"n":{"type":"integer"}}}}}]`
	declared, err := toolcall.ReadTools([]byte(tools))
	if err != nil {
		t.Fatal(err)
	}
	for format, call := range callsOf {
		x := templated(t, calling(call))
		got, asText, err := toolcall.FormatOf(t.Context(), x.templates, x.options())
		if err != nil || got != format {
			t.Errorf("%s is taken for %q (%v)", format, got, err)
			continue
		}
		x.calls, x.written = got, asText
		messages := []chat.Message{{Role: "user", Content: "u"}, {Role: "assistant", Extra: []byte(`{"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":{"a":"b \"c\"","n":3}}}]}`)},
			{Role: "tool", Content: "r", Extra: []byte(`{"tool_call_id":"call_1"}`)}}
		written, err := x.Render(t.Context(), Chat{Messages: messages, Tools: []byte(tools)})
		if err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		_, answer, _ := strings.Cut(written, "<assistant>")
		answer, _, _ = strings.Cut(answer, "<tool>")
		if format == toolcall.LFM { // its template escapes nothing
			answer = strings.ReplaceAll(answer, `"`, `\"`)
		}
		p, err := toolcall.New(got, declared, toolcall.Options{})
		if err != nil {
			t.Fatal(err)
		}
		args, name := "", ""
		for _, e := range append(p.Push(answer), p.Flush(false)...) {
			switch e.Kind {
			case toolcall.Begin:
				name = e.Text
			case toolcall.Arguments:
				args += e.Text
			case toolcall.Text:
				if strings.TrimSpace(e.Text) != "" {
					t.Errorf("%s: text %q of %q", format, e.Text, answer)
				}
			}
		}
		if compact := strings.NewReplacer(": ", ":", ", ", ",").Replace(args); p.Calls() != 1 || name != "f" || compact != `{"a":"b \"c\"","n":3}` {
			t.Errorf("%s: %q is read as %s %s", format, answer, name, args)
		}
		if format == toolcall.Kimi && (!strings.Contains(written, "<|tool_call_begin|>functions.f:0<") || !strings.Contains(written, "[functions.f:0]")) {
			t.Errorf("ids of calls in %q", written)
		}
	}
}
