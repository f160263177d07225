//go:build !race

package serve_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Reading one long body is work of one goroutine.

// TestAttackBodies: a body is bounded before it is kept, however it comes, and
// none is unfolded.
func TestAttackBodies(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	huge := func() io.Reader { return io.LimitReader(endless("x"), 1<<40) }
	for what, body := range map[string]io.Reader{
		"without an end":               huge(),
		"of one endless text":          io.MultiReader(strings.NewReader(`{"model":"m","prompt":"`), huge()),
		"that continues after its end": io.MultiReader(strings.NewReader(question), io.LimitReader(endless(" "), 1<<40)),
	} {
		resp, err := post(t, p.url, body)
		if err != nil { // the server hangs up while the rest is sent
			continue
		}
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("a body %s: %s", what, resp.Status)
		}
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := io.CopyN(z, endless("x"), 64<<20); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for _, encoding := range []string{"gzip", "GZIP", "br", "zstd", "deflate", "identity, gzip", "gzip, gzip"} {
		p.wantRefusal(p.do("POST", "/v1/completions", bomb.String(), "Content-Encoding", encoding), refusal{status: 415, code: openai.CodeUnsupportedEncoding, retry: "", retryable: false})
		p.wantRefusal(p.do("POST", "/v1/completions", question, "Content-Encoding", encoding), refusal{status: 415, code: openai.CodeUnsupportedEncoding, retry: "", retryable: false})
	}
	const depth = 1 << 20
	deep := `{"model":"m","prompt":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`
	p.wantRefusal(p.do("POST", "/v1/completions", deep), refusal{status: 400, code: openai.CodeMalformedJSON, retry: "", retryable: false})
	if len(p.seen) > 0 {
		t.Error("an engine was asked")
	}
	if resp := p.do("POST", "/v1/completions", question, "Content-Encoding", "identity"); resp.StatusCode != http.StatusOK {
		t.Errorf("a plain body: %s", resp.Status)
	}
}

func post(t *testing.T, url string, body io.Reader) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(r)
	if err == nil {
		t.Cleanup(func() { resp.Body.Close() })
	}
	return resp, err
}

// endless is a text of one sign.
type endless string

func (e endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = e[0]
	}
	return len(b), nil
}

// Small messages take many times the memory that their bytes do, and so do parts.
func TestAttackManyParts(t *testing.T) {
	many := func(one string) string {
		return strings.TrimSuffix(strings.Repeat(one+",", openai.MaxParts+1), ",")
	}
	text, block := `{"type":"text","text":"a"}`, `{"type":"input_text","text":"a"}`
	for name, c := range map[string]struct{ path, body string }{
		"chat":              {path: dialect.PathChat, body: `{"model":"m","messages":[` + many(`{"role":"user","content":"a"}`) + `]}`},
		"parts of a chat":   {path: dialect.PathChat, body: `{"model":"m","messages":[{"role":"user","content":[` + many(text) + `]}]}`},
		"messages":          {path: dialect.PathMessages, body: `{"model":"m","max_tokens":1,"messages":[` + many(`{"role":"user","content":"a"}`) + `]}`},
		"blocks":            {path: dialect.PathMessages, body: `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[` + many(text) + `]}]}`},
		"items":             {path: dialect.PathResponses, body: `{"model":"m","input":[` + many(`{"role":"user","content":"a"}`) + `]}`},
		"parts of items":    {path: dialect.PathResponses, body: `{"model":"m","input":[{"role":"user","content":[` + many(block) + `]}]}`},
		"parts of outputs":  {path: dialect.PathResponses, body: `{"model":"m","input":[{"type":"function_call_output","call_id":"c","output":[` + many(block) + `]}]}`},
		"parts of thoughts": {path: dialect.PathResponses, body: `{"model":"m","input":[{"type":"reasoning","content":[` + many(`{"type":"reasoning_text","text":"a"}`) + `]}]}`},
	} {
		p := newPort(t, servetest.Say("x"))
		if resp := p.do("POST", c.path, c.body); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d %.200s", name, resp.StatusCode, read(t, resp))
		}
	}
}

// A reference takes a hundred bytes and stands for an item of any length.
func TestAttackReferencesToALongItem(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	first, _, _ := p.asked(`{"model":"m","input":"` + strings.Repeat("a", 1<<20) + `"}`)
	var list responses.ItemList
	if err := json.Unmarshal([]byte(read(t, p.do("GET", dialect.PathResponses+"/"+first.ID+"/input_items", ""))), &list); err != nil || len(list.Data) != 1 {
		t.Fatal(list, err)
	}
	refer := func(times int) string {
		one := `{"type":"item_reference","id":"` + list.Data[0].ID + `"},`
		return `{"model":"m","input":[` + strings.Repeat(one, times) + `{"role":"user","content":"b"}]}`
	}
	if resp := p.do("POST", dialect.PathResponses, refer(17)); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("17 MiB of references: %d %.200s", resp.StatusCode, read(t, resp))
	}
	p.asked(refer(2))
}

// What is joined costs time and memory in proportion to its bytes.
func TestAttackTextsThatAreJoined(t *testing.T) {
	many := func(one string) string {
		return strings.TrimSuffix(strings.Repeat(fmt.Sprintf(one, strings.Repeat("a", 100))+",", 10_000), ",")
	}
	for name, input := range map[string]string{
		"instructions":       many(`{"role":"system","content":"%s"}`),
		"parts of output":    `{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":[` + many(`{"type":"input_text","text":"%s"}`) + `]}`,
		"texts after a call": `{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},` + many(`{"role":"assistant","content":"%s"}`),
	} {
		p := newPort(t, servetest.Say("x"))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p.asked(`{"model":"m","store":false,"input":[` + input + `]}`)
		runtime.ReadMemStats(&after)
		if made := after.TotalAlloc - before.TotalAlloc; made > 1<<30 {
			t.Errorf("%s of 1 MB take %d MiB", name, made>>20)
		}
	}
}

// TestAttackCallsInManyParts: a client asks for a call of long arguments, or for many calls
// that are none. Their parts are joined once.
func TestAttackCallsInManyParts(t *testing.T) {
	const parts = 10_000
	some := strings.Repeat("a", 200)
	arguments := &wire.Delta{Calls: []*wire.CallDelta{{Name: "f"}}}
	broken := &wire.Delta{}
	for range parts {
		arguments.Calls = append(arguments.Calls, &wire.CallDelta{Arguments: some})
		broken.Calls = append(broken.Calls, &wire.CallDelta{Name: "f"}, &wire.CallDelta{Ended: true, Written: some})
	}
	arguments.Calls = append(arguments.Calls, &wire.CallDelta{Ended: true})
	for name, d := range map[string]*wire.Delta{"arguments": arguments, "calls that are text": broken} {
		p := newPort(t, servetest.Events(servetest.Admit(), &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: d}}, servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1)))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := read(t, p.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]}`))
		runtime.ReadMemStats(&after)
		if !strings.Contains(got, strings.Repeat(some, parts)) {
			t.Errorf("%s: the answer has %d bytes: %.200s", name, len(got), got)
		}
		if made := after.TotalAlloc - before.TotalAlloc; made > 1<<30 {
			t.Errorf("%s of 2 MB take %d MiB", name, made>>20)
		}
	}
}
