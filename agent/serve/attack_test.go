package serve_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

const question = `{"model":"m","prompt":"x"}`

// visitor is a client of a Mac's port that checks nothing of the Mac.
type visitor struct {
	certificate *agentapitest.PEM // none where nil
	means       string            // the Mac's name that it sends
	oldTLS      bool
}

// ask sends one question over a connection of its own.
func (v visitor) ask(t *testing.T, addr string) error {
	t.Helper()
	config := &tls.Config{ServerName: v.means, InsecureSkipVerify: true}
	if v.oldTLS {
		config.MaxVersion = tls.VersionTLS12
	}
	if v.certificate != nil {
		pair := v.certificate.Pair(t)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair() }
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := tls.Dialer{Config: config} // the transport would send the address where no name is given
		return d.DialContext(ctx, "tcp", addr)
	}
	c := &http.Client{Transport: &http.Transport{DialTLSContext: dial, DisableKeepAlives: true}, Timeout: patience.Most}
	resp, err := c.Post("https://mac/v1/completions", "application/json", strings.NewReader(question))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// TestAttackStraightAtAMac: past the gateway there is no way to a model. Who is
// no gateway of this fleet does not get through the handshake.
func TestAttackStraightAtAMac(t *testing.T) {
	answered := make(chan struct{}, 100)
	script := servetest.Say("hello")
	a := startAgent(t, func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		answered <- struct{}{}
		return script(ctx, r, send)
	}, time.Second)
	addr := strings.TrimPrefix(a.url, "https://")
	forged := func(change func(*x509.Certificate)) *agentapitest.PEM {
		pem := a.ca.Forged(change)
		return &pem
	}
	theirs, other, own := agentapitest.NewCA(t).Gateway(), a.ca.Mac("mac-b"), a.ca.Mac("mac-a")
	good := forged(func(*x509.Certificate) {})
	name := agentapi.MacServerName("mac-a")
	for what, v := range map[string]visitor{
		"without a certificate":                    {certificate: nil, means: name, oldTLS: false},
		"with one of another authority":            {certificate: &theirs, means: name, oldTLS: false},
		"with another Mac's":                       {certificate: &other, means: name, oldTLS: false},
		"with the Mac's own":                       {certificate: &own, means: name, oldTLS: false},
		"with a gateway's for Mac mac-b":           {certificate: good, means: agentapi.MacServerName("mac-b"), oldTLS: false},
		"with a gateway's for a gateway":           {certificate: good, means: agentapi.GatewayName, oldTLS: false},
		"with a gateway's certificate for no name": {certificate: good, means: "", oldTLS: false},
		"with a gateway's over TLS 1.2":            {certificate: good, means: name, oldTLS: true},
		"with one that expired":                    {certificate: forged(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = ago(2*time.Hour), ago(time.Second) }), means: name, oldTLS: false},
		"with one that is not yet good":            {certificate: forged(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = ago(-time.Hour), ago(-2*time.Hour) }), means: name, oldTLS: false},
		"with a gateway's that serves":             {certificate: forged(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), means: name, oldTLS: false},
		"with a Mac's for clients":                 {certificate: forged(func(c *x509.Certificate) { c.DNSNames = []string{agentapi.MacServerName("mac-b")} }), means: name, oldTLS: false},
		"with a name that begins like it":          {certificate: forged(func(c *x509.Certificate) { c.DNSNames = []string{agentapi.GatewayName + ".example"} }), means: name, oldTLS: false},
		"with any name of that domain":             {certificate: forged(func(c *x509.Certificate) { c.DNSNames = []string{"*.metalfleet.dev"} }), means: name, oldTLS: false},
		"with the name as its subject's":           {certificate: forged(func(c *x509.Certificate) { c.DNSNames = nil }), means: name, oldTLS: false},
		"with a certificate for no usage":          {certificate: forged(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }), means: name, oldTLS: false},
		"with an authority of its own":             {certificate: forged(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid, c.DNSNames = true, true, nil }), means: name, oldTLS: false},
		"with the name as a user's e-mail":         {certificate: forged(func(c *x509.Certificate) { c.DNSNames, c.EmailAddresses = nil, []string{agentapi.GatewayName} }), means: name, oldTLS: false},
	} {
		if err := v.ask(t, addr); err == nil {
			t.Errorf("%s a stranger is answered", what)
		}
	}
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := plain.Post("http://"+addr+"/v1/completions", "application/json", strings.NewReader(question))
	if err == nil {
		resp.Body.Close()
	}
	if err == nil && resp.StatusCode == http.StatusOK {
		t.Error("without TLS a stranger is answered")
	}
	if len(answered) > 0 {
		t.Errorf("an engine saw %d of the questions", len(answered))
	}
	if err := (visitor{certificate: good, means: name, oldTLS: false}).ask(t, addr); err != nil || len(answered) != 1 {
		t.Errorf("a gateway: %v, and %d questions", err, len(answered))
	}
}

