package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
)

// asked posts a request for a response, and returns the response and what the
// engine was asked.
func (p *port) asked(body string) (responses.Response, *wire.GenerateRequest, http.Header) {
	p.t.Helper()
	resp := p.do("POST", dialect.PathResponses, body)
	text := read(p.t, resp)
	var r responses.Response
	if err := json.Unmarshal([]byte(text), &r); err != nil || resp.StatusCode != 200 {
		p.t.Fatalf("%d %s", resp.StatusCode, text)
	}
	return r, <-p.seen, resp.Header
}

func wantTalk(t *testing.T, r *wire.GenerateRequest, want ...*wire.ChatMessage) {
	t.Helper()
	if d := cmp.Diff(want, r.GetChat().GetMessages(), protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// The first request of Codex 0.171.
func TestCodexRequestIsAnswered(t *testing.T) {
	p := newPort(t, servetest.Say("hello"))
	_, asked, header := p.asked(`{"model":"m","stream":false,"instructions":"You are Codex.","input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"a"}]},` +
		`{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}],"tools":[{"type":"function","name":"exec_command","strict":false,"parameters":{"type":"object","properties":{"cmd":{"type":"string"}}}},` +
		`{"type":"namespace","name":"multi_agent_v1","description":"d","tools":[]},{"type":"custom","name":"apply_patch","description":"d","format":{"type":"grammar","syntax":"lark","definition":"start: /.+/s"}},` +
		`{"type":"web_search","external_web_access":true},{"type":"local_shell"}],"tool_choice":"auto","parallel_tool_calls":true,"reasoning":{"effort":"medium","summary":"auto"},` +
		`"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","client_metadata":{"thread_id":"t"},"text":{"verbosity":"low"}}`)
	wantTalk(t, asked, &wire.ChatMessage{Role: "system", Content: "You are Codex.\n\na"}, &wire.ChatMessage{Role: "user", Content: "hi"})
	var tools []struct {
		Function struct{ Name string }
	}
	if err := json.Unmarshal([]byte(asked.GetChat().GetToolsJson()), &tools); err != nil || len(tools) != 2 || tools[0].Function.Name != "exec_command" || tools[1].Function.Name != "apply_patch" {
		t.Errorf("the tools are %s (%v)", asked.GetChat().GetToolsJson(), err)
	}
	if asked.GetChat().GetReasoningEffort() != "medium" || asked.GetChat().GetCalls().GetRequired() || asked.GetChat().GetCalls().GetStrict() {
		t.Errorf("asked %v", asked)
	}
	want := []string{"tools[web_search]", "tools[local_shell]", "reasoning.summary", "include", "client_metadata", "text.verbosity"}
	if got := agentapi.Ignored(header); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("ignored are %q, want %q", got, want)
	}
}

// What Codex, the Agents SDK and the AI SDK send back.
func TestItemsOfClientsAreAccepted(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	_, asked, header := p.asked(`{"model":"m","input":[{"role":"user","content":"x"},{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}],"encrypted_content":"abc"},` +
		`{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm"}],"encrypted_content":null},` +
		`{"type":"message","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":"y","annotations":[]}]},` +
		`{"type":"function_call","name":"shell","arguments":"{}","call_id":"c1","namespace":"n"},{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"o"},{"type":"input_text","text":"k"}]},` +
		`{"type":"custom_tool_call","name":"patch","input":"*** a\n","call_id":"c2"},{"type":"custom_tool_call_output","call_id":"c2","output":"done"},` +
		`{"role":"developer","content":"be brief"},{"role":"user","content":"z"}]}`)
	wantTalk(t, asked, &wire.ChatMessage{Role: "user", Content: "x"},
		&wire.ChatMessage{Role: "assistant", Content: "y", ExtraJson: `{"reasoning_content":"Hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"n__shell","arguments":{}}}]}`},
		&wire.ChatMessage{Role: "tool", Content: "ok", Name: "n__shell", ExtraJson: `{"tool_call_id":"c1"}`},
		&wire.ChatMessage{Role: "assistant", ExtraJson: `{"tool_calls":[{"id":"c2","type":"function","function":{"name":"patch","arguments":{"input":"*** a\n"}}}]}`},
		&wire.ChatMessage{Role: "tool", Content: "done", Name: "patch", ExtraJson: `{"tool_call_id":"c2"}`},
		&wire.ChatMessage{Role: "system", Content: "be brief"}, &wire.ChatMessage{Role: "user", Content: "z"})
	if got, want := agentapi.Ignored(header), []string{"input[].summary", "input[].encrypted_content", "input[].phase"}; !slices.Equal(got, want) {
		t.Errorf("ignored are %q, want %q", got, want)
	}
}

func TestStructuredOutputIsAskedOfTheEngine(t *testing.T) {
	p := newPort(t, servetest.Say("{}"))
	for format, want := range map[string]*wire.Constraint{
		`{"type":"json_schema","name":"a","strict":true,"schema":{"type":"object"}}`: {Form: &wire.Constraint_JsonSchema{JsonSchema: `{"type":"object"}`}, Param: "text.format.schema"},
		`{"type":"json_object"}`: {Form: &wire.Constraint_JsonObject{JsonObject: true}, Param: "text.format"},
		`{"type":"text"}`:        nil,
	} {
		r, asked, _ := p.asked(`{"model":"m","input":"hi","text":{"format":` + format + `}}`)
		if d := cmp.Diff(want, asked.GetConstraint(), protocmp.Transform()); d != "" {
			t.Errorf("%s: %s", format, d)
		}
		if shown, _ := json.Marshal(r.Text.Format); !strings.Contains(string(shown), `"type":"`+strings.Split(format, `"`)[3]+`"`) {
			t.Errorf("%s is shown as %s", format, shown)
		}
	}
}

// The AI SDK sends a reference for each stored item from the second turn on.
func TestReferencesStandForStoredItems(t *testing.T) {
	p := newPort(t, thinking())
	first := p.respond(responseTools)
	<-p.seen
	var refs []string
	for _, i := range first.Output {
		refs = append(refs, `{"type":"item_reference","id":"`+i.ID+`"}`)
	}
	refs[1] = strings.Replace(refs[1], `"type":"item_reference",`, "", 1) // the type is optional
	second, asked, _ := p.asked(`{"model":"m","input":[{"role":"user","content":"hi"},` + strings.Join(refs, ",") +
		`,{"type":"function_call_output","call_id":"` + first.Output[2].CallID + `","output":"1"},{"type":"function_call_output","call_id":"` + first.Output[3].CallID + `","output":"2"},{"role":"user","content":"and now?"}]}`)
	got := asked.GetChat().GetMessages()
	if len(got) != 5 || got[1].GetContent() != "See." || !strings.Contains(got[1].GetExtraJson(), `"reasoning_content":"Hm"`) || strings.Count(got[1].GetExtraJson(), `"function"`) != 4 || got[3].GetName() != "g" {
		t.Errorf("asked %v", got)
	}
	var list responses.ItemList
	if err := json.Unmarshal([]byte(p.kept("GET", second.ID+"/input_items?order=asc", 200)), &list); err != nil || len(list.Data) != 8 || list.Data[1].ID != first.Output[0].ID {
		t.Errorf("%+v, %v", list, err)
	}
	// Items of the input can be referred to as well, also after their first response
	// was deleted.
	p.kept("DELETE", first.ID, 200)
	_, asked, _ = p.asked(`{"model":"m","input":[{"type":"item_reference","id":"` + list.Data[0].ID + `"},{"type":"item_reference","id":"` + first.Output[1].ID + `"},{"role":"user","content":"x"}]}`)
	wantTalk(t, asked, &wire.ChatMessage{Role: "user", Content: "hi"}, &wire.ChatMessage{Role: "assistant", Content: "See."}, &wire.ChatMessage{Role: "user", Content: "x"})
	for name, tc := range map[string]struct{ id, owner string }{"unknown": {id: "msg_1", owner: ""}, "another's": {id: first.Output[1].ID, owner: "other"}} {
		resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":[{"role":"user","content":"x"},{"type":"item_reference","id":"`+tc.id+`"}]}`, agentapi.HeaderTenant, tc.owner)
		if got := read(t, resp); resp.StatusCode != 404 || !strings.Contains(got, `"param":"input[1].id","code":"item_not_found"`) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, got)
		}
	}
}

