package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/load"
	"metalfleet.dev/metalfleet/test/patience"
)

// parrot answers as a gateway does, with the API's own writer: it repeats the
// last message word by word. It stands in for Macs, which this machine has none of.
type parrot struct {
	mu     sync.Mutex
	bodies []map[string]any // guarded by mu
	keys   []string         // guarded by mu
	// hold, where it is set, keeps the second word back until it is closed.
	hold chan struct{}
}

func (m *parrot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	request, err := (&openai.Decoder{Strict: true}).Chat(raw)
	if err != nil {
		_ = openai.WriteError(w, err)
		return
	}
	var body map[string]any
	_ = json.Unmarshal(raw, &body)
	m.mu.Lock()
	m.bodies, m.keys = append(m.bodies, body), append(m.keys, r.Header.Get("Authorization"))
	m.mu.Unlock()
	switch {
	case r.URL.Path != "/v1/chat/completions":
		_ = openai.WriteError(w, openai.RouteNotFound(r.Method, r.URL.Path))
		return
	case request.Model == "locked" && r.Header.Get("Authorization") != "Bearer sesame":
		_ = openai.WriteError(w, openai.Unauthorized())
		return
	case request.Model == "ghost":
		_ = openai.WriteError(w, openai.ModelNotFound("ghost"))
		return
	case request.Model == "asleep":
		_ = openai.WriteError(w, openai.NoEndpoint("asleep", time.Second))
		return
	}
	last := request.Messages[len(request.Messages)-1].Content.Parts[0].Text
	m.stream(w, request.Model, strings.SplitAfter(last, " "))
}

func (m *parrot) stream(w http.ResponseWriter, name string, words []string) {
	answer := openai.ChatAnswer{ID: "chatcmpl-1", Model: name, IncludeUsage: true}
	events := openai.NewEventWriter(w)
	_ = events.Send(answer.Opening())
	_ = events.Comment(openai.KeepAlive)
	for i, word := range words {
		if i == 1 && m.hold != nil {
			<-m.hold
		}
		_ = events.Send(answer.Text(word))
	}
	if name == "breaks" {
		panic(http.ErrAbortHandler)
	}
	if name == "fails" {
		_ = events.Fail(openai.EngineFailed(nil))
		return
	}
	_ = events.Send(answer.Finish("stop"))
	_ = events.Send(answer.Usage(openai.NewUsage(7, len(words))))
	_ = events.Done()
}

func startModel(t *testing.T) (*parrot, *httptest.Server) {
	t.Helper()
	m := &parrot{}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	return m, server
}

func TestChatThroughTheAPIServer(t *testing.T) {
	p := newPerson(t)
	m, server := startModel(t)
	u, err := url.Parse(server.URL)
	p.must(err)
	kubelet, port := startKubelet(t)
	p.gatewayPod(port, u.Port())
	p.now = time.Now()
	p.deployment(p.namespace("team-a"), "chat", nil)

	p.vars[keyVariable] = "sesame"
	out, errs := p.wants(exitOK, "-n", "team-a", "chat", "chat", "one two three")
	if out != "one two three\n" || errs != "" || kubelet.count() == 0 {
		t.Errorf("said %q and %q over %d connections", out, errs, kubelet.count())
	}
	if m.bodies[0]["model"] != "team-a/chat" || m.keys[0] != "Bearer sesame" {
		t.Errorf("asked for %v with %v", m.bodies[0]["model"], m.keys[0])
	}
	// Word by word, not at the end.
	m.hold = make(chan struct{})
	ctx, stop := context.WithTimeout(context.Background(), patience.Of(t))
	defer stop()
	var o, e lockedBuffer
	ended := make(chan int, 1)
	go func() { ended <- p.start(ctx, &o, &e, "chat", "m", "early late") }()
	p.eventually("the first word", func() error { return said(o.String(), "early ") })
	if strings.Contains(o.String(), "late") {
		t.Errorf("the second word is there before it was sent: %q", o.String())
	}
	close(m.hold)
	if code := <-ended; code != exitOK || o.String() != "early late\n" {
		t.Errorf("ended with %d: %q %s", code, o.String(), e.String())
	}
	m.hold = nil
	out, _ = p.wants(exitOK, "bench", "m", "--requests", "6", "--streams", "3", "-o", "json")
	var r load.Report
	p.must(json.Unmarshal([]byte(out), &r))
	if r.Requests != 6 || r.Failed != 0 || r.OutputTokens == 0 || r.FirstToken.P50 == nil {
		t.Errorf("bench: %s", out)
	}
}

func TestTheWayThatIsNotThere(t *testing.T) {
	p := newPerson(t)
	_, errs := p.wants(exitFailed, "--system-namespace", "nowhere", "chat", "m", "hi")
	contains(t, "chat", errs, "there is no Service metalfleet-gateway", "--system-namespace", "--url")
	_, errs = p.wants(exitFailed, "chat", "m", "hi", "--url", "http://127.0.0.1:1")
	contains(t, "chat", errs, "send the request to the gateway")
	_, errs = p.wants(exitFailed, "chat", "m", "hi", "--url", "127.0.0.1:1")
	contains(t, "chat", errs, "want http://HOST:PORT")
}

