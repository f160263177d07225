//go:build !race

package chat

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/chat/jinja"
)

const chatML = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}" +
	"{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

func render(t *testing.T, source string, messages []Message, o Options) string {
	t.Helper()
	s, err := Render(context.Background(), source, messages, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConversationBecomesThePromptOfItsModel(t *testing.T) {
	messages := []Message{{Role: "user", Content: "Hi"}, {Role: "assistant", Content: "Hello"}, {Role: "user", Content: "Bye"}}
	want := "<|im_start|>system\nBe helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
	if got := render(t, chatML, messages, Options{}); got != want {
		t.Errorf("got %q", got)
	}
	if got := render(t, chatML, messages, Options{AddGenerationPrompt: true}); got != want+"<|im_start|>assistant\n" {
		t.Errorf("got %q", got)
	}
}

func TestDevelopersAreTheSystemWhereTheTemplateKnowsNone(t *testing.T) {
	messages := []Message{{Role: "developer", Content: "x"}}
	if got := render(t, "{{ messages[0].role }}", messages, Options{}); got != "system" {
		t.Errorf("got %q", got)
	}
	if got := render(t, "{{ messages[0].role }}{# developer #}", messages, Options{}); got != "developer" {
		t.Errorf("got %q", got)
	}
}

func TestTemplateSeesWhatTransformersGives(t *testing.T) {
	o := Options{BOS: "<s>", Tools: json.RawMessage(`[{"b":1,"a":2}]`), Arguments: json.RawMessage(`{"enable_thinking":false}`),
		Now: time.Date(2026, 3, 9, 0, 0, 0, 0, time.UTC)}
	messages := []Message{{Role: "user", Content: "c", Name: "ann", Extra: json.RawMessage(`{"tool_calls":[{"id":"1"}]}`)}}
	source := "{{ bos_token }}|{{ eos_token is defined }}|{{ tools | tojson }}|{{ documents is none }}|{{ enable_thinking }}|{{ add_generation_prompt }}|{{ messages[0] | tojson }}|{{ strftime_now('%Y') }}"
	want := `<s>|False|[{"b": 1, "a": 2}]|True|False|False|{"role": "user", "content": "c", "name": "ann", "tool_calls": [{"id": "1"}]}|2026`
	if got := render(t, source, messages, o); got != want {
		t.Errorf("got %s", got)
	}
	if got := render(t, "{{ tools is none }}{{ messages[0].name is defined }}", []Message{{Role: "user"}}, Options{Tools: json.RawMessage(`[]`)}); got != "TrueFalse" {
		t.Errorf("got %s", got)
	}
}

func TestErrorsSayWhoIsAtFault(t *testing.T) {
	user := []Message{{Role: "user", Content: "x"}}
	tests := map[string]struct {
		source   string
		messages []Message
		o        Options
		kind     error
		says     string
	}{
		"a template that is none":           {source: "{% if %}", messages: user, o: Options{}, kind: ErrTemplate, says: "line 1"},
		"a template with an unknown tag":    {source: "{% include 'x' %}", messages: user, o: Options{}, kind: ErrTemplate, says: `"include" is not supported`},
		"an endless template":               {source: "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", messages: user, o: Options{Limits: jinja.Limits{Steps: 1000}}, kind: ErrTemplate, says: "too many steps"},
		"too much output":                   {source: "{{ 'x' * 2000 }}", messages: user, o: Options{Limits: jinja.Limits{Bytes: 1000}}, kind: ErrTemplate, says: "too much memory"},
		"a refused conversation":            {source: "{{ raise_exception('Roles must alternate') }}", messages: user, o: Options{}, kind: ErrMessages, says: "Roles must alternate"},
		"a conversation that does not fit":  {source: "{{ messages[0].content + messages[1].content }}", messages: user, o: Options{}, kind: ErrMessages, says: "undefined"},
		"extra members that are no object":  {messages: []Message{{Role: "user", Extra: json.RawMessage(`[1]`)}}, o: Options{}, kind: ErrMessages, says: "message 0: not a JSON object"},
		"extra members that are no JSON":    {messages: []Message{{Role: "user", Extra: json.RawMessage(`{`)}}, o: Options{}, kind: ErrMessages, says: "message 0"},
		"tools that are no array":           {messages: user, o: Options{Tools: json.RawMessage(`{}`)}, kind: ErrMessages, says: "tools are not a JSON array of objects"},
		"tools that are no objects":         {messages: user, o: Options{Tools: json.RawMessage(`["f"]`)}, kind: ErrMessages, says: "tools are not a JSON array of objects"},
		"messages among the arguments":      {messages: user, o: Options{Arguments: json.RawMessage(`{"messages":[]}`)}, kind: ErrMessages, says: "messages cannot be set here"},
		"tools among the arguments":         {messages: user, o: Options{Arguments: json.RawMessage(`{"tools":[]}`)}, kind: ErrMessages, says: "tools cannot be set here"},
		"a turn that is not opened":         {messages: user, o: Options{Arguments: json.RawMessage(`{"add_generation_prompt":false}`)}, kind: ErrMessages, says: "add_generation_prompt cannot be set here"},
		"a function among the arguments":    {messages: user, o: Options{Arguments: json.RawMessage(`{"raise_exception":1}`)}, kind: ErrMessages, says: "raise_exception cannot be set here"},
		"documents that are no objects":     {messages: user, o: Options{Arguments: json.RawMessage(`{"documents":["d"]}`)}, kind: ErrMessages, says: "documents are not"},
		"no message":                        {o: Options{}, kind: ErrMessages, says: "at least one message"},
		"arguments that are no object":      {messages: user, o: Options{Arguments: json.RawMessage(`7`)}, kind: ErrMessages, says: "template arguments"},
		"arguments that are nested too far": {messages: user, o: Options{Arguments: json.RawMessage(`{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`)}, kind: ErrMessages, says: "nested"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Render(context.Background(), tc.source, tc.messages, tc.o)
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %v saying %q", err, tc.kind, tc.says)
			}
		})
	}
	var refused *RefusedError
	if _, err := Render(context.Background(), "{{ raise_exception('why') }}", user, Options{}); !errors.As(err, &refused) || refused.Message != "why" {
		t.Errorf("error %v", err)
	}
}

