package serve_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/openai"
)

// agent is Serve with real TLS and HTTP/2 on loopback.
type agent struct {
	ca     *agentapitest.CA
	fake   *servetest.Fake
	url    string
	client *http.Client
	stop   context.CancelFunc
	ended  chan error
}

func startAgent(t *testing.T, script servetest.Script, drain time.Duration, change ...func(*serve.Config)) *agent {
	t.Helper()
	ca := agentapitest.NewCA(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{ca: ca, fake: servetest.New(), url: "https://" + l.Addr().String(), ended: make(chan error, 1)}
	a.fake.Add("m", here, script)
	c := serve.Config{Engines: a.fake, Mac: "mac-a", Log: testr.New(t)}
	for _, f := range change {
		f(&c)
	}
	ctx, stop := context.WithCancel(t.Context())
	a.stop = stop
	go func() {
		a.ended <- serve.Serve(ctx, l, agentapi.ServerTLS(ca.Mac("mac-a").Pair(t), ca.Roots()), c, serve.Within(drain))
		close(a.ended)
	}()
	transport := &http.Transport{TLSClientConfig: agentapi.ClientTLS(ca.Gateway().Pair(t), ca.Roots(), "mac-a"), ForceAttemptHTTP2: true}
	a.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		a.fake.Lose(here)
		stop()
		for range a.ended {
		}
	})
	return a
}

func (a *agent) stream(t *testing.T) *http.Response {
	t.Helper()
	resp, err := a.client.Post(a.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.ProtoMajor != 2 || resp.StatusCode != 200 {
		t.Fatalf("%s %s", resp.Proto, resp.Status)
	}
	return resp
}

func TestPortSpeaksHTTP2OverMutualTLS(t *testing.T) {
	a := startAgent(t, servetest.Say("hello"), time.Second)
	b, err := io.ReadAll(a.stream(t).Body)
	if err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
		t.Errorf("%s, %v", b, err)
	}
	plain := &http.Client{Transport: &http.Transport{TLSClientConfig: agentapi.ClientTLS(
		agentapitest.NewCA(t).Gateway().Pair(t), nil, "mac-a")}}
	if resp, err := plain.Get(a.url + "/v1/models"); err == nil {
		resp.Body.Close()
		t.Error("a stranger was let in")
	}
}

// TestAConnectionOfARootThatLeftTakesNoMoreRequests: its running requests finish,
// and no request fails.
func TestAConnectionOfARootThatLeftTakesNoMoreRequests(t *testing.T) {
	var left atomic.Bool
	a := startAgent(t, servetest.Hang(servetest.Admit(), servetest.Text("x")), time.Second, func(c *serve.Config) {
		c.Trusts = func(s *tls.ConnectionState) bool { return s != nil && !left.Load() }
	})
	running := openai.NewEventReader(a.stream(t).Body)
	if _, err := running.Next(); err != nil {
		t.Fatal(err)
	}
	opened := func() (fresh bool) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { fresh = !i.Reused }})
		r, err := http.NewRequestWithContext(ctx, "GET", a.url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := a.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s, %v", resp.Status, err)
		}
		return fresh
	}
	if opened() {
		t.Error("a connection that is trusted is not used")
	}
	left.Store(true)
	opened() // the last one there
	left.Store(false)
	eventually(t, "another connection is opened", opened)
	if holds, _ := a.fake.Holds(here); holds != 1 {
		t.Error("the stream on the old connection was cut")
	}
}

func TestHTTP2ClientThatNeverReadsIsBounded(t *testing.T) {
	a := startAgent(t, servetest.Endless(strings.Repeat("x", 64<<10)), time.Second, func(c *serve.Config) { c.WriteTimeout = 500 * time.Millisecond })
	a.stream(t) // the client does not read
	eventually(t, "request ended and hold released", func() bool {
		holds, ended := a.fake.Holds(here)
		return holds == 0 && ended == 1
	})
}

// A gateway reads nothing while it sends an event to a client that reads slowly.
func TestGatewayThatSendsALargeEventIsAwaited(t *testing.T) {
	large := strings.Repeat("x", 256<<10)
	a := startAgent(t, servetest.Say(large, large), time.Second, func(c *serve.Config) { c.WriteTimeout = 300 * time.Millisecond })
	a.client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 128 << 10}
	events := openai.NewEventReader(a.stream(t).Body)
	for range 2 {
		if _, err := events.Next(); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second) // several write timeouts
	}
}

func TestHTTP2StreamThatWaitsForTheEngineOutlivesTheWriteTimeout(t *testing.T) {
	a := startAgent(t, servetest.Hang(servetest.Admit(), servetest.Text("x")), time.Second, func(c *serve.Config) {
		c.WriteTimeout, c.KeepAlive = 300*time.Millisecond, time.Hour
	})
	events := openai.NewEventReader(a.stream(t).Body)
	if _, err := events.Next(); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Second) // several write timeouts
	if holds, _ := a.fake.Holds(here); holds != 1 {
		t.Error("the stream was ended while it waited for the engine")
	}
}

func TestShutdownLetsRunningStreamsEnd(t *testing.T) {
	a := startAgent(t, servetest.Hang(servetest.Admit(), servetest.Text("x")), 20*time.Second)
	resp := a.stream(t)
	a.stop()
	eventually(t, "new connections are refused", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(a.url, "https://"))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	if holds, _ := a.fake.Holds(here); holds != 1 {
		t.Error("the running stream was cut")
	}
	_ = resp.Body.Close() // the last client leaves
	if err := <-a.ended; err != nil {
		t.Error(err)
	}
}

func TestShutdownIsBoundedAndTellsTheClient(t *testing.T) {
	a := startAgent(t, servetest.Hang(servetest.Admit(), servetest.Text("x")), 10*time.Millisecond)
	events := openai.NewEventReader(a.stream(t).Body)
	if _, err := events.Next(); err != nil {
		t.Fatal(err)
	}
	a.stop()
	_, err := events.Next()
	var e *openai.Error
	if !errors.As(err, &e) || e.Code != agentapi.CodeReplicaNotReady {
		t.Errorf("end of stream = %v, want an error event", err)
	}
	if err := <-a.ended; err != nil {
		t.Error(err)
	}
}

// TestTheGatewayGetsTheUsage of every answer, regardless of the client's options.
func TestTheGatewayGetsTheUsage(t *testing.T) {
	a := startAgent(t, servetest.Say("Par", "", "is"), time.Second)
	resp := a.stream(t)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := agentapi.Tokens(resp.Trailer); !ok || n.Sum() != 6 {
		t.Errorf("the trailer of a stream says %v", resp.Trailer)
	}
	if strings.Contains(string(b), "usage") {
		t.Errorf("the client receives an unrequested field: %s", b)
	}
	whole, err := a.client.Post(a.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Body.Close()
	if n, ok := agentapi.Tokens(whole.Header); !ok || n.Sum() != 6 {
		t.Errorf("the header of a whole answer says %v", whole.Header)
	}
}
