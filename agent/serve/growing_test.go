package serve_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/metal/wire"
)

// TestReadsThatWaitCountWhatAResponseBecame: a response in progress takes some KiB, and a read of it that
// waits for memory shows what it is when it has ended.
func TestReadsThatWaitCountWhatAResponseBecame(t *testing.T) {
	const reads, room = 16, 16 << 20
	end := make(chan struct{})
	a := startAgent(t, scoredUntil(end), time.Second, func(c *serve.Config) { c.AnswersBytes = room })
	ask := func(method, path, body, client string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, a.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(agentapi.HeaderClient, client)
		resp, err := a.client.Do(r)
		if err != nil {
			t.Error(err)
			return &http.Response{Body: http.NoBody}
		}
		return resp
	}
	for range 2 { // half of the memory
		f := ask("POST", dialect.PathResponses, `{"model":"m","input":"fill","stream":true,"store":false,"instructions":"`+strings.Repeat("x", room/9)+`"}`, "a")
		defer func() { _ = f.Body.Close() }()
		if _, err := f.Body.Read(make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
	}
	resp := ask("POST", dialect.PathResponses, `{"model":"m","input":"r","stream":true,"include":["message.output_text.logprobs"],"top_logprobs":20}`, "b")
	defer func() { _ = resp.Body.Close() }()
	id := inProgress(t, resp.Body)
	var shown atomic.Int64
	var all sync.WaitGroup
	for range reads {
		all.Go(func() {
			r := ask("GET", dialect.PathResponses+"/"+id, "", "a")
			t.Cleanup(func() { _ = r.Body.Close() })
			switch r.StatusCode {
			case http.StatusOK:
				shown.Add(1)
			case http.StatusServiceUnavailable:
			default:
				t.Errorf("a read gets %d", r.StatusCode)
			}
		})
	}
	time.Sleep(time.Second)
	if n := shown.Load(); n > 0 {
		t.Fatalf("%d reads found memory before the response ended", n)
	}
	close(end)
	go func() { _, _ = io.Copy(io.Discard, resp.Body) }()
	all.Wait()
	if n := shown.Load(); n > reads/4 {
		t.Errorf("%d of %d reads of a large response got what a small one takes", n, reads)
	}
}

// scoredUntil answers requests for log-probabilities with many, and ends then; others it does not end.
func scoredUntil(end <-chan struct{}) func(context.Context, *wire.GenerateRequest, func(*wire.GenerateEvent) error) error {
	answered := servetest.Text(strings.Repeat("abcd", 100))
	answered.GetDelta().Logprobs = slices.Repeat([]*wire.TokenLogprobs{scored("abcd", -1, slices.Repeat([]string{"abcd"}, 20)...)}, 100)
	return func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		if err := send(servetest.Admit()); err != nil {
			return err
		}
		for range 10 * min(r.GetTopLogprobs(), 1) {
			if err := send(answered); err != nil {
				return err
			}
		}
		if r.GetTopLogprobs() == 0 {
			if err := send(servetest.Text("x")); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}
		<-end
		return send(servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1000))
	}
}

// inProgress reads most of a response that has not ended, and returns its id.
func inProgress(t *testing.T, body io.Reader) string {
	t.Helper()
	head := make([]byte, 1<<10)
	if _, err := io.ReadFull(body, head); err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(head), `"id":"`)
	id, _, _ := strings.Cut(after, `"`)
	rest := make([]byte, 1<<20) // most of what was counted, and less than was sent
	if _, err := io.ReadFull(body, rest); err != nil {
		t.Fatal(err)
	}
	return id
}