func ago(d time.Duration) time.Time { return time.Now().Add(-d) }

// TestAttackLogInjection: names in requests and messages of engines stay inside
// one quoted value of one log line.
func TestAttackLogInjection(t *testing.T) {
	var log bytes.Buffer
	const evil = "x\ntime=2000 level=ERROR msg=forged\r\u2028\x1b[2J\x07\" key=root"
	text := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.Level(-10)}) // all of it
	p := newPort(t, func(context.Context, *wire.GenerateRequest, func(*wire.GenerateEvent) error) error {
		return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_INTERNAL, Message: evil})
	}, func(c *serve.Config) { c.Log = logr.FromSlogHandler(text) })
	name := `"` + strings.NewReplacer("\n", `\n`, "\r", `\r`, "\x1b", `\u001b`, "\x07", `\u0007`, `"`, `\"`).Replace(evil) + `"`
	p.do("POST", "/v1/completions", `{"model":`+name+`,"prompt":"x"}`)
	p.do("POST", "/v1/completions", question, "X-Request-Id", "r key=root")
	p.do("GET", "/v1/models/x%0Atime=2000%20level=ERROR%1b%5b2J", "")
	p.do("GET", "/x%0Atime=2000%20level=ERROR%1b%5b2J", "")
	p.do("GET", "/"+strings.Repeat("long", 8<<10), "")
	all := strings.Split(strings.TrimSpace(log.String()), "\n")
	if !strings.Contains(log.String(), "request failed") {
		t.Errorf("the failed request is not told: %s", log.String())
	}
	for _, line := range all {
		if !strings.HasPrefix(line, "time=") || len(line) > 1024 {
			t.Errorf("a line of %d bytes: %.600q", len(line), line)
		}
		if i := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u2028' }); i >= 0 {
			t.Errorf("a control character in %q", line)
		}
		if strings.Contains(strings.ReplaceAll(line, `\" key=root`, ""), " key=root") {
			t.Errorf("a forged value in %q", line)
		}
	}
}

// TestAttackHandshakesThatNeverEnd: a stranger's unfinished handshakes give way to newer
// connections, and do not keep a gateway out.
func TestAttackHandshakesThatNeverEnd(t *testing.T) {
	a := startAgent(t, servetest.Say("hello"), time.Second)
	addr := strings.TrimPrefix(a.url, "https://")
	hello := append([]byte{22, 3, 1, 0x40, 0}, 1, 0, 0xf0, 0) // a ClientHello of 60 KiB begins
	hello = append(hello, make([]byte, 16<<10-4)...)
	const strangers, most = 200, 64
	var closed atomic.Int64
	for range strangers {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(hello) // it may be closed already
		go func() {
			_, _ = io.Copy(io.Discard, c)
			closed.Add(1)
		}()
	}
	if _, err := io.ReadAll(a.stream(t).Body); err != nil {
		t.Errorf("a gateway: %v", err)
	}
	deadline := time.Now().Add(4 * time.Second) // before the handshakes run out of time
	for closed.Load() < strangers-most && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if n := strangers - closed.Load(); n > most {
		t.Errorf("%d unfinished handshakes of one address are open, want at most %d", n, most)
	}
}