// A stream that the token limit ends within a call, and what its client sends back.
func TestConversationGoesOnAfterACallThatBrokeOff(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), callOf("", &wire.CallDelta{Name: "f", Arguments: `{"a`}, &wire.CallDelta{Ended: true, Written: "<f>{\"a"}),
		servetest.Finish(wire.FinishReason_FINISH_REASON_LENGTH, 6)))
	raw := read(t, p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true,"max_output_tokens":6`+responseTools+`}`))
	<-p.seen
	var last struct{ Response responses.Response }
	_, data, _ := strings.Cut(raw[strings.Index(raw, "event: response.incomplete"):], "data: ")
	if err := json.Unmarshal([]byte(strings.TrimSpace(data)), &last); err != nil {
		t.Fatal(err)
	}
	call := last.Response.Output[0]
	item, err := json.Marshal(call)
	if err != nil || call.Status != responses.StatusIncomplete {
		t.Fatalf("%s, %v", item, err)
	}
	more := `{"type":"function_call_output","call_id":"` + call.CallID + `","output":"broken"},{"role":"user","content":"again"}`
	want := []*wire.ChatMessage{{Role: "user", Content: "hi"}, {Role: "assistant", ExtraJson: `{"tool_calls":[{"id":"` + call.CallID + `","type":"function","function":{"name":"f","arguments":{}}}]}`},
		{Role: "tool", Content: "broken", Name: "f", ExtraJson: `{"tool_call_id":"` + call.CallID + `"}`}, {Role: "user", Content: "again"}}
	for name, body := range map[string]string{
		"sent again":   `{"model":"m","input":[{"role":"user","content":"hi"},` + string(item) + `,` + more + `]}`,
		"by its id":    `{"model":"m","previous_response_id":"` + last.Response.ID + `","input":[` + more + `]}`,
		"by reference": `{"model":"m","input":[{"role":"user","content":"hi"},{"type":"item_reference","id":"` + call.ID + `"},` + more + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, asked, _ := p.asked(body)
			wantTalk(t, asked, want...)
		})
	}
}

// customCall is an answer with a call of the function that stands for a custom tool.
func customCall(name string) servetest.Script {
	return servetest.Events(servetest.Admit(), callOf("", &wire.CallDelta{Name: name, Arguments: `{"inp`}, &wire.CallDelta{Arguments: `ut": "ls\n`}),
		callOf("", &wire.CallDelta{Arguments: `-la"}`}, &wire.CallDelta{Ended: true}), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 3))
}

