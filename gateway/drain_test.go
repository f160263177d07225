package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
)

// lastWords is a server whose responses end when hold is closed.
type lastWords struct {
	*servers
	url    string
	client *http.Client
	dials  int
	stop   context.CancelFunc
	ended  chan error
}

func startLastWords(t *testing.T, drain time.Duration, hold <-chan struct{}) *lastWords {
	t.Helper()
	requests := new(drainHandler)
	return startServers(t, drain, requests, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer requests.begin()()
		_, _ = io.WriteString(w, "begun ")
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/long" {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "ended")
	}))
}

func startServers(t *testing.T, drain time.Duration, requests *drainHandler, answer http.Handler) *lastWords {
	t.Helper()
	var listeners [3]net.Listener
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	l := &lastWords{url: "http://" + listeners[0].Addr().String(), stop: stop, ended: make(chan error, 1)}
	l.servers = newServers(Options{Front: listeners[0], Health: listeners[1], Metrics: listeners[2], Drain: drain, Log: testr.New(t)}, answer, http.NotFoundHandler(), http.NotFoundHandler(), requests, func() bool { return true })
	// A single kept-alive connection, as in a client's pool.
	l.client = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		l.dials++
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}}
	t.Cleanup(l.client.CloseIdleConnections)
	go func() { l.ended <- l.run(ctx, make(chan error, 2)) }()
	t.Cleanup(stop)
	return l
}

// read reads a response to its end and reports whether it closes the connection.
func read(t *testing.T, r *http.Response) bool {
	t.Helper()
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || string(b) != "begun ended" {
		t.Errorf("the answer is %q, %v", b, err)
	}
	return r.Close
}

func (l *lastWords) get(t *testing.T, path string) *http.Response {
	t.Helper()
	r, err := l.client.Get(l.url + path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The response that was running when the shutdown began has no "Connection: close", so the
// client sends its next request on that connection.
func TestAKeptConnectionLosesNoRequestWhenTheGatewayEnds(t *testing.T) {
	hold := make(chan struct{})
	l := startLastWords(t, time.Minute, hold)
	running := l.get(t, "/long")
	l.stop()
	for !l.requests.ending.Load() {
		time.Sleep(time.Millisecond)
	}
	close(hold)
	if read(t, running) {
		t.Error("a response that began before the drain closes its connection")
	}
	if last := l.get(t, "/"); !read(t, last) {
		t.Error("a response of a draining gateway does not close its connection")
	}
	if l.dials != 1 {
		t.Errorf("the client opened %d connections for two requests, want one", l.dials)
	}
	if err := <-l.ended; err != nil {
		t.Error(err)
	}
}

// TestRequestsOfStrangersDoNotKeepAGatewayFromEnding: those without a key, and those of probes.
func TestRequestsOfStrangersDoNotKeepAGatewayFromEnding(t *testing.T) {
	store, requests := keys.NewStore(keys.Options{Registry: prometheus.NewRegistry()}), new(drainHandler)
	store.MarkSynced()
	handler := proxy.New(proxy.Config{Keys: store, Table: route.NewTable(), Identity: func() *identity.Identity { return nil },
		Registry: prometheus.NewRegistry(), Log: testr.New(t), Draining: requests.ending.Load, Begin: requests.begin})
	defer handler.Close()
	l := startServers(t, 5*quietPeriod, requests, handler)
	began := time.Now()
	l.stop()
	for {
		for _, path := range []string{"/", "/v1/models"} {
			if r, err := l.client.Get(l.url + path); err == nil { // else it has ended
				_ = r.Body.Close()
			}
		}
		select {
		case err := <-l.ended:
			if took := time.Since(began); err != nil || took >= 5*quietPeriod {
				t.Errorf("the gateway ends with %v after %s, want it soon after %s", err, took, quietPeriod)
			}
			return
		case <-time.After(quietPeriod / 20):
		}
	}
}

// Background responses run without a client request.
func TestDrainWaitsForResponsesInTheBackground(t *testing.T) {
	l := startLastWords(t, time.Minute, make(chan struct{}))
	finish := make(chan struct{})
	l.servers.background = func(ctx context.Context) {
		select {
		case <-finish:
		case <-ctx.Done():
			t.Error("the time of the drain was over before the drain")
		}
	}
	l.stop()
	select {
	case err := <-l.ended:
		t.Fatalf("the gateway ended although a response runs: %v", err)
	case <-time.After(2 * quietPeriod):
	}
	close(finish)
	if err := <-l.ended; err != nil {
		t.Error(err)
	}
}

func TestQuietWaitsForRunningRequestsAndForALullAfterThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &drainHandler{}
		l.running.Store(1)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := l.waitIdle(ctx, 10*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a request that runs: %v", err)
		}
		l.running.Store(0)
		if err := l.waitIdle(t.Context(), 10*time.Millisecond); err != nil {
			t.Errorf("with none: %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		var short sync.WaitGroup
		short.Go(func() {
			for ctx.Err() == nil {
				l.begun.Add(1)
				time.Sleep(3 * time.Millisecond) // fake time
			}
		})
		if err := l.waitIdle(ctx, 20*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with short requests all the time: %v", err)
		}
		short.Wait()
	})
}