// TestAttackConnectionsOfOneMac: connections of one Mac beyond 8 replace its oldest, and do not
// keep another Mac out.
func TestAttackConnectionsOfOneMac(t *testing.T) {
	ca := agentapitest.NewCA(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serve.Serve(ctx, l, agentapi.WeightsServerTLS(ca.Mac("mac-a").Pair(t), ca.Roots()), serve.Config{Mac: "mac-a", Log: testr.New(t)}, serve.Within(time.Second))
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	connect := func(mac string) *tls.Conn {
		t.Helper()
		c, err := tls.Dial("tcp", l.Addr().String(), agentapi.WeightsClientTLS(ca.Mac(mac).Pair(t), ca.Roots(), "mac-a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetDeadline(time.Now().Add(patience.Of(t))); err != nil {
			t.Fatal(err)
		}
		return c
	}
	const most = 8
	other := connect("mac-c")
	defer other.Close()
	var all []*tls.Conn
	for range 2 * most {
		c := connect("mac-b")
		defer c.Close()
		if !serves(c) {
			t.Fatal("a new connection is refused")
		}
		all = append(all, c)
	}
	for i, c := range all {
		if served := serves(c); served != (i >= most) {
			t.Errorf("connection %d of %d of one Mac: served is %t", i+1, len(all), served)
		}
	}
	if !serves(other) {
		t.Error("the connection of another Mac was closed")
	}
	for _, c := range all { // which leave room again
		c.Close()
	}
	if c := connect("mac-b"); !serves(c) {
		t.Error("a Mac is refused whose connections have ended")
	} else {
		c.Close()
	}
}

// serves reports whether a connection to mac-a is served: a Mac without weights refuses a
// request.
func serves(c *tls.Conn) bool {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: mac-a\r\n\r\n"); err != nil {
		return false
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	return err == nil
}

// TestAttackManyBodiesAtAMac: the bodies of one tenant that wait for the engine leave memory
// for those of others.
func TestAttackManyBodiesAtAMac(t *testing.T) {
	p := newPort(t, servetest.Hang(), func(c *serve.Config) { c.BodiesBytes = 1 << 20 })
	large := `{"model":"m","prompt":"` + strings.Repeat("x", 200<<10) + `"}`
	refused := make(chan *http.Response, 8)
	for range 8 {
		go func() {
			r, err := http.NewRequestWithContext(t.Context(), "POST", p.url+"/v1/completions", strings.NewReader(large))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set(agentapi.HeaderTenant, "a")
			resp, err := http.DefaultClient.Do(r)
			if err == nil {
				refused <- resp
			}
		}()
	}
	select {
	case resp := <-refused:
		p.wantRefusal(resp, refusal{status: 503, code: openai.CodeOverloaded, retry: "1", retryable: true})
	case <-time.After(patience.Of(t)):
		t.Fatal("the bodies of one tenant fill the memory for all")
	}
	answered := make(chan int, 1)
	go func() { // it is read, though it is larger than what a tenant's share has left, and waits for the engine
		r, err := http.NewRequestWithContext(t.Context(), "POST", p.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"`+strings.Repeat("x", 300<<10)+`"}`))
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set(agentapi.HeaderTenant, "b")
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
			answered <- resp.StatusCode
		}
	}()
	for {
		select {
		case r := <-p.seen:
			if r.GetTenant() == "b" {
				return
			}
		case status := <-answered:
			t.Fatalf("the request of another tenant got status %d", status)
		case <-time.After(patience.Of(t)):
			t.Fatal("the request of another tenant is not read")
		}
	}
}

// TestAttackShortRequestsContinueALongConversation: a request of 100 bytes that continues a stored
// response holds all of it until the engine admits it.
func TestAttackShortRequestsContinueALongConversation(t *testing.T) {
	var hang atomic.Bool
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		if hang.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return servetest.Say("x")(ctx, r, send)
	}, func(c *serve.Config) { c.BodiesBytes = 1 << 20 })
	ask := func(body string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), "POST", p.url+"/v1/responses", strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header.Set(agentapi.HeaderTenant, "a")
		return http.DefaultClient.Do(r)
	}
	resp, err := ask(`{"model":"m","input":"` + strings.Repeat("x", 100<<10) + `"}`)
	if err != nil {
		t.Fatal(err)
	}
	var stored struct{ ID string }
	if err := json.Unmarshal([]byte(read(t, resp)), &stored); err != nil || stored.ID == "" {
		t.Fatalf("no id: %v", err)
	}
	hang.Store(true)
	refused := make(chan *http.Response, 8)
	for range 8 {
		go func() {
			if resp, err := ask(`{"model":"m","input":"more","previous_response_id":"` + stored.ID + `"}`); err == nil {
				refused <- resp
			}
		}()
	}
	select {
	case resp := <-refused:
		p.wantRefusal(resp, refusal{status: 503, code: openai.CodeOverloaded, retry: "1", retryable: true})
	case <-time.After(patience.Of(t)):
		t.Fatal("stored items of one tenant fill the memory for all")
	}
}

// leave sends a request of tenant a whose answer does not end before the test.
func (p *port) leave(path, body string) {
	r, err := http.NewRequestWithContext(p.t.Context(), "POST", p.url+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set(agentapi.HeaderTenant, "a")
	if resp, err := http.DefaultClient.Do(r); err == nil {
		resp.Body.Close()
	}
}

// TestAttackAdmittedRequestsStayInMemory: an answer may take hours, and a tenant may have as
// many as the engine queues. What only the engine needs of their requests is not held.
func TestAttackAdmittedRequestsStayInMemory(t *testing.T) {
	sent := make(chan weak.Pointer[wire.GenerateRequest], 1)
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		sent <- weak.Make(r)
		if err := send(servetest.Admit()); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	for path, body := range map[string]string{"/v1/chat/completions": `"messages":[{"role":"user","content":"hi"}]`, "/v1/completions": `"prompt":"hi"`,
		"/v1/messages": `"max_tokens":5,"messages":[{"role":"user","content":"hi"}]`, "/v1/responses": `"input":"hi","store":false`} {
		go p.leave(path, `{"model":"m",`+body+`}`)
		one := <-sent
		<-p.seen
		eventually(t, path+": the request is not held", func() bool {
			runtime.GC()
			return one.Value() == nil
		})
	}
}

// TestAttackAnAnswerThatGaveWayWaitsForALoad: an answer that had to give way to that of
// another tenant neither waits for its model nor holds it.
func TestAttackAnAnswerThatGaveWayWaitsForALoad(t *testing.T) {
	cold := loading{began: make(chan struct{}), loaded: make(chan error)}
	p := newPort(t, servetest.Say("x"), func(c *serve.Config) {
		cold.Fake = c.Engines.(*servetest.Fake)
		c.Engines, c.AnswersBytes = cold, 4<<20
	})
	answered := make(chan string, 3)
	for _, c := range []struct {
		tenant string
		bytes  int // of the answer, which is in memory twice
	}{{"a", 1900 << 10}, {"b", 900 << 10}, {"c", 700 << 10}} {
		go func() {
			body := `{"model":"m","input":"hi","instructions":"` + strings.Repeat("x", c.bytes/2) + `"}`
			r, err := http.NewRequestWithContext(t.Context(), "POST", p.url+"/v1/responses", strings.NewReader(body))
			if err != nil {
				panic(err)
			}
			r.Header.Set(agentapi.HeaderTenant, c.tenant)
			if resp, err := http.DefaultClient.Do(r); err == nil {
				resp.Body.Close()
				answered <- fmt.Sprint(c.tenant, " ", resp.StatusCode)
			}
		}()
		<-cold.began
	}
	select {
	case got := <-answered:
		if got != "a 503" {
			t.Errorf("answered %s, want a 503", got)
		}
	case <-time.After(patience.Of(t)):
		t.Error("the answer that gave way still waits for its model")
	}
}

// TestAttackLogprobsOfLongAnswers: an answer that is not streamed, and an echoed prompt, keep
// 21 log-probabilities for each of a hundred thousand tokens. They count, and their memory
// is free when the answer has ended.
func TestAttackLogprobsOfLongAnswers(t *testing.T) {
	one := scored("abcd", -1, slices.Repeat([]string{"abcd"}, 20)...)
	prompt := servetest.Prompt(strings.Repeat("abcd", 100), slices.Repeat([]*wire.TokenLogprobs{one}, 100)...)
	answered := servetest.Text("abcd")
	answered.GetDelta().Logprobs = slices.Repeat([]*wire.TokenLogprobs{one}, 100)
	for name, c := range map[string]struct {
		path, body string
		event      *wire.GenerateEvent
		times      int
		refused    bool
	}{
		"chat":           {path: "/v1/chat/completions", body: `"messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":20`, event: answered, refused: true},
		"streamed chat":  {path: "/v1/chat/completions", body: `"messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":20,"stream":true`, event: answered},
		"echo":           {path: "/v1/completions", body: `"prompt":"hi","echo":true,"logprobs":5`, event: prompt, refused: true},
		"streamed echo":  {path: "/v1/completions", body: `"prompt":"hi","echo":true,"logprobs":5,"stream":true`, event: prompt, refused: true},
		"echoed text":    {path: "/v1/completions", body: `"prompt":"hi","echo":true,"stream":true`, event: servetest.Prompt(strings.Repeat("\x01", 15_000)), refused: true},
		"response":       {path: "/v1/responses", body: `"input":"hi","include":["message.output_text.logprobs"],"top_logprobs":20`, event: answered, refused: true},
		"long texts":     {path: "/v1/chat/completions", body: `"messages":[{"role":"user","content":"hi"}]`, event: servetest.Text(strings.Repeat("abcd", 30000)), refused: true},
		"not so long":    {path: "/v1/chat/completions", body: `"messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":20`, event: answered, times: 2},
		"without tokens": {path: "/v1/completions", body: `"prompt":"hi"`, event: servetest.Text("abcd")},
	} {
		script := []*wire.GenerateEvent{servetest.Admit()}
		script = append(script, slices.Repeat([]*wire.GenerateEvent{c.event}, cmp.Or(c.times, 20))...)
		p := newPort(t, servetest.Events(append(script, servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 2000))...),
			func(c *serve.Config) { c.AnswersBytes = 4 << 20 })
		for range 3 { // what one keeps is released
			got := read(t, p.do("POST", c.path, `{"model":"m",`+c.body+`}`))
			if refused := strings.Contains(got, "needs more memory than there is"); refused != c.refused {
				t.Errorf("%s: refused is %v: %.200s", name, refused, got)
			}
			<-p.seen
		}
	}
}

// TestAttackLargeEventsOfAStream: an engine whose vocabulary has tokens of megabytes, or that was
// taken over, sends large events, of which the agent makes many times as much for a client that
// does not read.
func TestAttackLargeEventsOfAStream(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	some := servetest.Text("a")
	some.GetDelta().Logprobs = slices.Repeat([]*wire.TokenLogprobs{scored("a", -1, slices.Repeat([]string{"a"}, 20)...)}, 1000)
	alternatives := servetest.Text("a")
	alternatives.GetDelta().Logprobs = []*wire.TokenLogprobs{scored("a", -1, "b", strings.Repeat("a", 20<<10))}
	for name, c := range map[string]struct {
		event   *wire.GenerateEvent
		refused bool
	}{
		"text":                    {event: servetest.Text(long), refused: true},
		"many log-probabilities":  {event: some, refused: true},
		"half as much as is free": {event: servetest.Text(long[:len(long)/5])},
		"a long alternative":      {event: alternatives},
	} {
		p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("a"), c.event, servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 2)),
			func(c *serve.Config) { c.AnswersBytes = 4 << 20 })
		for range 3 { // what was counted is released
			got := read(t, p.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"logprobs":true,"top_logprobs":20}`))
			if refused := strings.Contains(got, "use all of the memory"); refused != c.refused || refused == strings.Contains(got, "[DONE]") {
				t.Errorf("%s: refused is %v: %.200s", name, refused, got)
			}
			if name == "a long alternative" && (len(got) > 16*wire.MaxSpelled || !strings.Contains(got, strings.Repeat("a", wire.MaxSpelled))) {
				t.Errorf("%d bytes are sent for a token of %d", len(got), 20<<10)
			}
			<-p.seen
		}
	}
}

