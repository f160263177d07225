package serve_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
)

const responseTools = `,"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":false},{"type":"function","name":"g"}]`

// thinking is an answer: thoughts, text, a call in pieces, and one that came at once.
func thinking() servetest.Script {
	thought := servetest.Text("")
	thought.GetDelta().Reasoning = "Hm"
	return servetest.Events(servetest.Admit(), thought, callOf("See.", &wire.CallDelta{Name: "f"}, &wire.CallDelta{Arguments: `{"a"`}),
		callOf("", &wire.CallDelta{Arguments: `: 1}`}, &wire.CallDelta{Ended: true}), callOf("", &wire.CallDelta{Name: "g", Arguments: "{}", Ended: true}),
		servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 3))
}

// Items as that answer has them.
const (
	thoughtDone = `{"id":"rs_X","type":"reasoning","status":"completed","summary":[],"content":[{"type":"reasoning_text","text":"Hm"}]}`
	messageDone = `{"id":"msg_X","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"See.","annotations":[],"logprobs":[]}]}`
	firstDone   = `{"id":"fc_X","type":"function_call","status":"completed","call_id":"call_X","name":"f","arguments":"{\"a\": 1}"}`
	secondDone  = `{"id":"fc_X","type":"function_call","status":"completed","call_id":"call_X","name":"g","arguments":"{}"}`
)

