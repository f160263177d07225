//go:build !race

package serve_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

// flood sends events until one is refused or most were sent, and counts them.
func flood(most int, sent *atomic.Int64, event func(i int) *wire.Delta) servetest.Script {
	return func(ctx context.Context, _ *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		if err := send(servetest.Admit()); err != nil {
			return err
		}
		for i := range most {
			if err := send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: event(i)}}); err != nil {
				return err
			}
			sent.Add(1)
		}
		return send(servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1))
	}
}

// TestAnAnswerWithoutEndIsRefused by all that the agent keeps of it: an engine that was taken over sends
// calls and items that no client asked for.
func TestAnAnswerWithoutEndIsRefused(t *testing.T) {
	const most = 20 << 20
	long := strings.Repeat("a", 1<<20)
	call := func(c *wire.CallDelta) func(int) *wire.Delta {
		return func(int) *wire.Delta { return &wire.Delta{Calls: []*wire.CallDelta{c}} }
	}
	chat := `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	for name, tc := range map[string]struct {
		path, body string
		event      func(int) *wire.Delta
		events     int // enough to pass the bound
	}{
		"names":             {path: "/v1/chat/completions", body: chat, event: call(&wire.CallDelta{Name: long, Ended: true}), events: 30},
		"raw texts":         {path: "/v1/chat/completions", body: chat, event: call(&wire.CallDelta{Name: "f", Written: long, Ended: true}), events: 30},
		"short calls":       {path: "/v1/messages", body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, event: call(&wire.CallDelta{Name: "f", Arguments: "{}", Ended: true}), events: 10_000},
		"no calls":          {path: "/v1/completions", body: `{"model":"m","prompt":"hi"}`, event: call(&wire.CallDelta{Name: "f", Ended: true}), events: 10},
		"names in a stream": {path: "/v1/responses", body: `{"model":"m","input":"hi","stream":true}`, event: call(&wire.CallDelta{Name: long, Ended: true}), events: 30},
		"items in a stream": {path: "/v1/responses", body: `{"model":"m","input":"hi","stream":true}`, event: alternates, events: 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			p := newPort(t, flood(tc.events, &sent, tc.event), func(c *serve.Config) { c.AnswersBytes = 4 << 20 })
			before := heap()
			resp := p.do("POST", tc.path, tc.body)
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			streams := strings.Contains(tc.body, "stream")
			if n := sent.Load(); n >= int64(tc.events) || !streams && resp.StatusCode == http.StatusOK {
				t.Errorf("status %d after %d events of %d", resp.StatusCode, n, tc.events)
			}
			if grown := heap() - before; grown > most {
				t.Errorf("the answer keeps %d bytes", grown)
			}
		})
	}
}

// alternates is a byte of reasoning, then one of text.
func alternates(i int) *wire.Delta {
	if i%2 == 0 {
		return &wire.Delta{Reasoning: "a"}
	}
	return &wire.Delta{Text: "a"}
}

// TestLargeEventsOfSlowReadersCount, also the one that waits while another one is written.
func TestLargeEventsOfSlowReadersCount(t *testing.T) {
	const clients, calls = 40, 40_000
	var sent atomic.Int64
	p := newPort(t, flood(2, &sent, func(int) *wire.Delta {
		d := &wire.Delta{}
		for range calls {
			d.Calls = append(d.Calls, &wire.CallDelta{Name: "a"})
		}
		return d
	}))
	refused := make(chan struct{}, clients)
	for range clients {
		go func() {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/chat/completions",
				strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				return // the test is over
			}
			t.Cleanup(func() { resp.Body.Close() }) //nolint:errcheck // it is not read
			if resp.StatusCode == http.StatusServiceUnavailable {
				refused <- struct{}{}
			}
		}()
		<-p.seen
	}
	for n := range clients - 8 {
		select {
		case <-refused:
		case <-time.After(patience.Of(t)):
			t.Fatalf("%d of %d answers were refused, and the others have events that no bound counts", n, clients)
		}
	}
}
