package serve_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
)

var responseVarying = regexp.MustCompile(`\b(resp|msg|fc|fco|ctc|rs|call)_[0-9A-Za-z_-]{16,}|"(created|completed)_at":[0-9]+`)

func settled(s string) string {
	return responseVarying.ReplaceAllStringFunc(s, func(m string) string {
		if strings.HasPrefix(m, `"`) {
			return m[:strings.Index(m, ":")] + ":1"
		}
		return m[:strings.Index(m, "_")+1] + "X"
	})
}

// respond asks for a response, and gives its id and status.
func (p *port) respond(extra string, headers ...string) responses.Response {
	p.t.Helper()
	resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi"`+extra+`}`, headers...)
	body := read(p.t, resp)
	var r responses.Response
	if err := json.Unmarshal([]byte(body), &r); err != nil || resp.StatusCode != 200 {
		p.t.Fatalf("%d %s", resp.StatusCode, body)
	}
	return r
}

func (p *port) kept(method, rest string, want int, headers ...string) string {
	p.t.Helper()
	resp := p.do(method, dialect.PathResponses+"/"+rest, "", headers...)
	body := read(p.t, resp)
	if resp.StatusCode != want {
		p.t.Errorf("%s %s: %d %s, want %d", method, rest, resp.StatusCode, body, want)
	}
	return body
}

// responseJSON is a response to a request without parameters.
func responseJSON(status, output, effort, tools, usage string) string {
	completed := "null"
	if status == responses.StatusCompleted {
		completed = "1"
	}
	return `{"id":"resp_X","object":"response","created_at":1,"status":"` + status + `","background":false,"completed_at":` + completed + `,"error":null,"frequency_penalty":0,` +
		`"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"metadata":{},"model":"m","output":[` + output + `],"parallel_tool_calls":true,` +
		`"presence_penalty":0,"previous_response_id":null,"prompt_cache_key":null,"reasoning":{"effort":` + effort + `,"summary":null},"safety_identifier":null,"service_tier":"default",` +
		`"store":false,"temperature":1,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[` + tools + `],"top_logprobs":0,"top_p":1,"truncation":"disabled","usage":` + usage + `,"user":null}`
}

func TestResponsesStream(t *testing.T) {
	p := newPort(t, servetest.Say("Par", "is"))
	got := settled(read(t, p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true,"store":false}`)))
	response := func(status, output, usage string) string {
		return responseJSON(status, output, "null", "", usage)
	}
	event := func(name, n, rest string) string {
		return "event: " + name + "\ndata: {\"type\":\"" + name + `","sequence_number":` + n + "," + rest + "}\n\n"
	}
	const at = `"item_id":"msg_X","output_index":0,"content_index":0,`
	part := func(text string) string {
		return `{"type":"output_text","text":"` + text + `","annotations":[],"logprobs":[]}`
	}
	item := `{"id":"msg_X","type":"message","role":"assistant","status":"completed","content":[` + part("Paris") + `]}`
	want := event("response.created", "0", `"response":`+response("in_progress", "", "null")) +
		event("response.in_progress", "1", `"response":`+response("in_progress", "", "null")) +
		event("response.output_item.added", "2", `"output_index":0,"item":{"id":"msg_X","type":"message","role":"assistant","status":"in_progress","content":[]}`) +
		event("response.content_part.added", "3", at+`"part":`+part("")) +
		event("response.output_text.delta", "4", at+`"delta":"Par","logprobs":[]`) +
		event("response.output_text.delta", "5", at+`"delta":"is","logprobs":[]`) +
		event("response.output_text.done", "6", at+`"text":"Paris","logprobs":[]`) +
		event("response.content_part.done", "7", at+`"part":`+part("Paris")) +
		event("response.output_item.done", "8", `"output_index":0,"item":`+item) +
		event("response.completed", "9", `"response":`+response("completed", item,
			`{"input_tokens":3,"input_tokens_details":{"cache_write_tokens":0,"cached_tokens":1},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":5}`))
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The next prompt begins with the earlier input and output, without the earlier
// instructions.
func TestResponseIsStoredContinuedAndDeleted(t *testing.T) {
	p := newPort(t, servetest.Say("Par", "is"))
	first := p.respond(`,"instructions":"be brief","metadata":{"a":"b"}`)
	if mac, ok := responses.MacOf(first.ID); !ok || mac != "mac-a" || first.Status != responses.StatusCompleted || first.Output[0].Text() != "Paris" {
		t.Errorf("%+v", first)
	}
	<-p.seen
	got := p.kept("GET", first.ID, 200)
	var again responses.Response
	if err := json.Unmarshal([]byte(got), &again); err != nil || cmp.Diff(first, again) != "" {
		t.Errorf("kept is %s (%v)", got, err)
	}
	second := p.respond(`,"previous_response_id":"` + first.ID + `","stream":false,"temperature":0.5,"max_output_tokens":7`)
	asked, half := <-p.seen, float32(0.5)
	want := &wire.GenerateRequest{Id: asked.GetId(), MaxTokens: 7, Sampling: &wire.Sampling{Temperature: &half}, Input: &wire.GenerateRequest_Chat{Chat: &wire.Chat{SplitReasoning: true, Messages: []*wire.ChatMessage{
		{Role: "user", Content: "hi"}, {Role: "assistant", Content: "Paris"}, {Role: "user", Content: "hi"}}}}}
	if d := cmp.Diff(want, asked, protocmp.Transform()); d != "" || *second.PreviousResponseID != first.ID {
		t.Error(d)
	}
	if got := p.kept("DELETE", first.ID, 200); got != `{"id":"`+first.ID+`","object":"response","deleted":true}` {
		t.Error(got)
	}
	p.kept("GET", first.ID, 404)
	p.kept("DELETE", first.ID, 404)
	resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","previous_response_id":"`+first.ID+`"}`)
	if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, `"param":"previous_response_id","code":"previous_response_not_found"`) {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	p.kept("GET", second.ID, 200) // what went on from it is whole
}

