package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

// lines is a log that is safe for concurrent use.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// locked is a gateway that requires keys, with a manual clock.
type locked struct {
	*world
	store *keys.Store
	log   *lines

	mu  sync.Mutex // guards now
	now time.Time
}

// time returns the gateway's time.
func (l *locked) time() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// pass advances the clock.
func (l *locked) pass(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = l.now.Add(d)
}

func newLocked(t *testing.T, change ...func(*proxy.Config)) *locked {
	t.Helper()
	l := &locked{log: &lines{}, now: time.Now()}
	l.world = newWorld(t, func(c *proxy.Config) {
		c.Log = logr.FromSlogHandler(slog.NewTextHandler(l.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l.store = keys.NewStore(keys.Options{Registry: c.Registry, Log: c.Log, Now: l.time})
		l.store.MarkSynced()
		c.Keys = l.store
		for _, f := range change {
			f(c)
		}
	})
	return l
}

// key creates a key and returns its token.
func (l *locked) key(name string, g keys.Grant) string {
	l.t.Helper()
	secret, token, err := keys.NewSecret("keys", name, g)
	if err != nil {
		l.t.Fatal(err)
	}
	secret.Data = map[string][]byte{}
	for k, v := range secret.StringData {
		secret.Data[k] = []byte(v)
	}
	l.store.Set(secret)
	return token
}

// with sends a request with a key; an empty one sends none.
func (l *locked) with(token, method, path, body string, headers ...string) *http.Response {
	l.t.Helper()
	if token != "" {
		headers = append(headers, "Authorization", "Bearer "+token)
	}
	return l.do(method, path, body, headers...)
}

const chatBody = `{"model":"m","messages":[]}`

func (l *locked) ask(token string) *http.Response {
	l.t.Helper()
	return l.with(token, "POST", chatPath, chatBody)
}

// audit returns the newest audit line.
func (l *locked) audit() string {
	all := strings.Split(strings.TrimSpace(l.log.String()), "\n")
	for i := len(all) - 1; i >= 0; i-- {
		if strings.Contains(all[i], "logger=audit") {
			return all[i]
		}
	}
	return ""
}

func (l *locked) wantAudit(parts ...string) {
	l.t.Helper()
	for _, part := range append(parts, "requestID=", "client=127.0.0.1:") {
		if line := l.audit(); !strings.Contains(line, part) {
			l.t.Errorf("audit line %q lacks %q", line, part)
		}
	}
}

func TestAttackAClientWithoutAGoodKey(t *testing.T) {
	l := newLocked(t)
	m := l.addMac("a", say("{}"))
	good := l.key("good", keys.Grant{Models: []string{"m"}, Expires: l.time().Add(time.Hour)})
	revoked := l.key("revoked", keys.Grant{Models: []string{"m"}})
	l.store.Delete("revoked")
	if resp := l.ask(good); resp.StatusCode != 200 {
		t.Fatalf("a good key: %d", resp.StatusCode)
	}
	seen := m.requests.Load()
	for name, tc := range map[string]struct{ token, why string }{
		"none":                   {why: "key_missing"},
		"what examples say":      {token: "none", why: "key_unknown"},
		"a key of someone else":  {token: "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789", why: "key_unknown"},
		"revoked":                {token: revoked, why: "key_unknown"},
		"a name and other chars": {token: keys.NewToken("good"), why: "key_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			for path, method := range map[string]string{chatPath: "POST", "/v1/completions": "POST", "/v1/models": "GET", "/v1/models/m": "GET", "/nowhere": "GET"} {
				resp := l.with(tc.token, method, path, chatBody)
				l.wantRefusal(resp, refusal{status: 401, code: openai.CodeInvalidAPIKey})
				if resp.Header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("%s: WWW-Authenticate %q", path, resp.Header.Get("WWW-Authenticate"))
				}
			}
			l.wantAudit(`key=""`, "reason="+tc.why)
		})
	}
	l.pass(time.Hour)
	resp := l.ask(good)
	if body := read(t, resp); resp.StatusCode != 401 || !strings.Contains(body, "'good' expired at ") || !strings.Contains(body, `"invalid_api_key"`) {
		t.Errorf("expired: %d %s", resp.StatusCode, body)
	}
	l.wantAudit("key=good", "reason=key_expired")
	if m.requests.Load() != seen {
		t.Error("the Mac saw a request without a good key")
	}
}