func TestCustomToolCallsHaveRawInput(t *testing.T) {
	p := newPort(t, customCall("n__run"))
	const tools = `,"tools":[{"type":"namespace","name":"n","description":"","tools":[{"type":"custom","name":"run"}]}]`
	const item = `{"id":"ctc_X","type":"custom_tool_call","status":"completed","call_id":"call_X","name":"run","namespace":"n","input":"ls\n-la"}`
	got := settled(read(t, p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true`+tools+`}`)))
	<-p.seen
	for _, want := range []string{
		`"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"ctc_X","type":"custom_tool_call","status":"in_progress","call_id":"call_X","name":"run","namespace":"n","input":""}}`,
		"event: response.custom_tool_call_input.delta\n" + `data: {"type":"response.custom_tool_call_input.delta","sequence_number":3,"item_id":"ctc_X","output_index":0,"delta":"ls\n"}`,
		`"sequence_number":4,"item_id":"ctc_X","output_index":0,"delta":"-la"}`,
		"event: response.custom_tool_call_input.done\n" + `data: {"type":"response.custom_tool_call_input.done","sequence_number":5,"item_id":"ctc_X","output_index":0,"input":"ls\n-la"}`,
		`"type":"response.output_item.done","sequence_number":6,"output_index":0,"item":` + item,
		`"output":[` + item + `]`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the stream lacks %s\n%s", want, got)
		}
	}
	first, asked, _ := p.asked(`{"model":"m","input":"hi"` + tools + `}`)
	if !strings.Contains(asked.GetChat().GetToolsJson(), `"name":"n__run"`) || *first.Output[0].Input != "ls\n-la" {
		t.Errorf("%s, %+v", asked.GetChat().GetToolsJson(), first.Output)
	}
	output := `{"type":"custom_tool_call_output","call_id":"` + first.Output[0].CallID + `","output":"a b"}`
	_, asked, _ = p.asked(`{"model":"m","previous_response_id":"` + first.ID + `","input":[` + output + `]` + tools + `}`)
	wantTalk(t, asked, &wire.ChatMessage{Role: "user", Content: "hi"},
		&wire.ChatMessage{Role: "assistant", ExtraJson: `{"tool_calls":[{"id":"` + first.Output[0].CallID + `","type":"function","function":{"name":"n__run","arguments":{"input":"ls\n-la"}}}]}`},
		&wire.ChatMessage{Role: "tool", Content: "a b", Name: "n__run", ExtraJson: `{"tool_call_id":"` + first.Output[0].CallID + `"}`})
}