func TestResponsesOfAnotherOwnerAreNotFound(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	mine := p.respond("", agentapi.HeaderTenant, "team-a")
	for _, other := range [][]string{{agentapi.HeaderTenant, "team-b"}, nil} {
		p.kept("GET", mine.ID, 404, other...)
		p.kept("DELETE", mine.ID, 404, other...)
		p.kept("POST", mine.ID+"/cancel", 404, other...)
		p.kept("GET", mine.ID+"/input_items", 404, other...)
		resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","previous_response_id":"`+mine.ID+`"}`, other...)
		if resp.StatusCode != 400 {
			t.Errorf("another continues it: %d", resp.StatusCode)
		}
	}
	p.kept("GET", mine.ID, 200, agentapi.HeaderTenant, "team-a")
}

// TestStoredResponsesWithoutKeysAreEverybodys: clients without API keys differ in turns and memory
// alone.
func TestStoredResponsesWithoutKeysAreEverybodys(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	first := p.respond("", agentapi.HeaderClient, "a")
	p.kept("GET", first.ID, 200)
	p.kept("GET", first.ID+"/input_items", 200, agentapi.HeaderClient, "b")
	p.kept("POST", first.ID+"/cancel", 400)
	second := p.respond(`,"previous_response_id":"`+first.ID+`"`, agentapi.HeaderClient, "b")
	reference := `,"input":[{"type":"item_reference","id":"` + second.Output[0].ID + `"}]`
	if resp := p.do("POST", dialect.PathResponses, `{"model":"m"`+reference+`}`, agentapi.HeaderClient, "c"); resp.StatusCode != 200 {
		t.Errorf("an item of another client: %s", resp.Status)
	}
	p.kept("DELETE", first.ID, 200)
	p.kept("HEAD", second.ID, 200)
}

func TestResponseWithStoreFalseIsNotStored(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	p.kept("GET", p.respond(`,"store":false`).ID, 404)
}

func TestInputItemsArePaged(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":[{"role":"user","content":"a"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}]},{"role":"user","content":[{"type":"input_text","text":"c"}]}]}`)
	var r responses.Response
	if err := json.Unmarshal([]byte(read(t, resp)), &r); err != nil {
		t.Fatal(err)
	}
	page := func(query string, want ...string) responses.ItemList {
		var l responses.ItemList
		if err := json.Unmarshal([]byte(p.kept("GET", r.ID+"/input_items"+query, 200)), &l); err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, i := range l.Data {
			texts = append(texts, i.Text())
		}
		if d := cmp.Diff(want, texts); d != "" {
			t.Errorf("%q: %s", query, d)
		}
		return l
	}
	page("", "c", "b", "a")
	latest := page("?limit=2", "c", "b")
	page("?order=desc&after="+*latest.LastID, "a")
	first := page("?order=asc&limit=2", "a", "b")
	if !first.HasMore || *first.LastID != first.Data[1].ID || *first.FirstID != first.Data[0].ID {
		t.Errorf("%+v", first)
	}
	if last := page("?order=asc&after="+*first.LastID, "c"); last.HasMore {
		t.Errorf("%+v", last)
	}
	for _, query := range []string{"?limit=0", "?limit=101", "?limit=", "?order=up", "?order=", "?after=msg_1", "?after=", "?before=x"} {
		p.kept("GET", r.ID+"/input_items"+query, 400)
	}
	p.kept("GET", r.ID+"?stream=true", 400)
}

