//go:build !race

package embedapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"flag"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/rerank"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/server"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

var more = flag.String("model", "", "folder of one embedder more")

// served is a model on an engine's socket, with the encoder for the expected values.
type served struct {
	wire.EngineClient
	path   string
	reader *engine.Reader
}

func serveModel(t *testing.T, path string, task model.Task) *served {
	t.Helper()
	dir, err := os.MkdirTemp("", "e") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := server.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	e := engine.Start(engine.Options{ModelPath: path, Task: task, Sequences: 4, Backend: ref.New(ref.Options{Threads: 2})})
	go func() {
		done <- server.Serve(ctx, l, e, server.Identity{Version: "v1", ReplicaUID: "uid", Epoch: 1, Backend: "ref"}, nil)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := wire.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s := &served{EngineClient: wire.NewEngineClient(conn), path: path}
	s.ready(t)
	if s.reader, err = engine.OpenReader(t.Context(), path, ref.New(ref.Options{Threads: 2}), task); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.reader.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *served) ready(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	w, err := s.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: 20})
	for err == nil {
		var st *wire.Status
		if st, err = w.Recv(); err == nil && st.GetState() == wire.State_STATE_READY {
			return
		}
		if st.GetState() == wire.State_STATE_FAILED {
			t.Fatal(st.GetMessage())
		}
	}
	t.Fatal(err)
}

// Engines of an agent that has this one model.
func (s *served) Resolve(name string) (serve.Target, bool) {
	return serve.Target{ReplicaUID: "uid", Epoch: 1}, name == "m"
}
func (*served) Adapters(serve.Target) []string { return nil }

func (s *served) Models() []openai.Model { return []openai.Model{openai.NewModel("m", 0, "ns")} }
func (s *served) Model(name string) (openai.Model, bool) {
	return openai.NewModel(name, 0, "ns"), name == "m"
}
func (s *served) Acquire(context.Context, serve.Target) (serve.Hold, error) {
	return hold{engine: s.EngineClient}, nil
}

type hold struct{ engine wire.EngineClient }

func (h hold) Release() {}
func (h hold) Generate(ctx context.Context, r *wire.GenerateRequest) (serve.Stream, error) {
	return h.engine.Generate(ctx, r)
}
func (h hold) Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	return h.engine.Embed(ctx, r)
}
func (h hold) Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	return h.engine.Rerank(ctx, r)
}

// door is where a client speaks to.
type door struct {
	name, url string
	client    *http.Client
}

// doors are the agent's port and a gateway's before it.
func doors(t *testing.T, s *served) []door {
	t.Helper()
	ca := agentapitest.NewCA(t)
	agent := httptest.NewUnstartedServer(serve.NewHandler(serve.Config{Engines: s, Mac: "mac-a", Log: logr.Discard()}))
	agent.EnableHTTP2 = true
	pair, err := ca.Mac("mac-a").Pair(t)()
	if err != nil {
		t.Fatal(err)
	}
	agent.TLS = agentapi.ServerTLS(ca.Mac("mac-a").Pair(t), ca.Roots())
	agent.TLS.Certificates = []tls.Certificate{*pair} // httptest would add its own
	agent.StartTLS()
	t.Cleanup(agent.Close)

	pem := ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		t.Fatal(err)
	}
	table := route.NewTable()
	table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: "m"}, UID: "m", Names: "m"})
	table.SetMac(route.Mac{Name: "mac-a", Address: agent.Listener.Addr().String(), Open: true})
	table.SetReplica(route.Replica{UID: "uid", Epoch: 1, Deployment: route.Key{Namespace: "ns", Name: "m"}, DeploymentUID: "m", Mac: "mac-a", Ready: true})
	table.MarkSynced()
	p := proxy.New(proxy.Config{Table: table, Identity: func() *identity.Identity { return id }, Registry: prometheus.NewRegistry(), Log: logr.Discard()})
	gateway := httptest.NewServer(p)
	t.Cleanup(func() { gateway.Close(); p.Close() })
	straight := &http.Transport{TLSClientConfig: agentapi.ClientTLS(pem.Pair(t), ca.Roots(), "mac-a"), ForceAttemptHTTP2: true}
	t.Cleanup(straight.CloseIdleConnections)
	return []door{{name: "straight", url: agent.URL, client: &http.Client{Transport: straight}}, {name: "through the gateway", url: gateway.URL, client: http.DefaultClient}}
}