// unhurried returns an agent, of which clients read answers of at least some hundred
// kilobytes at their pace. It has room for one of them.
func unhurried(t *testing.T, room int64) *agent {
	a := startAgent(t, servetest.Say("x"), time.Second, func(c *serve.Config) { c.AnswersBytes = room })
	a.client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 128 << 10} // as of a gateway
	return a
}

// waits requires that a second answer is not begun while the first is not read, and that it
// is after that.
func waits(t *testing.T, ask func(context.Context) (*http.Response, error)) {
	t.Helper()
	first, err := ask(t.Context())
	if err != nil || first.StatusCode != http.StatusOK {
		t.Fatal(first, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if second, err := ask(ctx); err == nil {
		t.Errorf("another answer is in memory before the first is read: %s", second.Status)
	}
	read(t, first)
	third, err := ask(t.Context())
	for until := time.Now().Add(10 * time.Second); err == nil && third.StatusCode == http.StatusServiceUnavailable && time.Now().Before(until); third, err = ask(t.Context()) {
		time.Sleep(10 * time.Millisecond) // the second may still hold its body
	}
	if err != nil || third.StatusCode != http.StatusOK {
		t.Fatal(third, err)
	}
	read(t, third)
}

// TestAttackReadsOfAStoredResponse: a read costs a hundred bytes, and the response repeats
// what its request said.
func TestAttackReadsOfAStoredResponse(t *testing.T) {
	a := unhurried(t, 20<<20)
	large := `{"model":"m","input":"hi","max_output_tokens":1,"instructions":"` + strings.Repeat("x", 3<<20) + `"}`
	resp, err := a.client.Post(a.url+"/v1/responses", "application/json", strings.NewReader(large))
	if err != nil {
		t.Fatal(err)
	}
	var stored struct{ ID string }
	if err := json.Unmarshal([]byte(read(t, resp)), &stored); err != nil || stored.ID == "" {
		t.Fatal(stored, err)
	}
	for what, ask := range map[string]func(context.Context) (*http.Request, error){
		"read": func(ctx context.Context) (*http.Request, error) {
			return http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/v1/responses/"+stored.ID, nil)
		},
		"answer": func(ctx context.Context) (*http.Request, error) {
			return http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/v1/responses", strings.NewReader(large))
		},
	} {
		t.Run(what, func(t *testing.T) {
			waits(t, func(ctx context.Context) (*http.Response, error) {
				r, err := ask(ctx)
				if err != nil {
					t.Fatal(err)
				}
				return a.client.Do(r)
			})
		})
	}
}

// TestAttackVectorsForASlowReader: 8 KB of inputs become 100 MB of JSON. It is written
// vector by vector, and the vectors count before they are computed.
func TestAttackVectorsForASlowReader(t *testing.T) {
	const inputs, dimensions = 256, 4096
	a := unhurried(t, 12<<20)
	a.fake.AddReader("e", here, servetest.Reader{Embed: func(_ context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
		out := &wire.EmbedResponse{Usage: &wire.Usage{PromptTokens: 1}}
		for range r.GetTexts() {
			out.Vectors = append(out.Vectors, &wire.Vector{Values: slices.Repeat([]float32{0.01}, dimensions)})
		}
		return out, nil
	}})
	body := `{"model":"e","input":["a"` + strings.Repeat(`,"a"`, inputs-1) + `]}`
	waits(t, func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+dialect.PathEmbeddings, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := a.client.Do(r)
		if err == nil && resp.ContentLength >= 0 {
			t.Errorf("the answer was in memory as a whole: %d bytes", resp.ContentLength)
		}
		return resp, err
	})
}

// TestAttackRequestsOfManyChoices: a request stays in memory for its further choices.
// None of them has a copy of the input.
func TestAttackRequestsOfManyChoices(t *testing.T) {
	p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("a")), func(c *serve.Config) { c.BodiesBytes = 2 << 20 })
	large := `{"model":"m","n":2,"messages":[{"role":"user","content":"` + strings.Repeat("x", 400<<10) + `"}]}`
	go p.leave("/v1/chat/completions", large)
	first, second := <-p.seen, <-p.seen
	if second.GetChat() == nil || first.GetChat() != second.GetChat() {
		t.Error("the input of the second choice is a copy, or there is none")
	}
}
