//go:build !race

package serve_test

import (
	"context"
	"encoding/json"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

// heap is what the live objects of this process take.
func heap() int64 {
	runtime.GC()
	runtime.GC() // of pools, too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An answer may take hours, and a tenant may have many: the conversation of a response is then
// in the cache, which is bounded, or nowhere. Reasoning is in the input and in few prompts.
func TestARunningResponseKeepsNoConversation(t *testing.T) {
	const n, each, cache = 8, 4 << 20, 4 << 20
	long := `{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"` + strings.Repeat("a", each) + `"}]},`
	for name, body := range map[string]string{
		"stored":     `{"model":"m","stream":true,"input":[` + long + `{"role":"user","content":"hi"}]}`,
		"not stored": `{"model":"m","stream":true,"store":false,"input":[` + long + `{"role":"user","content":"hi"}]}`,
		"many items": `{"model":"m","stream":true,"store":false,"input":[` + strings.Repeat(`{"type":"reasoning","summary":[]},`, 30_000) + `{"role":"user","content":"hi"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("x")), func(c *serve.Config) { c.ResponsesBytes = cache })
			before := heap()
			for range n {
				resp := p.do("POST", dialect.PathResponses, body)
				if _, err := resp.Body.Read(make([]byte, 16)); err != nil || resp.StatusCode != 200 {
					t.Fatal(resp.StatusCode, err)
				}
				<-p.seen
			}
			grown := heap() - before
			for end := time.Now().Add(patience.Of(t)); grown > 2*cache && time.Now().Before(end); grown = heap() - before {
				runtime.Gosched() // the last request may not have let go of its body yet
			}
			if grown > 2*cache {
				t.Errorf("%d running answers keep %d bytes, want at most %d", n, grown, 2*cache)
			}
		})
	}
}

// A request of several choices stays for the others, but not its body, and not its messages once more:
// only what the engine is sent counts then.
func TestSeveralChoicesKeepNoBody(t *testing.T) {
	const n, each = 6, 4 << 20
	long, spaces := strings.Repeat("a", each/2), strings.Repeat(" ", each)
	for name, c := range map[string]struct {
		path, body string
		most       int64 // what is sent
	}{
		"variables": {dialect.PathChat, `{"model":"m","n":5,"stream":true,"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{}` + spaces + `}`, 0},
		"parts":     {dialect.PathChat, `{"model":"m","n":5,"stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"` + long + `"},{"type":"text","text":"` + long + `"}]}]}`, n * each},
		"prompt":    {dialect.PathCompletions, `{"model":"m","n":5,"stream":true,"prompt":"hi"` + spaces + `}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("x")))
			before := heap()
			for range n {
				resp := p.do("POST", c.path, c.body)
				if _, err := resp.Body.Read(make([]byte, 16)); err != nil || resp.StatusCode != 200 {
					t.Fatal(resp.StatusCode, err)
				}
				for range agentapi.ChoicesAtOnce {
					<-p.seen
				}
			}
			most := c.most + 2*each
			grown := heap() - before
			for end := time.Now().Add(patience.Of(t)); grown > most && time.Now().Before(end); grown = heap() - before {
				runtime.Gosched()
			}
			if grown > most {
				t.Errorf("%d running answers keep %d bytes, want at most %d", n, grown, most)
			}
		})
	}
}

// A page may show one item many times, which is stored, and counts, once.
func TestAPageOfInputItemsForASlowReader(t *testing.T) {
	const n, shown, each, most = 6, 99, 80 << 10, 1 << 20
	a := startAgent(t, servetest.Say("x"), time.Second)
	a.client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 128 << 10} // as of a gateway
	ask := func(method, path, body string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, a.url+dialect.PathResponses+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := a.client.Do(r)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		return resp
	}
	get := func(resp *http.Response) (got struct {
		ID   string
		Data []responses.Item
	}) {
		if err := json.Unmarshal([]byte(read(t, resp)), &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	text := "x" + strings.Repeat("\u2028", each/3) // no JSON, so the call is in no prompt
	first := get(ask("POST", "", `{"model":"m","input":[{"type":"function_call","call_id":"a","name":"f","arguments":"`+text+`"},{"role":"user","content":"hi"}]}`)).ID
	item := get(ask("GET", "/"+first+"/input_items?order=asc", "")).Data[0].ID
	page := "/" + get(ask("POST", "", `{"model":"m","input":[`+strings.Repeat(`{"type":"item_reference","id":"`+item+`"},`, shown)+`{"role":"user","content":"hi"}]}`)).ID + "/input_items?limit=100"
	before := heap()
	var unread []*http.Response
	for range n {
		unread = append(unread, ask("GET", page, ""))
	}
	if grown := heap() - before; grown > n*most {
		t.Errorf("%d pages that are not read take %d bytes, want at most %d", n, grown, n*most)
	}
	for _, resp := range unread {
		if all := get(resp).Data; len(all) != shown+1 || all[1].ID != item || *all[shown].Arguments != text {
			t.Errorf("a page of %d items", len(all))
		}
	}
}

// The documents of an answer count with other answers that are not read, and its body no more: it would
// keep the room of other bodies for as long as the client does not read.
func TestDocumentsForASlowReader(t *testing.T) {
	document := `"` + strings.Repeat("\u2028", 2<<10) + `"`
	for path, body := range map[string]string{
		dialect.PathRerank:            `{"model":"e","query":"q","documents":[` + document + strings.Repeat(","+document, 800) + `]}`,
		dialect.PathRerank + "#texts": `{"model":"e","query":"q","return_text":true,"texts":[` + document + strings.Repeat(","+document, 800) + `]}`,
	} {
		t.Run(path, func(t *testing.T) {
			a := startAgent(t, servetest.Say("x"), time.Second, func(c *serve.Config) { c.AnswersBytes, c.BodiesBytes = 12<<20, 10<<20 })
			a.client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 128 << 10} // as of a gateway
			a.fake.AddReader("e", here, servetest.Reader{Rerank: func(_ context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
				return &wire.RerankResponse{Scores: make([]float32, len(r.GetDocuments())), Usage: &wire.Usage{PromptTokens: 1}}, nil
			}})
			waits(t, func(ctx context.Context) (*http.Response, error) {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := a.client.Do(r)
				if err == nil && resp.StatusCode == http.StatusOK && resp.ContentLength >= 0 {
					t.Errorf("the answer was in memory as a whole: %d bytes", resp.ContentLength)
				}
				return resp, err
			})
		})
	}
}

// TestABodyEndsWhenItsAnswerBegins: large bodies have room for one of them.
func TestABodyEndsWhenItsAnswerBegins(t *testing.T) {
	a := startAgent(t, servetest.Say("x"), time.Second, func(c *serve.Config) { c.BodiesBytes = 10 << 20 })
	a.client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 128 << 10}
	a.fake.AddReader("e", here, servetest.Reader{Rerank: func(_ context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
		return &wire.RerankResponse{Scores: make([]float32, len(r.GetDocuments())), Usage: &wire.Usage{PromptTokens: 1}}, nil
	}})
	document := `"` + strings.Repeat("x", 6<<10) + `"`
	body := `{"model":"e","query":"q","documents":[` + document + strings.Repeat(","+document, 800) + `]}`
	for _, client := range []string{"a", "b", "c"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url+dialect.PathRerank, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(agentapi.HeaderClient, client)
		resp, err := a.client.Do(r)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("client %s, while answers of others are not read: %v %v", client, resp, err)
		}
		defer resp.Body.Close()
	}
}