func TestChatSaysWhatToDo(t *testing.T) {
	p := newPerson(t)
	_, server := startModel(t)
	for _, tc := range []struct {
		model, says string
	}{
		{"locked", "set METALFLEET_API_KEY to a valid key"},
		{"ghost", "`kubectl get mdep -A` lists the deployed models"},
		{"asleep", "`kubectl metalfleet why asleep`"},
		{"breaks", "the response is incomplete"},
		{"fails", "The engine failed"},
	} {
		_, errs := p.wants(exitFailed, "chat", tc.model, "hi", "--url", server.URL)
		contains(t, tc.model, errs, tc.says)
	}
	for args, says := range map[string]string{
		"chat m hi there":            "quote the prompt",
		"chat m hi --temperature 3":  "--temperature from 0 to 2",
		"bench m --streams 0":        "must be at least 1",
		"chat":                       "takes one MODEL",
		"chat m --url " + server.URL: "the prompt is empty",
		"bench m --max-tokens many":  "invalid argument",
	} {
		_, errs := p.wants(exitUsage, strings.Split(args, " ")...)
		contains(t, args, errs, says)
	}
}

// The key reaches the gateway alone: no output, no help, no error has it.
func TestTheKeyIsNeverPrinted(t *testing.T) {
	p := newPerson(t)
	m, server := startModel(t)
	p.vars[keyVariable] = "sesame-secret"
	for _, args := range [][]string{{"chat", "--help"}, {"bench", "--help"}, {"chat", "locked", "hi", "--url", server.URL}, {"bench", "locked", "--requests", "1", "--url", server.URL}} {
		_, out, errs := p.run(args...)
		if strings.Contains(out+errs, "sesame-secret") {
			t.Errorf("%q prints the key:\n%s%s", args, out, errs)
		}
	}
	key := file(t, "key", "sesame\n")
	p.wants(exitOK, "chat", "locked", "hi", "--url", server.URL, "--api-key-file", key)
	if got := m.keys[len(m.keys)-1]; got != "Bearer sesame" {
		t.Errorf("the file's key was sent as %q", got)
	}
}

func TestOneAnswerAsJSON(t *testing.T) {
	p := newPerson(t)
	m, server := startModel(t)
	p.in = "what is a Mac?"
	out, _ := p.wants(exitOK, "chat", "m", "-o", "json", "--url", server.URL+"/v1", "--max-tokens", "9", "--temperature", "0", "--system", "be brief")
	golden(t, "chat-json", milliseconds.ReplaceAllString(out, "${1}12"))
	if b := m.bodies[0]; b["max_tokens"] != 9.0 || b["temperature"] != 0.0 || len(b["messages"].([]any)) != 2 {
		t.Errorf("asked %v", b)
	}
}

var milliseconds = regexp.MustCompile(`(Milliseconds": )\d+`)

func TestTurnByTurn(t *testing.T) {
	p := newPerson(t)
	m, server := startModel(t)
	var o, e lockedBuffer
	env := p.env(&o, &e)
	env.In, env.InTerminal = strings.NewReader("first\n\nsecond\n"), true
	if code := Main(context.Background(), []string{"chat", "m", "--url", server.URL}, env); code != exitOK || o.String() != "first\nsecond\n" {
		t.Fatalf("ended with %d: %q %s", code, o.String(), e.String())
	}
	if n := len(m.bodies[1]["messages"].([]any)); n != 3 {
		t.Errorf("the second turn has %d messages, want the first turn, its answer, and itself", n)
	}
}

func TestBenchTellsWhatFailed(t *testing.T) {
	p := newPerson(t)
	_, server := startModel(t)
	out, _ := p.wants(exitOK, "bench", "m", "--requests", "8", "--streams", "2", "--prompt", "one two three", "--url", server.URL)
	contains(t, "bench", out, "m: 8 requests, 2 concurrent", "24 tokens", "failed: 0")
	out, _ = p.wants(exitFailed, "bench", "ghost", "--requests", "3", "--url", server.URL)
	contains(t, "bench", out, "failed: 3", "3 x 404 model_not_found", "time to first token  -")
}

func TestAReportAsAPersonReadsIt(t *testing.T) {
	var o lockedBuffer
	a := benchCommand{&app{Env: &Env{Out: &o}}}
	r := load.Report{
		Model: "team-a/chat", Requests: 100, Streams: 4, Failed: 3, Errors: map[string]int{"503 overloaded": 1, "429 rate_limit_exceeded": 2},
		Seconds: 41.27, OutputTokens: 6208, TokensPerSecond: 150.4,
		FirstToken: load.Spread{P50: ptr.To(118.2), P99: ptr.To(1043.9)}, Decode: load.Spread{P50: ptr.To(41.3), P99: ptr.To(33.8)},
	}
	if err := a.report(r); err != answer(exitFailed) {
		t.Errorf("three requests failed, and the answer is %v", err)
	}
	golden(t, "bench", o.String())
}