func TestInputTokensAreCountedWithoutAnAnswer(t *testing.T) {
	p := newPort(t, servetest.Hang(servetest.Admit()))
	for _, body := range []string{`{"model":"m","input":"hi","tools":[{"type":"function","name":"f"}]}`, `{"model":"m","instructions":"i"}`} {
		resp := p.do("POST", dialect.PathInputTokens, body)
		if got := read(t, resp); resp.StatusCode != 200 || got != `{"object":"response.input_tokens","input_tokens":3}` {
			t.Errorf("%s: %d %s", body, resp.StatusCode, got)
		}
		if asked := <-p.seen; asked.GetMaxTokens() != 1 || len(asked.GetChat().GetMessages()) != 1 {
			t.Errorf("asked %v", asked)
		}
	}
	eventually(t, "the engine's requests ended", func() bool { holds, ended := p.fake.Holds(here); return holds == 0 && ended == 2 })
	resp := p.do("GET", dialect.PathInputTokens, "")
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", resp.StatusCode)
	}
	p.kept("POST", "compact", 404)
}

// likelyText is an event with text of one token, and how likely that was.
func likelyText(text string) *wire.GenerateEvent {
	e := servetest.Text(text)
	l := &wire.Logprob{Text: []byte(text), Logprob: -1}
	e.GetDelta().Logprobs = []*wire.TokenLogprobs{{Chosen: l, Top: []*wire.Logprob{l}}}
	return e
}

func TestLogprobsOfEachMessage(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), likelyText("a"), callOf("", &wire.CallDelta{Name: "f", Arguments: "{}", Ended: true}), likelyText("b"),
		servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 3)))
	const ask = `{"model":"m","input":"hi","include":["message.output_text.logprobs"],"top_logprobs":1` + responseTools
	r, asked, _ := p.asked(ask + `}`)
	if asked.TopLogprobs == nil || asked.GetTopLogprobs() != 1 || r.TopLogprobs != 1 || len(r.Output) != 3 {
		t.Fatalf("asked %v, %+v", asked, r)
	}
	for i, token := range map[int]string{0: "a", 2: "b"} {
		l := *r.Output[i].Content[0].Logprobs
		if len(l) != 1 || l[0].Token != token || l[0].Logprob != -1 || len(l[0].TopLogprobs) != 1 || l[0].TopLogprobs[0].Token != token {
			t.Errorf("item %d has %+v", i, l)
		}
	}
	const one = `"logprobs":[{"token":"b","logprob":-1,"bytes":[98],"top_logprobs":[{"token":"b","logprob":-1,"bytes":[98]}]}]`
	if got := read(t, p.do("POST", dialect.PathResponses, ask+`,"stream":true}`)); !strings.Contains(got, `"delta":"b",`+one) || !strings.Contains(got, `"text":"b",`+one) {
		t.Error(got)
	}
	<-p.seen
	for _, without := range []string{`{"model":"m","input":"hi"}`, `{"model":"m","input":"hi","top_logprobs":2}`} {
		if _, asked, _ := p.asked(without); asked.TopLogprobs != nil {
			t.Errorf("%s asks for %d", without, asked.GetTopLogprobs())
		}
	}
}

func TestReasoningTokensAreReported(t *testing.T) {
	end := servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 5)
	end.GetFinished().GetUsage().ReasoningTokens = 4
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("a"), end))
	if r := p.respond(""); r.Usage.OutputTokensDetails.ReasoningTokens != 4 || r.Usage.OutputTokens != 5 {
		t.Errorf("%+v", r.Usage)
	}
	if got := read(t, p.chat(`,"n":2`)); !strings.Contains(got, `"completion_tokens_details":{"reasoning_tokens":8}`) {
		t.Error(got)
	}
}

// shortContext refuses conversations of more than that many messages.
func shortContext(most int) servetest.Script {
	return func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		if len(r.GetChat().GetMessages()) > most {
			return servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_CONTEXT_LENGTH, Message: "too long"})(ctx, r, send)
		}
		return servetest.Say("x")(ctx, r, send)
	}
}