func (d door) post(t *testing.T, path string, in, out any) (status int, said string) {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := d.client.Post(d.url+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == 200 {
		err = json.Unmarshal(raw, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// answer is an embedding's, whose vectors are numbers or their bytes.
type answer struct {
	Data []struct {
		Index     int
		Embedding json.RawMessage
	}
	Usage openai.EmbeddingUsage
}

func (a answer) vectors(t *testing.T) [][]float32 {
	t.Helper()
	var out [][]float32
	for i, d := range a.Data {
		var v []float32
		var packed string
		err := json.Unmarshal(d.Embedding, &v)
		if err != nil && json.Unmarshal(d.Embedding, &packed) == nil {
			var b []byte
			b, err = base64.StdEncoding.DecodeString(packed)
			v = nil
			for ; len(b) >= 4; b = b[4:] {
				v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(b)))
			}
		}
		if err != nil || d.Index != i {
			t.Fatalf("vector %d of index %d: %v", i, d.Index, err)
		}
		out = append(out, v)
	}
	return out
}

func readerModels(t *testing.T, rerank bool) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, r := range tinymodel.Readers() {
		if r.Rerank == rerank && strings.Contains(r.Name, "qwen3") || r.Rerank == rerank && len(out) == 0 {
			out[r.Name] = filepath.Join(t.TempDir(), "model")
			if err := r.Write(out[r.Name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

var long = strings.Repeat("a long text that is longer than anything a small model reads ", 100)

// inputs are the texts of all readers that the API takes, and one that is cut.
func inputs() []string {
	return append(slices.DeleteFunc(tinymodel.ReaderTexts(), func(s string) bool { return s == "" }), long)
}

func tokenizerOf(t *testing.T, path string) *tokenizer.Tokenizer {
	t.Helper()
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	source, err := text.Open(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return source.Tokenizer
}

func TestEmbeddingsEqualTheEnginesOutput(t *testing.T) {
	models := readerModels(t, false)
	if *more != "" {
		models[*more] = *more
	}
	for name, path := range models {
		t.Run(name, func(t *testing.T) {
			s := serveModel(t, path, model.Embed)
			for _, d := range doors(t, s) {
				t.Run(d.name, func(t *testing.T) { s.embeds(t, d) })
			}
		})
	}
}

func (s *served) embeds(t *testing.T, d door) {
	texts := inputs()
	want, tokens, err := s.reader.Embed(t.Context(), texts, embed.Options{Truncate: true})
	if err != nil {
		t.Fatal(err)
	}
	tok := tokenizerOf(t, s.path)
	lists := make([][]int32, len(texts))
	for i, text := range texts {
		if lists[i], err = tok.Encode(text, tokenizer.EncodeOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cut := make([][]float32, len(want))
	for i, v := range want {
		cut[i] = openai.Shorter(v, 8)
	}
	for name, tc := range map[string]struct {
		fields map[string]any
		want   [][]float32
		tokens int
	}{
		"a list, cut":        {fields: map[string]any{"input": texts, "truncate": true}, want: want, tokens: tokens},
		"tokens, cut":        {fields: map[string]any{"input": lists, "truncate": true}, want: want, tokens: tokens},
		"bytes":              {fields: map[string]any{"input": texts, "truncate": true, "encoding_format": "base64"}, want: want, tokens: tokens},
		"fewer dimensions":   {fields: map[string]any{"input": texts, "truncate": true, "dimensions": 8}, want: cut, tokens: tokens},
		"one text":           {fields: map[string]any{"input": texts[0]}, want: want[:1]},
		"one list of tokens": {fields: map[string]any{"input": lists[0]}, want: want[:1]},
	} {
		tc.fields["model"] = "m"
		var got answer
		if status, said := d.post(t, dialect.PathEmbeddings, tc.fields, &got); status != 200 {
			t.Errorf("%s: %d %s", name, status, said)
			continue
		}
		if !slices.EqualFunc(got.vectors(t), tc.want, slices.Equal) {
			t.Errorf("%s: other vectors than the engine's own", name)
		}
		if tc.tokens != 0 && got.Usage.PromptTokens != tc.tokens {
			t.Errorf("%s: %d tokens, want %d", name, got.Usage.PromptTokens, tc.tokens)
		}
	}
	if status, said := d.post(t, dialect.PathEmbeddings, map[string]any{"model": "m", "input": long}, nil); status != 400 || !strings.Contains(said, openai.CodeContextLengthExceeded) {
		t.Errorf("too long: %d %s", status, said)
	}
}

func TestRerankScoresEqualTheEnginesOutput(t *testing.T) {
	for name, path := range readerModels(t, true) {
		t.Run(name, func(t *testing.T) {
			s := serveModel(t, path, model.Rerank)
			for _, d := range doors(t, s) {
				t.Run(d.name, func(t *testing.T) { s.reranks(t, d) })
			}
		})
	}
}

func (s *served) reranks(t *testing.T, d door) {
	query, documents := inputs()[0], inputs()[1:]
	want, tokens, err := s.reader.Rerank(t.Context(), query, documents, embed.Options{Truncate: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dialect.PathRerank, dialect.PathRerankV2} {
		var got rerank.Answer
		if status, said := d.post(t, path, map[string]any{"model": "m", "query": query, "documents": documents}, &got); status != 200 {
			t.Fatalf("%s: %d %s", path, status, said)
		}
		if len(got.Results) != len(documents) || got.Usage.PromptTokens != tokens {
			t.Fatalf("%s: %d results, %d tokens; want %d, %d", path, len(got.Results), got.Usage.PromptTokens, len(documents), tokens)
		}
		last := float32(math.Inf(1))
		for _, r := range got.Results {
			if r.RelevanceScore != want[r.Index] || r.RelevanceScore > last {
				t.Errorf("%s: document %d has %v after %v, want %v", path, r.Index, r.RelevanceScore, last, want[r.Index])
			}
			last = r.RelevanceScore
		}
	}
	status, said := d.post(t, dialect.PathRerank, map[string]any{"model": "m", "query": query, "documents": []string{long}, "truncate": false}, nil)
	e := openai.ParseError(status, nil, []byte(said))
	if e.Code != openai.CodeContextLengthExceeded {
		t.Errorf("too long: %v", e)
	}
}