// TestAttackAStrangersBodyIsNotAwaited: the refusal is sent although the body never ends,
// so that trying keys occupies no connection and no memory.
func TestAttackAStrangersBodyIsNotAwaited(t *testing.T) {
	l := newLocked(t, func(c *proxy.Config) { c.ReadTimeout = 50 * time.Millisecond })
	l.addMac("a", say("{}"))
	conn, err := net.Dial("tcp", strings.TrimPrefix(l.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience.Of(t))); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n{", chatPath, keys.NewToken("x"))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	l.wantRefusal(resp, refusal{status: 401, code: openai.CodeInvalidAPIKey})
}

// TestAttackAModelOutsideTheKey: the response is the same as for a nonexistent model, in
// every word and header.
func TestAttackAModelOutsideTheKey(t *testing.T) {
	l := newLocked(t)
	m := l.addMac("a", say("{}"))
	for _, d := range []route.Key{{Namespace: "team-a", Name: "open"}, {Namespace: "team-b", Name: "shut"}} {
		l.table.SetDeployment(route.Deployment{Key: d, UID: d.Name, Names: d.Name})
	}
	token := l.key("k", keys.Grant{Models: []string{"ns/m"}, ModelNamespaces: []string{"team-a"}, RequestsPerMinute: 1000, TokensPerMinute: 1000})
	for _, name := range []string{"m", "ns/m"} {
		if resp := l.with(token, "POST", chatPath, `{"model":"`+name+`"}`); resp.StatusCode != 200 {
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
	}
	l.wantRefusal(l.with(token, "POST", chatPath, `{"model":"open"}`), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	before := m.requests.Load()

	told := func(name, path, body string) string {
		t.Helper()
		method := "POST"
		if body == "" {
			method = "GET"
		}
		resp := l.with(token, method, path, body, agentapi.HeaderRequestID, "r-1")
		text := read(t, resp)
		if resp.StatusCode != 404 || !strings.Contains(text, `"model_not_found"`) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
		l.wantAudit("key=k", "model="+name)
		resp.Header.Del("Date")
		for _, varies := range []string{"X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"} {
			if resp.Header.Get(varies) == "" {
				t.Errorf("%s: no %s", name, varies)
			}
			resp.Header.Del(varies)
		}
		return strings.ReplaceAll(text, name, "NAME") + fmt.Sprint(resp.Header)
	}
	for shut, absent := range map[string]string{"shut": "none", "team-b/shut": "team-b/none"} {
		if a, b := told(shut, chatPath, `{"model":"`+shut+`"}`), told(absent, chatPath, `{"model":"`+absent+`"}`); a != b {
			t.Errorf("a name outside the key is distinguishable:\n%s\n%s", a, b)
		}
		if a, b := told(shut, "/v1/models/"+shut, ""), told(absent, "/v1/models/"+absent, ""); a != b {
			t.Errorf("a name outside the key is distinguishable:\n%s\n%s", a, b)
		}
	}
	if m.requests.Load() != before {
		t.Error("the Mac saw a request outside the key")
	}
	list := read(t, l.with(token, "GET", "/v1/models", ""))
	if !strings.Contains(list, `"id":"m"`) || !strings.Contains(list, `"id":"open"`) || strings.Contains(list, "shut") {
		t.Errorf("models %s", list)
	}
	nothing := l.key("nothing", keys.Grant{Models: []string{"gone"}})
	if list := read(t, l.with(nothing, "GET", "/v1/models", "")); list != `{"object":"list","data":[]}` {
		t.Errorf("models %s", list)
	}
}

func TestRequestsPerMinuteOfAKey(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", say("{}"))
	token, other := l.key("k", keys.Grant{Models: []string{"m"}, RequestsPerMinute: 2}), l.key("other", keys.Grant{Models: []string{"m"}, RequestsPerMinute: 2})
	for _, want := range []string{"2 1 30s", "2 0 1m0s"} {
		h := l.ask(token).Header
		if got := h.Get("x-ratelimit-limit-requests") + " " + h.Get("x-ratelimit-remaining-requests") + " " + h.Get("x-ratelimit-reset-requests"); got != want {
			t.Errorf("limit, remaining, reset: %s, want %s", got, want)
		}
	}
	resp := l.ask(token)
	l.wantRefusal(resp, refusal{status: 429, code: openai.CodeRateLimitExceeded, retry: "30"})
	if resp.Header.Get("x-ratelimit-remaining-requests") != "0" {
		t.Errorf("headers %v", resp.Header)
	}
	l.wantAudit("key=k", "reason=requests_per_minute")
	l.wantRefusal(l.with(token, "GET", "/v1/models", ""), refusal{status: 429, code: openai.CodeRateLimitExceeded, retry: "30"})
	if resp := l.ask(other); resp.StatusCode != 200 {
		t.Errorf("another key: %d", resp.StatusCode)
	}
	l.pass(30 * time.Second)
	if resp := l.ask(token); resp.StatusCode != 200 {
		t.Errorf("after the wait: %d", resp.StatusCode)
	}
}

// tokensLeft sends a request without tokens and returns what a key has left.
func (l *locked) tokensLeft(token string) int {
	l.t.Helper()
	l.idle() // usage is counted after the request has ended
	resp := l.with(token, "POST", chatPath, `{"model":"m"}`)
	read(l.t, resp)
	left, err := strconv.Atoi(resp.Header.Get("x-ratelimit-remaining-tokens"))
	if err != nil {
		l.t.Fatalf("%d, headers %v", resp.StatusCode, resp.Header)
	}
	return left + guess(`{"model":"m"}`)
}

// guess returns the token estimate of a body.
func guess(body string) int { return 1 + len(body)/4 }

func TestTokensPerMinuteOfAKey(t *testing.T) {
	const limit = 1000
	counted := func(rw http.ResponseWriter, r *http.Request) {
		agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 100, 50)
		say("{}")(rw, r)
	}
	streamed := func(rw http.ResponseWriter, r *http.Request) {
		events(nil, "a", "b", "[DONE]")(rw, r)
		agentapi.SetTokens(rw.Header(), http.TrailerPrefix+agentapi.HeaderTokens, 100, 50)
	}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		body   string
		used   int
	}{
		"a whole answer is what its Mac says":           {answer: counted, body: chatBody, used: 150},
		"a stream is what its Mac says":                 {answer: streamed, body: `{"model":"m","stream":true}`, used: 150},
		"a Mac that says nothing: the guess":            {answer: say("{}"), body: chatBody, used: guess(chatBody)},
		"a stream of which nothing is said: each event": {answer: events(nil, "a", "b", "c", "[DONE]"), body: chatBody, used: guess(chatBody) + 4},
		"a refusal used nothing":                        {answer: func(rw http.ResponseWriter, _ *http.Request) { _ = openai.WriteError(rw, openai.Invalid("stop", "no")) }, body: chatBody},
		"a failure used what was computed before it": {answer: func(rw http.ResponseWriter, _ *http.Request) {
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 100, 20)
			rw.WriteHeader(http.StatusProcessing)
			rw.Header().Del(agentapi.HeaderTokens)
			_ = openai.WriteError(rw, openai.Invalid("response_format", "no"))
		}, body: `{"model":"m","max_tokens":200}`, used: 120},
		"a Mac that says nonsense: the guess": {answer: func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set(agentapi.HeaderTokens, "-9+1")
			say("{}")(rw, r)
		}, body: chatBody, used: guess(chatBody)},
		"a stream that breaks off: what passed":          {answer: events(abort, "a", "b"), body: chatBody, used: guess(chatBody) + 2},
		"a refusal of this gateway used nothing as well": {answer: say("{}"), body: `{"model":"unknown"}`},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocked(t)
			var first sync.Once
			l.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
				answer := say("{}") // for requests that only read what is left
				first.Do(func() { answer = tc.answer })
				answer(rw, r)
			})
			token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: limit})
			if tc.used == 0 && strings.Contains(tc.body, "unknown") {
				first.Do(func() {})
			}
			resp := l.with(token, "POST", chatPath, tc.body)
			read(t, resp)
			if resp.Header.Get(agentapi.HeaderTokens) != "" {
				t.Error("a header between agent and gateway reached the client")
			}
			if used := limit - l.tokensLeft(token); used != tc.used {
				t.Errorf("%d tokens were counted, want %d", used, tc.used)
			}
			l.idle()
			if got, want := l.counter("api_key_tokens_total"), float64(tc.used+guess(`{"model":"m"}`)); got != want {
				t.Errorf("metric says %v, want %v", got, want)
			}
		})
	}
}