func TestTruncationDropsTheBeginningOfAConversation(t *testing.T) {
	p := newPort(t, shortContext(4), func(c *serve.Config) { c.ResponsesBytes = 1 << 20 })
	items := []string{`{"role":"system","content":"s"}`}
	for i := range 10 {
		items = append(items, fmt.Sprintf(`{"role":"user","content":"q%d"},{"type":"function_call","call_id":"c%d","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c%d","output":"o"}`, i, i, i))
	}
	body := `{"model":"m","input":[` + strings.Join(items, ",") + `]`
	resp := p.do("POST", dialect.PathResponses, body+`,"truncation":"auto"}`)
	got := read(t, resp)
	if resp.StatusCode != 200 || !strings.Contains(got, `"truncation":"auto"`) {
		t.Fatalf("%d %s", resp.StatusCode, got)
	}
	var last *wire.GenerateRequest
	for len(p.seen) > 0 {
		last = <-p.seen
	}
	wantTalk(t, last, &wire.ChatMessage{Role: "system", Content: "s"}, &wire.ChatMessage{Role: "user", Content: "q9"},
		&wire.ChatMessage{Role: "assistant", ExtraJson: `{"tool_calls":[{"id":"c9","type":"function","function":{"name":"f","arguments":{}}}]}`},
		&wire.ChatMessage{Role: "tool", Content: "o", Name: "f", ExtraJson: `{"tool_call_id":"c9"}`})
	for name, more := range map[string]string{"disabled": `,"truncation":"disabled"}`, "absent": "}"} {
		if resp := p.do("POST", dialect.PathResponses, body+more); resp.StatusCode != 400 || !strings.Contains(read(t, resp), openai.CodeContextLengthExceeded) {
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
	}
	p = newPort(t, shortContext(0)) // the last exchange stays
	if resp := p.do("POST", dialect.PathResponses, body+`,"truncation":"auto"}`); resp.StatusCode != 400 {
		t.Errorf("nothing fits: %d", resp.StatusCode)
	}
}

// TestTruncationSendsALongConversationOnce: a short request continues it, and the engine that
// refuses it states how much text its context has.
func TestTruncationSendsALongConversationOnce(t *testing.T) {
	const exchanges, each, limit = 1000, 1 << 10, 100 << 10
	sent := 0
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		bytes := 0
		for _, m := range r.GetChat().GetMessages() {
			bytes += len(m.GetContent())
		}
		if sent += bytes; bytes > limit/2 {
			return servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_CONTEXT_LENGTH, Message: "too long", LimitBytes: limit})(ctx, r, send)
		}
		return servetest.Say("x")(ctx, r, send)
	})
	one := `{"role":"user","content":"` + strings.Repeat("x", each) + `"},`
	p.asked(`{"model":"m","truncation":"auto","input":[` + strings.Repeat(one, exchanges-1) + strings.TrimSuffix(one, ",") + `]}`)
	if most := exchanges*each + 8*limit; sent > most {
		t.Errorf("the engine got %d bytes of messages, want at most %d: all of them once", sent, most)
	}
}

func TestUnsupportedFieldsAreRefusedWithAReason(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	for field, want := range map[string]struct{ param, reason string }{
		`"conversation":"conv_1"`: {param: "conversation", reason: "previous_response_id"},
		`"prompt":{"id":"p"}`:     {param: "prompt", reason: "stored prompts"},
		`"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]`: {param: "input[0].content[0].image_url", reason: "files of this API"},
	} {
		body := `{"model":"m",` + field + `}`
		if !strings.Contains(body, `"input"`) {
			body = `{"input":"x",` + body[1:]
		}
		resp := p.do("POST", dialect.PathResponses, body)
		if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, `"param":"`+want.param+`"`) || !strings.Contains(got, want.reason) {
			t.Errorf("%s: %d %s", field, resp.StatusCode, got)
		}
	}
}

// Other servers' parameters of the sampler, as vLLM has them.
func TestResponsesAreSampledAsAsked(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	_, asked, _ := p.asked(`{"model":"m","input":"hi","temperature":0.5,"top_p":0.25,"top_k":3,"min_p":0.125,"seed":7,"presence_penalty":1,"frequency_penalty":-1,"stop":["a"],"priority":2,
		"repetition_penalty":1.5,"min_tokens":2,"ignore_eos":true,"stop_token_ids":[3]}`)
	f := func(v float32) *float32 { return &v }
	k, seed := int32(3), int64(7)
	want := &wire.Sampling{Temperature: f(0.5), TopP: f(0.25), TopK: &k, MinP: f(0.125), Seed: &seed, PresencePenalty: f(1), FrequencyPenalty: f(-1), RepetitionPenalty: f(1.5)}
	if d := cmp.Diff(want, asked.GetSampling(), protocmp.Transform()); d != "" || !slices.Equal(asked.GetStop(), []string{"a"}) || asked.GetPriority() != -2 ||
		asked.GetMinTokens() != 2 || !asked.GetIgnoreEos() || !slices.Equal(asked.GetStopTokenIds(), []int32{3}) {
		t.Errorf("%s %v", d, asked)
	}
}

func TestIncludeOfStoredResponsesHasNoEffect(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	id := p.respond("").ID
	for _, query := range []string{"?include=reasoning.encrypted_content", "?include[]=message.output_text.logprobs"} {
		p.kept("GET", id+query, 200)
		p.kept("GET", id+"/input_items"+query, 200)
	}
}
