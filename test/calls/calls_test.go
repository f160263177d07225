//go:build !race

package calls

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/metal/toolcall"
	"metalfleet.dev/metalfleet/metal/wire"
)

const definitions = `[{"type":"function","function":{"name":"write","description":"d","parameters":{"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"},"mode":{"type":"integer"}},"required":["path"]}}},
 {"type":"function","function":{"name":"now","description":"d","parameters":{"type":"object","properties":{}}}}]`

// transcripts are answers with thoughts, text, calls and flaws.
var transcripts = map[toolcall.Format][]string{
	toolcall.Hermes: {
		"I see.\n<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\": \"a\\u00e9\", \"content\": \"x\\n\", \"mode\": 5.0,}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": null}\n</tool_call>",
		`<tool_call>{"name": "rm", "arguments": {"path": "/"}}</tool_call>ok`,
	},
	toolcall.QwenXML: {
		"<tool_call>\n<function=write>\n<parameter=path>\na\n<parameter=content>\nx \"y\"\n</parameter>\n<parameter=mode>\n7\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
	},
	toolcall.Llama:        {`{"name": "write", "parameters": {"path": "a", "content": "x"}}; {"name": "now"}`, `<|python_tag|>print(1)`},
	toolcall.Mistral:      {`Well.[TOOL_CALLS][{"name": "write", "arguments": {"path": "a"}}, {"name": "now", "arguments": {}}]`},
	toolcall.MistralNamed: {`[TOOL_CALLS]write[CALL_ID]abcdefghi[ARGS]{"path": "a"}[TOOL_CALLS]now[ARGS]{}`},
	toolcall.GLM:          {"Well.<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>a\n<arg_key>mode</arg_key>\n<arg_value>5.0</arg_value>\n</tool_call>\n<tool_call>now</tool_call>"},
	toolcall.MiniMax:      {"<minimax:tool_call>\n<invoke name=\"write\">\n<parameter name=\"path\">a\n<parameter name=\"mode\">7</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>"},
	toolcall.DeepSeekV32:  {"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"write\">\n<｜DSML｜parameter name=\"path\" string=\"true\">a</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
	toolcall.Kimi:         {`<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>{"path": "a", "mode": 5.0}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>`},
	toolcall.DeepSeekV3:   {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write\n```json\n{\"path\": \"a\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
	toolcall.DeepSeekV31:  {`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>{"path": "a"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`},
	toolcall.Gemma:        {`Well.<|tool_call>call:write{path:<|"|>a"\n<|"|>,mode:5.0}<tool_call|><|tool_call>call:now{}<tool_call|>`},
	toolcall.LFM:          {`<|tool_call_start|>[write(path='a "b"', mode=5.0), now()]<|tool_call_end|>Well.`},
	toolcall.Harmony: {
		"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.write <|constrain|>json<|message|>{\"path\":\"a\",\"content\":\"x\"}<|call|>",
		"<|channel|>commentary to=browser.search<|message|>{\"q\": 1}<|call|>",
	},
}

// TestAnyResponseCanBeSentBack cuts answers of every format at every byte, as max_tokens does,
// and sends each response back with results of its calls: on every API, streamed and whole.
func TestAnyResponseCanBeSentBack(t *testing.T) {
	for _, f := range toolcall.Formats() {
		if len(transcripts[f]) == 0 {
			t.Errorf("%s has no transcripts", f)
		}
		for _, written := range transcripts[f] {
			for n := range len(written) + 1 {
				var before []*wire.GenerateEvent
				for _, held := range []bool{true, false} {
					events := answer(t, f, written[:n], held, n < len(written))
					if slices.EqualFunc(events, before, func(a, b *wire.GenerateEvent) bool { return proto.Equal(a, b) }) {
						continue // an agent serves the events alone
					}
					before = events
					a := agent(events)
					for _, c := range []client{chat{}, responses{}, messages{}} {
						for _, stream := range []bool{true, false} {
							if problem := roundTrip(a, c, stream, n < len(written)); problem != "" {
								t.Fatalf("%s, %T, stream %v, held %v, after %q: %s", f, c, stream, held, written[:n], problem)
							}
						}
					}
				}
			}
		}
	}
}

// answer is what an engine sends of one.
func answer(t *testing.T, f toolcall.Format, written string, held, cut bool) []*wire.GenerateEvent {
	t.Helper()
	tools, err := toolcall.ReadTools([]byte(definitions))
	if err != nil {
		t.Fatal(err)
	}
	p, err := toolcall.New(f, tools, toolcall.Options{Held: held})
	if err != nil {
		t.Fatal(err)
	}
	reason := wire.FinishReason_FINISH_REASON_STOP
	if cut {
		reason = wire.FinishReason_FINISH_REASON_LENGTH
	}
	all := []*wire.GenerateEvent{{Event: &wire.GenerateEvent_Admitted{Admitted: &wire.Admitted{PromptTokens: 1}}}}
	for _, e := range append(p.Push(written), p.Flush(cut)...) {
		all = append(all, &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: delta(e)}})
	}
	return append(all, &wire.GenerateEvent{Event: &wire.GenerateEvent_Finished{Finished: &wire.Finished{Reason: reason, Usage: &wire.Usage{PromptTokens: 1, GeneratedTokens: 1}, TextCalls: int32(p.Broken())}}})
}

// agent is one whose engine gives one answer.
func agent(events []*wire.GenerateEvent) http.Handler {
	fake := servetest.New()
	fake.Add("m", serve.Target{ReplicaUID: "u", Epoch: 1}, func(_ context.Context, _ *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		for _, e := range events {
			if err := send(e); err != nil {
				return err
			}
		}
		return nil
	})
	return serve.NewHandler(serve.Config{Engines: fake, Mac: "mac-a", Log: logr.Discard()})
}

func delta(e toolcall.Event) *wire.Delta {
	call := func(c *wire.CallDelta) *wire.Delta { return &wire.Delta{Calls: []*wire.CallDelta{c}} }
	switch e.Kind {
	case toolcall.Thought:
		return &wire.Delta{Reasoning: e.Text}
	case toolcall.Begin:
		return call(&wire.CallDelta{Name: e.Text})
	case toolcall.Arguments:
		return call(&wire.CallDelta{Arguments: e.Text})
	case toolcall.End:
		return call(&wire.CallDelta{Ended: true, Written: e.Text})
	}
	return &wire.Delta{Text: e.Text}
}

// client is one of an API. It asks, reads a response as its SDK does, and asks again with
// the response in its history.
type client interface {
	path() string
	first(stream bool) string
	// again is the request that follows a response, and what is wrong with the response.
	again(body string, stream, cut bool) (request, problem string)
}

func roundTrip(h http.Handler, c client, stream, cut bool) string {
	status, body := post(h, c.path(), c.first(stream))
	if status != http.StatusOK {
		return fmt.Sprintf("%d %s", status, body)
	}
	request, problem := c.again(body, stream, cut)
	if problem != "" {
		return problem + ": " + body
	}
	if status, body := post(h, c.path(), request); status != http.StatusOK {
		return fmt.Sprintf("sent back: %d %s for %s", status, body, request)
	}
	return ""
}

// recorder is a connection without deadlines.
type recorder struct{ *httptest.ResponseRecorder }

func (recorder) SetReadDeadline(time.Time) error  { return nil }
func (recorder) SetWriteDeadline(time.Time) error { return nil }

func post(h http.Handler, path, body string) (int, string) {
	w := recorder{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

// sent is the data of a stream's events.
func sent(body string) (out []map[string]any) {
	for _, line := range strings.Split(body, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		var one map[string]any
		if ok && json.Unmarshal([]byte(data), &one) == nil {
			out = append(out, one)
		}
	}
	return out
}

func written(v any) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSpace(out.String())
}

type object = map[string]any

// control reports whether content has a control token in it.
func control(content string) bool {
	for _, f := range toolcall.Formats() {
		for _, m := range f.Markers() {
			if strings.Contains(content, m) {
				return true
			}
		}
	}
	return false
}

// chat assembles deltas as OpenAI's SDK does.
type chat struct{}

func (chat) path() string { return "/v1/chat/completions" }

func (chat) first(stream bool) string {
	return fmt.Sprintf(`{"model":"m","stream":%v,"tools":%s,"messages":[{"role":"user","content":"hi"}]}`, stream, definitions)
}

func (chat) again(body string, stream, cut bool) (string, string) {
	message, reason := object{"role": "assistant", "content": ""}, ""
	if stream {
		var calls []object
		for _, chunk := range sent(body) {
			choice := chunk["choices"].([]any)[0].(object)
			if r, ok := choice["finish_reason"].(string); ok {
				reason = r
			}
			d := choice["delta"].(object)
			if text, ok := d["content"].(string); ok {
				message["content"] = message["content"].(string) + text
			}
			part, _ := d["tool_calls"].([]any)
			for _, p := range part {
				p := p.(object)
				if int(p["index"].(float64)) == len(calls) {
					calls = append(calls, p)
					continue
				}
				f := calls[len(calls)-1]["function"].(object)
				f["arguments"] = f["arguments"].(string) + p["function"].(object)["arguments"].(string)
			}
		}
		if calls != nil {
			message["tool_calls"] = calls
		}
	} else {
		var whole struct {
			Choices []struct {
				Message      object
				FinishReason string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(body), &whole); err != nil {
			return "", err.Error()
		}
		message, reason = whole.Choices[0].Message, whole.Choices[0].FinishReason
	}
	all := []any{object{"role": "user", "content": "hi"}, message}
	calls := 0
	for _, c := range list(message["tool_calls"]) {
		calls++
		if arguments := c["function"].(object)["arguments"].(string); !cut && !json.Valid([]byte(arguments)) {
			return "", "arguments " + arguments
		}
		all = append(all, object{"role": "tool", "tool_call_id": c["id"], "content": "done"})
	}
	if want := map[bool]string{true: "length", false: "stop"}[cut]; reason != want && (cut || calls == 0 || reason != "tool_calls") {
		return "", "finish reason " + reason
	}
	if text, _ := message["content"].(string); control(text) {
		return "", "a control token in the content"
	}
	return fmt.Sprintf(`{"model":"m","tools":%s,"messages":%s}`, definitions, written(append(all, object{"role": "user", "content": "go on"}))), ""
}

// list are the members of a JSON list, whether it was decoded or made here.
func list(v any) (out []object) {
	switch v := v.(type) {
	case []object:
		return v
	case []any:
		for _, one := range v {
			out = append(out, one.(object))
		}
	}
	return out
}

// responses sends the output items of a response back.
type responses struct{}

func (responses) path() string { return "/v1/responses" }

const functions = `[{"type":"function","name":"write","parameters":{"type":"object"}},{"type":"function","name":"now"}]`

func (responses) first(stream bool) string {
	return fmt.Sprintf(`{"model":"m","stream":%v,"store":false,"tools":%s,"input":"hi"}`, stream, functions)
}

func (responses) again(body string, stream, cut bool) (string, string) {
	var response object
	if stream {
		events := sent(body)
		response, _ = events[len(events)-1]["response"].(object)
	} else if err := json.Unmarshal([]byte(body), &response); err != nil {
		return "", err.Error()
	}
	if want := map[bool]string{true: "incomplete", false: "completed"}[cut]; response["status"] != want {
		return "", fmt.Sprintf("status %v", response["status"])
	}
	input := []any{object{"role": "user", "content": "hi"}}
	for _, item := range list(response["output"]) {
		input = append(input, item)
		switch item["type"] {
		case "function_call":
			if arguments := item["arguments"].(string); item["status"] == "completed" && !json.Valid([]byte(arguments)) {
				return "", "arguments " + arguments
			}
			input = append(input, object{"type": "function_call_output", "call_id": item["call_id"], "output": "done"})
		case "message":
			for _, p := range list(item["content"]) {
				if control(p["text"].(string)) {
					return "", "a control token in the text"
				}
			}
		}
	}
	return fmt.Sprintf(`{"model":"m","tools":%s,"input":%s}`, functions, written(append(input, object{"role": "user", "content": "go on"}))), ""
}

// messages assembles blocks as Anthropic's SDK does: the input of a block is what can be
// read of it.
type messages struct{}

func (messages) path() string { return "/v1/messages" }

const toolsOfMessages = `[{"name":"write","input_schema":{"type":"object"}},{"name":"now","input_schema":{"type":"object"}}]`

func (messages) first(stream bool) string {
	return fmt.Sprintf(`{"model":"m","max_tokens":9,"stream":%v,"tools":%s,"messages":[{"role":"user","content":"hi"}]}`, stream, toolsOfMessages)
}

func (messages) again(body string, stream, cut bool) (string, string) {
	var message struct {
		Content    []object
		StopReason string `json:"stop_reason"`
	}
	if !stream {
		if err := json.Unmarshal([]byte(body), &message); err != nil {
			return "", err.Error()
		}
	}
	raw := ""
	for _, e := range sent(body) {
		switch e["type"] {
		case "content_block_start":
			message.Content, raw = append(message.Content, e["content_block"].(object)), ""
		case "content_block_delta":
			d, last := e["delta"].(object), message.Content[len(message.Content)-1]
			if text, ok := d["text"].(string); ok {
				last["text"] = last["text"].(string) + text
			}
			if more, ok := d["partial_json"].(string); ok {
				raw += more
				last["input"] = readable(raw)
			}
		case "message_delta":
			message.StopReason, _ = e["delta"].(object)["stop_reason"].(string)
		}
	}
	var results []any
	for _, b := range message.Content {
		if b["type"] == "tool_use" {
			results = append(results, object{"type": "tool_result", "tool_use_id": b["id"], "content": "done"})
		}
		if text, _ := b["text"].(string); control(text) {
			return "", "a control token in the text"
		}
	}
	if cut != (message.StopReason == "max_tokens") {
		return "", "stop reason " + message.StopReason
	}
	if message.Content == nil {
		message.Content = []object{}
	}
	all := []any{object{"role": "user", "content": "hi"}, object{"role": "assistant", "content": message.Content},
		object{"role": "user", "content": append(results, object{"type": "text", "text": "go on"})}}
	return fmt.Sprintf(`{"model":"m","max_tokens":9,"tools":%s,"messages":%s}`, toolsOfMessages, written(all)), ""
}

// readable is the object that the beginning of a JSON text has, without the member that is
// not complete.
func readable(text string) object {
	out := object{}
	for end := len(text); end > 0; end-- {
		for _, close := range []string{"", "}"} {
			if json.Unmarshal([]byte(strings.TrimSuffix(strings.TrimSpace(text[:end]), ",")+close), &out) == nil {
				return out
			}
		}
	}
	return out
}
