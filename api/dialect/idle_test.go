package dialect

import (
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
)

func event(t *testing.T, name string, data any) string {
	t.Helper()
	b, err := openai.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	if name == "" {
		return fmt.Sprintf("data: %s\n\n", b)
	}
	return fmt.Sprintf("event: %s\ndata: %s\n\n", name, b)
}

func events(t *testing.T, all []openai.NamedEvent) (out []string) {
	t.Helper()
	for _, e := range all {
		out = append(out, event(t, e.Name, e.Data))
	}
	return out
}

// Until a part of the response was sent, another Mac can take over.
func TestIdleEventsAreThoseThatAddNothingToAnAnswer(t *testing.T) {
	p := &openai.PromptProgress{Total: 9, Processed: 3}
	chat, text := openai.ChatAnswer{ID: "c", Model: "m", IncludeUsage: true}, openai.CompletionAnswer{ID: "c", Model: "m"}
	ranked := text.Text("")
	ranked.Choices[0].Logprobs = &openai.CompletionLogprobs{}
	message := anthropic.Answer{}
	response := responses.NewAnswer("resp_1", 1, &responses.Request{Model: "m"})
	for name, tc := range map[string]struct {
		of         *Dialect
		idle, real []string
	}{
		"chat": {of: OpenAI, idle: []string{event(t, "", chat.KeepAlive(nil)), event(t, "", chat.KeepAlive(p))},
			real: []string{event(t, "", chat.Opening()), event(t, "", chat.Text("a")), event(t, "", chat.Finish("stop")), event(t, "", chat.Usage(openai.Usage{})), "data: [DONE]\n\n",
				event(t, "", chat.Text(`,"delta":{},"logprobs":null,"finish_reason":null}]}`))}},
		"completions": {of: OpenAI, idle: []string{event(t, "", text.KeepAlive(nil)), event(t, "", text.KeepAlive(p))},
			real: []string{event(t, "", text.Text("a")), event(t, "", text.Finish("stop")), event(t, "", ranked)}},
		"messages":  {of: Anthropic, idle: events(t, append(anthropic.Ping(nil), anthropic.Ping(p)...)), real: append(events(t, message.Opening()[:1]), events(t, message.Text("a"))...)},
		"responses": {of: Responses, idle: append(events(t, response.Opening()), events(t, response.KeepAlive(p))...), real: events(t, response.Text("a"))},
		"rerank":    {of: Rerank, real: []string{"data: {}\n\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, comment := range []string{"", ": keep-alive\n", ": keep-alive\n\n"} {
				for _, e := range append(tc.idle, "") {
					if !tc.of.Idle([]byte(comment + e)) {
						t.Errorf("not idle: %q", comment+e)
					}
				}
				for _, e := range tc.real {
					if tc.of.Idle([]byte(comment+e)) || len(tc.idle) > 0 && tc.of.Idle([]byte(tc.idle[0]+e)) {
						t.Errorf("idle: %q", comment+e)
					}
				}
			}
		})
	}
}