// A client that leaves before the end has used what its Mac reported by then.
func TestTokensOfAClientThatLeftAreCounted(t *testing.T) {
	l := newLocked(t)
	reported, gone := make(chan struct{}), make(chan struct{})
	var first sync.Once
	l.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		long := false
		if first.Do(func() { long = true }); !long {
			say("{}")(rw, r)
			return
		}
		for _, text := range []int{10, 400} {
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 100, text)
			rw.WriteHeader(http.StatusProcessing)
		}
		close(reported)
		<-r.Context().Done()
		close(gone)
	})
	token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: 1000})
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", l.url+chatPath, strings.NewReader(chatBody))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := http.DefaultClient.Do(r); err == nil {
			_ = resp.Body.Close()
			t.Error("the request was answered")
		}
	}()
	<-reported
	read(t, l.with(token, "POST", chatPath, chatBody)) // of the same connection: the reports have arrived before it
	leave()
	<-gone
	<-ended
	l.idle()
	if got, want := l.counter("api_key_tokens_total"), float64(500+guess(chatBody)); got != want {
		t.Errorf("%v tokens were counted, want %v", got, want)
	}
}

func TestOverTheTokensPerMinuteOfAKey(t *testing.T) {
	l := newLocked(t)
	m := l.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 60, 300) // two minutes' worth too many
		say("{}")(rw, r)
	})
	token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: 120})
	resp := l.with(token, "POST", chatPath, `{"model":"m","x":"`+strings.Repeat("x", 600)+`"}`)
	l.wantRefusal(resp, refusal{status: 429, code: openai.CodeRateLimitExceeded})
	if resp.Header.Get("X-Should-Retry") != "false" {
		t.Error("a client is left to retry what never fits")
	}
	if resp := l.ask(token); resp.StatusCode != 200 {
		t.Fatalf("within: %d", resp.StatusCode)
	}
	l.idle()
	// The key is at -240, and the request needs 7: at 2 per second.
	resp = l.ask(token)
	l.wantRefusal(resp, refusal{status: 429, code: openai.CodeRateLimitExceeded, retry: "124"})
	if resp.Header.Get("x-ratelimit-remaining-tokens") != "0" || resp.Header.Get("x-ratelimit-limit-tokens") != "120" {
		t.Errorf("headers %v", resp.Header)
	}
	l.wantAudit("key=k", "reason=tokens_per_minute", "model=m")
	l.pass(124 * time.Second)
	if resp := l.ask(token); resp.StatusCode != 200 || m.requests.Load() != 2 {
		t.Errorf("after the wait: %d, %d requests at the Mac", resp.StatusCode, m.requests.Load())
	}
}

