package agents

import (
	"slices"
	"strings"
	"testing"
)

func TestTrafficIsReadInTheWordsOfEachAPI(t *testing.T) {
	events := func(all ...string) []byte { return []byte("data: " + strings.Join(all, "\n\ndata: ") + "\n\n") }
	for name, c := range map[string]struct {
		path                  string
		body                  []byte
		calls                 []string
		input, output, cached int
	}{
		"chat": {path: "/v1/chat/completions", body: []byte(`{"choices":[{"message":{"tool_calls":[{"id":"1","type":"function","function":{"name":"a","arguments":"{}"}}]}}],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}`),
			calls: []string{"a"}, input: 7, output: 3, cached: 2},
		"chat, streamed": {path: "/v1/chat/completions", body: events(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"1","type":"function","function":{"name":"a","arguments":""}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}`, `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`, `[DONE]`),
			calls: []string{"a"}, input: 7, output: 3},
		"responses": {path: "/v1/responses", body: []byte(`{"object":"response","output":[{"type":"message"},{"type":"function_call","call_id":"1","name":"a"}],"tools":[{"type":"function","name":"b"}],"usage":{"input_tokens":7,"output_tokens":3,"input_tokens_details":{"cached_tokens":2}}}`),
			calls: []string{"a"}, input: 7, output: 3, cached: 2},
		"responses, streamed": {path: "/v1/responses", body: events(`{"type":"response.output_item.added","item":{"type":"function_call","call_id":"1","name":"a"}}`,
			`{"type":"response.completed","response":{"output":[{"type":"function_call","call_id":"1","name":"a"},{"type":"custom_tool_call","call_id":"2","name":"b"}],"usage":{"input_tokens":7,"output_tokens":3}}}`),
			calls: []string{"a", "b"}, input: 7, output: 3},
		"messages": {path: "/v1/messages", body: []byte(`{"type":"message","content":[{"type":"text"},{"type":"tool_use","id":"1","name":"a"}],"usage":{"input_tokens":7,"output_tokens":3,"cache_read_input_tokens":2}}`),
			calls: []string{"a"}, input: 7, output: 3, cached: 2},
		"messages, streamed": {path: "/v1/messages", body: events(`{"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}`, `{"type":"ping"}`,
			`{"type":"content_block_start","content_block":{"type":"tool_use","id":"1","name":"a"}}`, `{"type":"message_delta","usage":{"output_tokens":3}}`),
			calls: []string{"a"}, input: 7, output: 3},
	} {
		got, err := inspect([]exchange{{Method: "POST", Path: c.path, Status: 200, Ignored: []string{"store"}, Response: c.body, Ended: true}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(got.Calls, c.calls) || got.Input != c.input || got.Output != c.output || got.Cached != c.cached {
			t.Errorf("%s: %+v", name, got)
		}
		if !slices.Equal(got.Ignored, []string{"store"}) || got.Requests[c.path] != 1 {
			t.Errorf("%s: ignored %v, requests %v", name, got.Ignored, got.Requests)
		}
	}
}

func TestAResponseThatIsRefusedOrHasNoUsageFails(t *testing.T) {
	for name, e := range map[string]exchange{
		"refused":  {Method: "POST", Path: "/v1/messages", Status: 400, Response: []byte(`{"type":"error"}`), Ended: true},
		"no usage": {Method: "POST", Path: "/v1/responses", Status: 200, Response: []byte(`{"object":"response"}`), Ended: true},
		"no JSON":  {Method: "POST", Path: "/v1/responses", Status: 200, Response: []byte(`oops`), Ended: true},
	} {
		if _, err := inspect([]exchange{e}); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	if _, err := inspect([]exchange{{Method: "POST", Path: "/v1/messages"}, {Method: "POST", Path: "/v1/chat/completions", Status: 200, Response: []byte("data: {}\n\ndata: {\"cho")}}); err != nil {
		t.Errorf("responses that a program did not wait for: %v", err)
	}
}

func TestAProgramThatDoesOtherThanExpectedFails(t *testing.T) {
	p := Program{Path: "/v1/messages", Calls: []string{"a"}, Ignored: []string{"store"}}
	right := traffic{Requests: map[string]int{"/v1/messages": 1}, Calls: []string{"a"}, Ignored: []string{"store"}, Input: 2, Output: 1, Cached: 1}
	if err := p.judge(right); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*traffic){
		"another API":          func(t *traffic) { t.Requests = map[string]int{"/v1/responses": 1} },
		"fewer calls":          func(t *traffic) { t.Calls = nil },
		"another call":         func(t *traffic) { t.Calls = []string{"b"} },
		"another ignored name": func(t *traffic) { t.Ignored = []string{"metadata"} },
		"nothing cached":       func(t *traffic) { t.Cached = 0 },
		"no output":            func(t *traffic) { t.Output = 0 },
	} {
		wrong := right
		change(&wrong)
		if p.judge(wrong) == nil {
			t.Errorf("%s passes", name)
		}
	}
}