func TestCheckFindsATemplateThatCannotWork(t *testing.T) {
	for source, good := range map[string]bool{chatML: true, "{{ nope() }}": false, "{{ messages[0].content.nomethod() }}": false, "{{ raise_exception('always') }}": false} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if err := tmpl.Check(context.Background(), Options{}); (err == nil) != good || (err != nil && !errors.Is(err, ErrTemplate)) {
			t.Errorf("%s: %v", source, err)
		}
	}
}

func TestCancelledRenderReturnsTheContextsError(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Render(ctx, "{% for i in range(99999) %}{% endfor %}", []Message{{Role: "user"}}, Options{})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrTemplate) || errors.Is(err, ErrMessages) {
		t.Errorf("error %v", err)
	}
}

func TestMessagesAreWhatTransformersMakesOfThem(t *testing.T) {
	const show = "{{ messages | tojson }}"
	tests := map[string]struct{ raw, want string }{
		"as they stand":            {raw: `[{"role":"user","content":[{"type":"text","text":"a"}],"x":1}]`, want: `[{"role": "user", "content": [{"type": "text", "text": "a"}], "x": 1}]`},
		"without what is null":     {raw: `[{"role":"assistant","content":null,"tool_calls":[{"function":{"arguments":null}}]}]`, want: `[{"role": "assistant", "tool_calls": [{"function": {"arguments": null}}]}]`},
		"reasoning by each name":   {raw: `[{"role":"assistant","reasoning":"r","content":"c"}]`, want: `[{"thinking": "r", "role": "assistant", "reasoning": "r", "content": "c", "reasoning_content": "r"}]`},
		"reasoning by two names":   {raw: `[{"role":"assistant","thinking":"t","reasoning_content":null}]`, want: `[{"thinking": "t", "role": "assistant", "reasoning_content": "t"}]`},
		"the first name counts":    {raw: `[{"thinking":"t","reasoning_content":"c"}]`, want: `[{"thinking": "t", "reasoning_content": "c"}]`},
		"developers as the system": {raw: `[{"role":"developer"}]`, want: `[{"role": "system"}]`},
		"without a role":           {raw: `[{}]`, want: `[{}]`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			messages, err := ParseMessages([]byte(tc.raw))
			if err != nil {
				t.Fatal(err)
			}
			if got := render(t, show, messages, Options{}); got != tc.want {
				t.Errorf("got %s", got)
			}
		})
	}
	m := Message{Role: "assistant", Content: "c", Extra: json.RawMessage(`{"content":null,"reasoning_content":"r"}`)}
	if got := render(t, show, []Message{m}, Options{}); got != `[{"thinking": "r", "role": "assistant", "reasoning_content": "r"}]` {
		t.Errorf("got %s", got)
	}
	for _, raw := range []string{``, `{}`, `[1]`, `[{}] x`, `[{"a":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}]`} {
		if _, err := ParseMessages([]byte(raw)); !errors.Is(err, ErrMessages) {
			t.Errorf("%s: %v", raw, err)
		}
	}
}