// An image of a megabyte has as many tokens as a small one: a key whose limit is above them may
// send it.
func TestAnImageCountsAsItsTokens(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", say("{}"))
	token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: 5000})
	send := func(url string) *http.Response {
		return l.with(token, "POST", chatPath, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"what?"},{"type":"image_url","image_url":{"url":"`+url+`"}}]}]}`)
	}
	if resp := send("data:image/png;base64," + strings.Repeat("A", 1<<20)); resp.StatusCode != 200 {
		t.Errorf("%d: %s", resp.StatusCode, read(t, resp))
	}
	if used := 5000 - l.tokensLeft(token); used < 2048 || used > 2048+100 {
		t.Errorf("%d tokens were counted", used)
	}
	before := l.tokensLeft(token)
	if send("https://h/a"); before-l.tokensLeft(token) > 100 { // until its Mac has counted them
		t.Errorf("%d tokens were counted for a short URL", before-l.tokensLeft(token))
	}
}

// A key with many concurrent responses is limited before the first of them ends.
func TestAStreamIsCountedWhileItRuns(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", events(untilGone, strings.Split(strings.Repeat("x", 200), "")...))
	token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: 100})
	stream := openai.NewEventReader(l.ask(token).Body)
	for range 200 {
		if _, err := stream.Next(); err != nil {
			t.Fatal(err)
		}
	}
	resp := l.ask(token)
	if resp.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("while more runs than the key allows: %d", resp.StatusCode) // the body never ends
	}
	l.wantRefusal(resp, refusal{status: 429, code: openai.CodeRateLimitExceeded, retry: "69"}) // at -107, and 7 needed
}

// TestAKeyStaysAtTheGateway: no Mac, no log line and no metric contains a key.
func TestAKeyStaysAtTheGateway(t *testing.T) {
	l := newLocked(t)
	m := l.addMac("a", say("{}"))
	token := l.key("k", keys.Grant{Models: []string{"m"}})
	stranger := keys.NewToken("stranger")
	l.ask(token)
	l.ask(stranger)
	l.with(token, "POST", chatPath, `{"model":"unknown"}`)
	l.with(token, "POST", chatPath+"?api_key="+token, chatBody)
	for range 2 {
		seen := <-m.seen
		b, _ := io.ReadAll(seen.Body)
		if all := fmt.Sprint(seen.Header, seen.URL, string(b)); strings.Contains(all, token) {
			t.Errorf("the Mac saw the key: %s", all)
		}
	}
	families, err := l.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"metrics": fmt.Sprint(families), "log": l.log.String()} {
		for _, secret := range []string{token[5:], stranger[12:]} {
			if strings.Contains(text, secret) {
				t.Errorf("the %s hold a key", where)
			}
		}
	}
	if !strings.Contains(fmt.Sprint(families), `value:"k"`) || strings.Contains(fmt.Sprint(families), `value:"stranger"`) {
		t.Errorf("metrics name keys that there are, and no others: %v", families)
	}
}

func TestBeforeKeysAreSyncedRequestsAreUnavailable(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) {
		c.Keys = keys.NewStore(keys.Options{Registry: prometheus.NewRegistry(), Log: logr.Discard()})
	})
	w.addMac("a", say("{}"))
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
}

// The agent receives the key's priority, never one from the client.
func TestTheAgentReceivesThePriorityOfTheKey(t *testing.T) {
	l := newLocked(t)
	told := make(chan string, 1)
	l.addMac("a", func(w http.ResponseWriter, r *http.Request) {
		told <- strings.Join(r.Header.Values(agentapi.HeaderPriority), ",")
		say("{}")(w, r)
	})
	for want, g := range map[string]keys.Grant{"0": {Models: []string{"m"}}, "-5": {Models: []string{"m"}, Priority: -5}, "9": {Models: []string{"m"}, Priority: 9}} {
		token := l.key("k"+strings.TrimPrefix(want, "-"), g)
		if resp := l.with(token, "POST", chatPath, chatBody, agentapi.HeaderPriority, "-999"); resp.StatusCode != 200 {
			t.Fatalf("%d", resp.StatusCode)
		}
		if got := <-told; got != want {
			t.Errorf("the agent receives %q, want %q", got, want)
		}
	}
}

// TestClientsWithoutKeysAreNeverMoreUrgent than others.
func TestClientsWithoutKeysAreNeverMoreUrgent(t *testing.T) {
	w := newWorld(t)
	told := make(chan []string, 1)
	w.addMac("a", func(w http.ResponseWriter, r *http.Request) {
		told <- r.Header.Values(agentapi.HeaderPriority)
		say("{}")(w, r)
	})
	if resp := w.do("POST", chatPath, chatBody, agentapi.HeaderPriority, "-999"); resp.StatusCode != 200 {
		t.Fatalf("%d", resp.StatusCode)
	}
	if got := <-told; len(got) != 1 || got[0] != "0" {
		t.Errorf("the agent receives %q as the most urgent priority, want 0", got)
	}
}

// TestAttackAMacThatCountsTokens: a stolen Mac invents tokens, as a number or as events. The
// key pays no more than its request can use.
func TestAttackAMacThatCountsTokens(t *testing.T) {
	const limit = 100_000
	body := `{"model":"m","stream":true,"max_tokens":10}`
	most := 4*len(body) + (8 << 10) + 10
	for name, answer := range map[string]http.HandlerFunc{
		"in a header": func(rw http.ResponseWriter, r *http.Request) {
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 1<<31, 1<<31)
			say("{}")(rw, r)
		},
		"in a trailer": func(rw http.ResponseWriter, r *http.Request) {
			events(nil, "a", "[DONE]")(rw, r)
			agentapi.SetTokens(rw.Header(), http.TrailerPrefix+agentapi.HeaderTokens, 1<<31, 1<<31)
		},
		"as events": func(rw http.ResponseWriter, r *http.Request) {
			events(nil, append(strings.Split(strings.Repeat("x", 15_000), ""), "[DONE]")...)(rw, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocked(t)
			l.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.Header.Get("Content-Type"), "json") && r.ContentLength == int64(len(body)) {
					answer(rw, r)
					return
				}
				say("{}")(rw, r)
			})
			token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: limit})
			read(t, l.with(token, "POST", chatPath, body))
			if used := limit - l.tokensLeft(token); used > most {
				t.Errorf("%d tokens were counted, want at most %d", used, most)
			}
		})
	}
}

// TestALongAnswerArrivesWithAndWithoutKeys: a Mac reports its tokens twice a second, and a
// transport ends a response of which no one reads the reports after 16 KiB.
func TestALongAnswerArrivesWithAndWithoutKeys(t *testing.T) {
	mac := func(rw http.ResponseWriter, r *http.Request) {
		for i := range 250 {
			if r.Header.Get(agentapi.HeaderInforms) != "true" {
				break
			}
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 100, i)
			rw.WriteHeader(http.StatusProcessing)
		}
		say(`{"text":"done"}`)(rw, r)
	}
	w := newWorld(t)
	w.addMac("a", mac)
	l := newLocked(t)
	l.addMac("a", mac)
	for name, r := range map[string]*http.Response{"without keys": w.do("POST", chatPath, chatBody), "with keys": l.with(l.key("good", keys.Grant{Models: []string{"m"}}), "POST", chatPath, chatBody)} {
		if body := read(t, r); r.StatusCode != http.StatusOK || body != `{"text":"done"}` {
			t.Errorf("%s: %d %s", name, r.StatusCode, body)
		}
	}
}
