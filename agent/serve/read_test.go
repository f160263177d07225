package serve_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/metal/wire"
)

var reading = serve.Target{ReplicaUID: "uid-r", Epoch: 1}

// readerPort is a port with a replica "r" that reads.
func readerPort(t *testing.T, r servetest.Reader) *port {
	p := newPort(t, servetest.Say("x"))
	p.fake.AddReader("r", reading, r)
	return p
}

func TestEmbeddings(t *testing.T) {
	asked := make(chan *wire.EmbedRequest, 1)
	p := readerPort(t, servetest.Reader{Embed: func(_ context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
		asked <- r
		out := &wire.EmbedResponse{Usage: &wire.Usage{PromptTokens: 4}}
		for i := range len(r.GetTexts()) + len(r.GetTokenLists()) {
			out.Vectors = append(out.Vectors, &wire.Vector{Values: []float32{float32(i), 0.5}})
		}
		return out, nil
	}})
	const usage = `"model":"r","usage":{"prompt_tokens":4,"total_tokens":4}}`
	for name, tc := range map[string]struct {
		body string
		want *wire.EmbedRequest
		says string
	}{
		"texts": {body: `"input":["a","b"],"truncate":true,"prompt_name":"query"`,
			want: &wire.EmbedRequest{Texts: []string{"a", "b"}, Prompt: "query", Truncate: true},
			says: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0,0.5]},{"object":"embedding","index":1,"embedding":[1,0.5]}],` + usage},
		"a type of texts": {body: `"input":"a","input_type":"search_query","truncate":"END"`,
			want: &wire.EmbedRequest{Texts: []string{"a"}, InputType: "search_query", Truncate: true},
			says: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0,0.5]}],` + usage},
		"fewer tokens": {body: `"input":"a","truncate_prompt_tokens":7`,
			want: &wire.EmbedRequest{Texts: []string{"a"}, Truncate: true, MaxTokens: 7},
			says: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0,0.5]}],` + usage},
		"as many tokens as the model reads": {body: `"input":"a","truncate_prompt_tokens":-1`,
			want: &wire.EmbedRequest{Texts: []string{"a"}, Truncate: true},
			says: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0,0.5]}],` + usage},
		"tokens": {body: `"input":[[1,2],[3]],"instruction":"find","dimensions":1`,
			want: &wire.EmbedRequest{TokenLists: []*wire.TokenList{{Ids: []int32{1, 2}}, {Ids: []int32{3}}}, Instruction: "find"},
			says: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0]},{"object":"embedding","index":1,"embedding":[1]}],` + usage},
	} {
		t.Run(name, func(t *testing.T) {
			resp := p.do("POST", dialect.PathEmbeddings, `{"model":"r",`+tc.body+`}`, agentapi.HeaderRequestID, "id-1")
			tc.want.Id = "id-1"
			if d := cmp.Diff(tc.want, <-asked, protocmp.Transform()); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(tc.says, read(t, resp)); resp.StatusCode != 200 || d != "" || resp.Header.Get(agentapi.HeaderTokens) != "4+0" || resp.Header.Get(agentapi.HeaderMac) != "mac-a" {
				t.Errorf("%d %v %s", resp.StatusCode, resp.Header, d)
			}
		})
	}
	if holds, _ := p.fake.Holds(reading); holds != 0 {
		t.Errorf("%d holds are left", holds)
	}
}

func TestRerank(t *testing.T) {
	asked := make(chan *wire.RerankRequest, 1)
	p := readerPort(t, servetest.Reader{Rerank: func(_ context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
		asked <- r
		return &wire.RerankResponse{Scores: []float32{0.25, 0.75}, Usage: &wire.Usage{PromptTokens: 7}}, nil
	}})
	for path, echo := range map[string]string{dialect.PathRerank: `,"document":{"text":"b"}`, dialect.PathRerankV2: ""} {
		resp := p.do("POST", path, `{"model":"r","query":"q","documents":["a","b"],"top_n":1,"truncate":false}`, agentapi.HeaderRequestID, "id-1")
		want := &wire.RerankRequest{Id: "id-1", Query: "q", Documents: []string{"a", "b"}}
		if d := cmp.Diff(want, <-asked, protocmp.Transform()); d != "" {
			t.Error(d)
		}
		says := `"results":[{"index":1,"relevance_score":0.75` + echo + `}],"model":"r","usage":{"prompt_tokens":7,"total_tokens":7}`
		if got := read(t, resp); resp.StatusCode != 200 || !strings.Contains(got, says) || resp.Header.Get(agentapi.HeaderTokens) != "7+0" {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
	resp := p.do("POST", dialect.PathRerank, `{"model":"r","query":"q","documents":["a","b"],"truncate":false,"truncate_prompt_tokens":9,"max_tokens_per_doc":100,"user":"u"}`)
	if r := <-asked; !r.GetTruncate() || r.GetMaxTokens() != 9 {
		t.Errorf("the engine is asked %v", r)
	}
	if read(t, resp); resp.StatusCode != 200 || resp.Header.Get(agentapi.HeaderIgnored) != "max_tokens_per_doc, user" {
		t.Errorf("%d, ignored %q", resp.StatusCode, resp.Header.Get(agentapi.HeaderIgnored))
	}
}

// Clients of text-embeddings-inference read a list of ranks.
func TestRerankOfTexts(t *testing.T) {
	var asked *wire.RerankRequest
	p := readerPort(t, servetest.Reader{Rerank: func(_ context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
		asked = r
		return &wire.RerankResponse{Scores: []float32{0.25, 0.5}, Usage: &wire.Usage{PromptTokens: 3}}, nil
	}})
	for body, want := range map[string]string{
		`{"model":"r","query":"q","texts":["a","b"]}`:                    `[{"index":1,"score":0.5},{"index":0,"score":0.25}]`,
		`{"model":"r","query":"q","texts":["a","b"],"return_text":true}`: `[{"index":1,"score":0.5,"text":"b"},{"index":0,"score":0.25,"text":"a"}]`,
	} {
		resp := p.do("POST", "/rerank", body, agentapi.HeaderRequestID, "id-1")
		if got := read(t, resp); resp.StatusCode != 200 || got != want || resp.Header.Get(agentapi.HeaderTokens) != "3+0" {
			t.Errorf("%d %s", resp.StatusCode, got)
		}
		if d := cmp.Diff(&wire.RerankRequest{Id: "id-1", Query: "q", Documents: []string{"a", "b"}, Truncate: true}, asked, protocmp.Transform()); d != "" {
			t.Error(d)
		}
	}
}

// Documents of one query are scored together, and all come back in their order.
func TestScore(t *testing.T) {
	var asked []*wire.RerankRequest
	p := readerPort(t, servetest.Reader{Rerank: func(_ context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
		asked = append(asked, r)
		out := &wire.RerankResponse{Usage: &wire.Usage{PromptTokens: 3}}
		for _, d := range r.GetDocuments() {
			out.Scores = append(out.Scores, float32(len(d)))
		}
		return out, nil
	}})
	resp := p.do("POST", "/score", `{"model":"r","text_1":["q","r","q"],"text_2":["a","bb","ccc"],"truncate_prompt_tokens":9}`, agentapi.HeaderRequestID, "id-1")
	want := []*wire.RerankRequest{{Id: "id-1-0", Query: "q", Documents: []string{"a", "ccc"}, Truncate: true, MaxTokens: 9}, {Id: "id-1-1", Query: "r", Documents: []string{"bb"}, Truncate: true, MaxTokens: 9}}
	if d := cmp.Diff(want, asked, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	says := `"model":"r","data":[{"index":0,"object":"score","score":1},{"index":1,"object":"score","score":2},{"index":2,"object":"score","score":3}],"usage":{"prompt_tokens":6,"total_tokens":6}}`
	if got := read(t, resp); resp.StatusCode != 200 || !strings.HasSuffix(got, says) || resp.Header.Get(agentapi.HeaderTokens) != "6+0" {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
}

// TestScoresBeforeARefusalAreCounted: the engine has computed them.
func TestScoresBeforeARefusalAreCounted(t *testing.T) {
	p := readerPort(t, servetest.Reader{Rerank: func(_ context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
		if r.GetQuery() == "last" {
			return nil, wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_CONTEXT_LENGTH, Message: "too long"})
		}
		return &wire.RerankResponse{Scores: []float32{1}, Usage: &wire.Usage{PromptTokens: 3}}, nil
	}})
	resp := p.do("POST", "/score", `{"model":"r","text_1":["q","r","last"],"text_2":["a","b","c"],"truncate":false}`)
	if got := resp.Header.Get(agentapi.HeaderTokens); resp.StatusCode != 400 || got != "6+0" {
		t.Errorf("%d, %q tokens: %s", resp.StatusCode, got, read(t, resp))
	}
}

func TestReadingsThatFailAreRefusedInTheirOwnShape(t *testing.T) {
	refusal := func(r *wire.Refusal) error { return wire.Refuse(r) }
	for name, tc := range map[string]struct {
		err       error
		status    int
		code      string
		retryable bool
	}{
		"too long":                {err: refusal(&wire.Refusal{Code: wire.Code_CODE_CONTEXT_LENGTH, Message: "too long", Param: "input"}), status: 400, code: "context_length_exceeded", retryable: false},
		"the queue is full":       {err: refusal(&wire.Refusal{Code: wire.Code_CODE_QUEUE_FULL, Message: "full"}), status: 503, code: agentapi.CodeQueueFull, retryable: true},
		"memory":                  {err: refusal(&wire.Refusal{Code: wire.Code_CODE_MEMORY, Message: "no", NeededBytes: 1, LimitBytes: 1}), status: 413, code: "prefill_memory_exceeded", retryable: false},
		"the engine ended":        {err: fmt.Errorf("call: %w", serve.ErrEngineLost), status: 502, code: agentapi.CodeEngineLost, retryable: true},
		"fewer results than sent": {err: nil, status: 500, code: "engine_failed", retryable: false},
	} {
		t.Run(name, func(t *testing.T) {
			p := readerPort(t, servetest.Reader{
				Embed: func(context.Context, *wire.EmbedRequest) (*wire.EmbedResponse, error) {
					return &wire.EmbedResponse{}, tc.err
				},
				Rerank: func(context.Context, *wire.RerankRequest) (*wire.RerankResponse, error) {
					return &wire.RerankResponse{}, tc.err
				},
			})
			for path, body := range map[string]string{
				dialect.PathEmbeddings: `{"model":"r","input":"a"}`,
				dialect.PathRerank:     `{"model":"r","query":"q","documents":["a"]}`,
				dialect.PathScore:      `{"model":"r","text_1":"q","text_2":"a"}`,
			} {
				resp := p.do("POST", path, body)
				got := read(t, resp)
				e := dialect.ParseError(resp.StatusCode, resp.Header, []byte(got))
				if e.Status != tc.status || e.Code != tc.code || (resp.Header.Get(agentapi.HeaderRetryable) == "true") != tc.retryable {
					t.Errorf("%s: %v, %s", path, e, got)
				}
				if strings.Contains(got, `"detail"`) == (path == dialect.PathEmbeddings) {
					t.Errorf("%s has another shape: %s", path, got)
				}
			}
			if holds, _ := p.fake.Holds(reading); holds != 0 {
				t.Errorf("%d holds are left", holds)
			}
		})
	}
}

func TestReadingsOfOtherModelsAndMethodsAreRefused(t *testing.T) {
	p := readerPort(t, servetest.Reader{})
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
	}{
		"a model that writes": {method: "POST", path: dialect.PathEmbeddings, body: `{"model":"m","input":"a"}`, status: 400},
		"an unknown model":    {method: "POST", path: dialect.PathEmbeddings, body: `{"model":"unknown","input":"a"}`, status: 404},
		"another method":      {method: "GET", path: dialect.PathRerank, body: "", status: 405},
		"a refused field":     {method: "POST", path: dialect.PathRerank, body: `{"model":"r","query":"q","documents":["a"],"rank_fields":["b"]}`, status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			if resp := p.do(tc.method, tc.path, tc.body); resp.StatusCode != tc.status {
				t.Errorf("%d %s", resp.StatusCode, read(t, resp))
			}
		})
	}
	closed := newPort(t, servetest.Say("x"), func(c *serve.Config) { c.Accepting = func() bool { return false } })
	closed.fake.AddReader("r", reading, servetest.Reader{})
	if resp := closed.do("POST", dialect.PathEmbeddings, `{"model":"r","input":"a"}`); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("an agent that takes no requests: %d", resp.StatusCode)
	}
}

func TestAReadingWhoseClientWentEnds(t *testing.T) {
	begun, ended := make(chan bool, 1), make(chan error, 1)
	p := readerPort(t, servetest.Reader{Embed: func(ctx context.Context, _ *wire.EmbedRequest) (*wire.EmbedResponse, error) {
		begun <- true
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}})
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-begun; leave() }()
	r, err := http.NewRequestWithContext(ctx, "POST", p.url+dialect.PathEmbeddings, strings.NewReader(`{"model":"r","input":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(r); err == nil {
		resp.Body.Close()
		t.Errorf("answered %d", resp.StatusCode)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventually(t, "the hold is given back", func() bool { holds, _ := p.fake.Holds(reading); return holds == 0 })
}

func TestTheEngineLearnsTheTenantOfAReading(t *testing.T) {
	seen := make(chan string, 1)
	p := readerPort(t, servetest.Reader{
		Embed: func(_ context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
			seen <- r.GetTenant()
			return &wire.EmbedResponse{Vectors: []*wire.Vector{{Values: []float32{1}}}}, nil
		},
		Rerank: func(_ context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
			seen <- r.GetTenant()
			return &wire.RerankResponse{Scores: []float32{1}}, nil
		},
	})
	for _, request := range [][2]string{{"/v1/embeddings", `"input":"x"`}, {"/v1/rerank", `"query":"q","documents":["d"]`},
		{"/v1/rerank", `"query":"q","texts":["d"]`}, {"/v1/score", `"text_1":"q","text_2":"d"`}} {
		for _, header := range []string{agentapi.HeaderTenant, agentapi.HeaderClient} {
			resp := p.do("POST", request[0], `{"model":"r",`+request[1]+`}`, header, "team")
			if resp.StatusCode != 200 {
				t.Fatalf("%s: %d %s", request[0], resp.StatusCode, read(t, resp))
			}
			if tenant := <-seen; tenant != "team" {
				t.Errorf("%s, %s: the engine learns the tenant %q", request[0], header, tenant)
			}
		}
	}
}