// Regression: a malformed query, a repeated value, and any query of DELETE or
// cancel were ignored.
func TestResponsesQueryIsValidated(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	id := p.respond("").ID
	for _, query := range []string{"?limit=1;x", "?limit=%zz", "?limit=1&limit=2"} {
		p.kept("GET", id+"/input_items"+query, 400)
		p.kept("GET", id+query, 400)
	}
	p.kept("DELETE", id+"?limit=1", 400)
	p.kept("DELETE", id+"?a=1;b", 400)
	if said := p.kept("POST", id+"/cancel?force=true", 400); !strings.Contains(said, `"force"`) {
		t.Errorf("another refusal: %s", said)
	}
	p.kept("GET", id, 200) // nothing of it was done
	p.kept("DELETE", id, 200)
}

// The client sees the end, the engine stops, and the stored response has the
// status.
func TestResponseStreamIsCancelledByID(t *testing.T) {
	p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("a")))
	resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true}`)
	var id string
	buf := make([]byte, 4096)
	n, err := resp.Body.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	id = regexp.MustCompile(`resp_[0-9A-Za-z_-]+`).FindString(string(buf[:n]))
	if got := p.kept("GET", id, 200); !strings.Contains(got, `"status":"in_progress"`) {
		t.Error(got)
	}
	if got := p.kept("POST", id+"/cancel", 200); !strings.Contains(got, `"status":"cancelled"`) {
		t.Error(got)
	}
	if rest := read(t, resp); !strings.Contains(rest, "event: response.failed\n") || !strings.Contains(rest, `"status":"cancelled"`) || !strings.Contains(rest, `"error":null,`) {
		t.Errorf("the stream's client receives %q", rest)
	}
	eventually(t, "the engine's request ended", func() bool { holds, ended := p.fake.Holds(here); return holds == 0 && ended == 1 })
	if got := p.kept("GET", id, 200); !strings.Contains(got, `"status":"cancelled"`) {
		t.Error(got)
	}
	if got := p.kept("POST", id+"/cancel", 400); !strings.Contains(got, "Cannot cancel a synchronous response.") {
		t.Error(got)
	}
	if resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","previous_response_id":"`+id+`"}`); resp.StatusCode != 400 {
		t.Errorf("gone on from: %d", resp.StatusCode)
	}
}

func TestResponseWhoseClientLeftIsNotStored(t *testing.T) {
	p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("a")))
	resp := p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true}`)
	buf := make([]byte, 4096)
	n, err := resp.Body.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`resp_[0-9A-Za-z_-]+`).FindString(string(buf[:n]))
	resp.Body.Close()
	eventually(t, "the response is forgotten", func() bool {
		return p.do("GET", dialect.PathResponses+"/"+id, "").StatusCode == 404
	})
}

func TestFailedAndTruncatedResponses(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("a"), servetest.Finish(wire.FinishReason_FINISH_REASON_LENGTH, 1)))
	if r := p.respond(""); r.Status != responses.StatusIncomplete || r.IncompleteDetails.Reason != "max_output_tokens" {
		t.Errorf("%+v", r)
	}
	if got := read(t, p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true}`)); !strings.Contains(got, "event: response.incomplete\n") {
		t.Error(got)
	}
	p = newPort(t, servetest.Events(servetest.Admit(), servetest.Text("a"), servetest.FailWith(&wire.Refusal{Code: wire.Code_CODE_ABORTED, Message: "short"})))
	got := read(t, p.do("POST", dialect.PathResponses, `{"model":"m","input":"hi","stream":true}`))
	if !strings.Contains(got, "event: response.failed\n") || strings.Contains(got, "response.completed") {
		t.Error(got)
	}
	p.kept("GET", regexp.MustCompile(`resp_[0-9A-Za-z_-]+`).FindString(got), 200)
}

func TestStoredResponsesAreBounded(t *testing.T) {
	p := newPort(t, servetest.Say("x"), func(c *serve.Config) { c.ResponsesBytes = 3 << 12 })
	first := p.respond("")
	p.respond("")
	p.respond("")
	p.kept("GET", first.ID, 404)
	p.kept("PUT", first.ID, 405)
	p.kept("GET", first.ID+"/other", 404)
	p.kept("GET", "nonsense", 404)
}

// TestTheAgentProvesThatItWasSentAResponse to a gateway that looks for it, and to no one else.
func TestTheAgentProvesThatItWasSentAResponse(t *testing.T) {
	p := newPort(t, servetest.Say("a"))
	sent := responses.NewAnywhere()
	proof := sent.Proof()
	read(t, p.do("POST", "/v1/responses", `{"model":"m","input":"hi","stream":true}`, agentapi.HeaderResponseID, sent.ID(), agentapi.HeaderResponseProof, proof))
	for method, want := range map[string]string{"HEAD": proof, "GET": ""} {
		if resp := p.do(method, "/v1/responses/"+sent.ID(), ""); resp.StatusCode != 200 || resp.Header.Get(agentapi.HeaderResponseProof) != want {
			t.Errorf("%s: %d, proof %q, want %q", method, resp.StatusCode, resp.Header.Get(agentapi.HeaderResponseProof), want)
		}
	}
}