// Each item has its index, its events and its end.
func TestResponsesToolCallStream(t *testing.T) {
	p := newPort(t, thinking())
	got := settled(read(t, p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true,"store":false,"reasoning":{"effort":"low"}`+responseTools+`}`)))
	response := func(status, output, usage string) string {
		return responseJSON(status, output, `"low"`, `{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":false},`+
			`{"type":"function","name":"g","description":null,"parameters":null,"strict":false}`, usage)
	}
	var want strings.Builder
	n := 0
	event := func(name, rest string) {
		number, _ := json.Marshal(n)
		want.WriteString("event: " + name + "\ndata: {\"type\":\"" + name + `","sequence_number":` + string(number) + "," + rest + "}\n\n")
		n++
	}
	event("response.created", `"response":`+response("in_progress", "", "null"))
	event("response.in_progress", `"response":`+response("in_progress", "", "null"))
	at := `"item_id":"rs_X","output_index":0,"content_index":0,`
	event("response.output_item.added", `"output_index":0,"item":{"id":"rs_X","type":"reasoning","status":"in_progress","summary":[],"content":[]}`)
	event("response.content_part.added", at+`"part":{"type":"reasoning_text","text":""}`)
	event("response.reasoning_text.delta", at+`"delta":"Hm"`)
	event("response.reasoning_text.done", at+`"text":"Hm"`)
	event("response.content_part.done", at+`"part":{"type":"reasoning_text","text":"Hm"}`)
	event("response.output_item.done", `"output_index":0,"item":`+thoughtDone)
	at = `"item_id":"msg_X","output_index":1,"content_index":0,`
	event("response.output_item.added", `"output_index":1,"item":{"id":"msg_X","type":"message","role":"assistant","status":"in_progress","content":[]}`)
	event("response.content_part.added", at+`"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}`)
	event("response.output_text.delta", at+`"delta":"See.","logprobs":[]`)
	event("response.output_text.done", at+`"text":"See.","logprobs":[]`)
	event("response.content_part.done", at+`"part":{"type":"output_text","text":"See.","annotations":[],"logprobs":[]}`)
	event("response.output_item.done", `"output_index":1,"item":`+messageDone)
	at = `"item_id":"fc_X","output_index":2,`
	event("response.output_item.added", `"output_index":2,"item":{"id":"fc_X","type":"function_call","status":"in_progress","call_id":"call_X","name":"f","arguments":""}`)
	event("response.function_call_arguments.delta", at+`"delta":"{\"a\""`)
	event("response.function_call_arguments.delta", at+`"delta":": 1}"`)
	event("response.function_call_arguments.done", at+`"name":"f","arguments":"{\"a\": 1}"`)
	event("response.output_item.done", `"output_index":2,"item":`+firstDone)
	at = `"item_id":"fc_X","output_index":3,`
	event("response.output_item.added", `"output_index":3,"item":{"id":"fc_X","type":"function_call","status":"in_progress","call_id":"call_X","name":"g","arguments":""}`)
	event("response.function_call_arguments.delta", at+`"delta":"{}"`)
	event("response.function_call_arguments.done", at+`"name":"g","arguments":"{}"`)
	event("response.output_item.done", `"output_index":3,"item":`+secondDone)
	event("response.completed", `"response":`+response("completed", strings.Join([]string{thoughtDone, messageDone, firstDone, secondDone}, ","),
		`{"input_tokens":3,"input_tokens_details":{"cache_write_tokens":0,"cached_tokens":1},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":6}`))
	if d := cmp.Diff(want.String(), got); d != "" {
		t.Error(d)
	}
	asked := <-p.seen
	chat := asked.GetChat()
	if chat.GetReasoningEffort() != "low" || !chat.GetSplitReasoning() || chat.GetCalls() == nil || !strings.Contains(chat.GetToolsJson(), `"name":"f"`) {
		t.Errorf("asked %v", asked)
	}
	whole := settled(read(t, p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi"`+responseTools+`}`)))
	if want := `"output":[` + strings.Join([]string{thoughtDone, messageDone, firstDone, secondDone}, ",") + `]`; !strings.Contains(whole, want) {
		t.Errorf("whole: %s", whole)
	}
}

// The next prompt has the call and its result, whether the client sends them or
// names the previous response.
func TestResponseContinuesAfterItsCalls(t *testing.T) {
	p := newPort(t, thinking())
	first := p.respond(responseTools)
	<-p.seen
	ids := []string{first.Output[2].CallID, first.Output[3].CallID}
	outputs := `{"type":"function_call_output","call_id":"` + ids[0] + `","output":"1"},{"type":"function_call_output","call_id":"` + ids[1] + `","output":[{"type":"input_text","text":"2"}]}`
	calls := `"tool_calls":[{"id":"` + ids[0] + `","type":"function","function":{"name":"f","arguments":{"a": 1}}},{"id":"` + ids[1] + `","type":"function","function":{"name":"g","arguments":{}}}]`
	want := []*wire.ChatMessage{{Role: "user", Content: "hi"}, {Role: "assistant", Content: "See.", ExtraJson: `{"reasoning_content":"Hm",` + calls + `}`},
		{Role: "tool", Content: "1", Name: "f", ExtraJson: `{"tool_call_id":"` + ids[0] + `"}`}, {Role: "tool", Content: "2", Name: "g", ExtraJson: `{"tool_call_id":"` + ids[1] + `"}`}}
	said, err := json.Marshal(first.Output)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{
		"by its id":  `{"model":"m","previous_response_id":"` + first.ID + `","input":[` + outputs + `]}`,
		"sent again": `{"model":"m","input":[{"role":"user","content":"hi"},` + string(said[1:len(said)-1]) + `,` + outputs + `]}`,
	} {
		resp := p.do("POST", dialect.PathResponses, body)
		if got := read(t, resp); resp.StatusCode != 200 {
			t.Fatalf("%s: %s", name, got)
		}
		got := (<-p.seen).GetChat().GetMessages()
		for _, m := range append(got, want...) {
			m.ExtraJson = strings.ReplaceAll(m.ExtraJson, ": ", ":")
		}
		if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":[{"role":"user","content":"hi"},{"type":"function_call_output","call_id":"nobodys","output":"1"}]}`)
	if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, `"param":"input"`) || !strings.Contains(got, "nobodys") {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	var list responses.ItemList
	page := p.kept("GET", p.respond(`,"previous_response_id":"`+first.ID+`"`).ID+"/input_items", 200)
	if err := json.Unmarshal([]byte(page), &list); err != nil || len(list.Data) != 1 {
		t.Errorf("%s", page)
	}
}

// What was written of it is in no later prompt.
func TestTruncatedCallIsIncomplete(t *testing.T) {
	p := newPort(t, broken())
	got := settled(read(t, p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true`+responseTools+`}`)))
	const half = `{"id":"fc_X","type":"function_call","status":"incomplete","call_id":"call_X","name":"f","arguments":"{\"a"}`
	if !strings.Contains(got, "event: response.output_item.done\ndata: {\"type\":\"response.output_item.done\",\"sequence_number\":5,\"output_index\":0,\"item\":"+half) ||
		!strings.Contains(got, `"output":[`+half+`,{"id":"msg_X"`) {
		t.Error(got)
	}
	<-p.seen
	resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true`+responseTools+`}`)
	raw := read(t, resp)
	<-p.seen
	id := raw[strings.Index(raw, "resp_"):]
	p.respond(`,"previous_response_id":"` + id[:strings.Index(id, `"`)] + `"`)
	want := []*wire.ChatMessage{{Role: "user", Content: "hi"}, {Role: "assistant", Content: "rest"}, {Role: "user", Content: "hi"}}
	if d := cmp.Diff(want, (<-p.seen).GetChat().GetMessages(), protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// Only reasoning and calls are merged into the assistant's message.
func TestConsecutiveMessagesStaySeparate(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	read(t, p.do("POST", dialect.PathResponses, `{"model":"m","input":[{"role":"user","content":"hi"},{"role":"assistant","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}`))
	want := []*wire.ChatMessage{{Role: "user", Content: "hi"}, {Role: "assistant", Content: "a"}, {Role: "assistant", Content: "b"}, {Role: "user", Content: "c"}}
	if d := cmp.Diff(want, (<-p.seen).GetChat().GetMessages(), protocmp.Transform()); d != "" {
		t.Error(d)
	}
}
