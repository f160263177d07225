package serve_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/metal/wire"
)

// TestAnswersOfSeveralChoicesLeaveRoomForBodies: a request of several choices or prompts counts
// for what its message takes, however long its body was, and for nothing once the engine has
// admitted the last of them.
func TestAnswersOfSeveralChoicesLeaveRoomForBodies(t *testing.T) {
	const room = 2 << 20
	padding := strings.Repeat(" ", 400<<10)
	text := strings.Repeat("a", 400<<10)
	for name, c := range map[string]struct{ path, body string }{
		"choices":             {"/v1/chat/completions", `{"model":"m","n":2,"stream":true,"messages":[{"role":"user","content":"` + text + `"}]}`},
		"prompts":             {"/v1/completions", `{"model":"m","stream":true,"prompt":["a","` + text + `"]}`},
		"choices and padding": {"/v1/chat/completions", `{"model":"m","n":100,"stream":true,"messages":[{"role":"user","content":"a"}]` + padding + `}`},
		"prompts and padding": {"/v1/completions", `{"model":"m","stream":true,"prompt":["a"` + strings.Repeat(`,"a"`, 50) + `]` + padding + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
				return servetest.Hang(servetest.Admit(), servetest.Text("x"))(ctx, r, send)
			}, func(c *serve.Config) { c.BodiesBytes = room })
			go func() {
				for range p.seen { //nolint:revive // let the engine go on
				}
			}()
			for i := range 3 {
				resp := p.do("POST", c.path, c.body, agentapi.HeaderClient, fmt.Sprintf("10.0.0.%d", i))
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("request %d of other clients: status %d", i, resp.StatusCode)
				}
				eventually(t, "another long request is served next to answers of several choices", func() bool {
					resp := p.do("POST", "/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"`+text+`"}]}`, agentapi.HeaderClient, "10.9.9.9")
					defer resp.Body.Close()
					return resp.StatusCode == http.StatusOK
				})
			}
		})
	}
}

// TestRequestsCountUntilTheirLastChoiceIsAdmitted by the engine, which is sent all of the message for it.
func TestRequestsCountUntilTheirLastChoiceIsAdmitted(t *testing.T) {
	begin := make(chan struct{})
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		if strings.HasSuffix(r.GetId(), "-2") {
			select {
			case <-begin:
			case <-ctx.Done():
			}
		}
		return servetest.Hang(servetest.Admit(), servetest.Text("x"))(ctx, r, send)
	}, func(c *serve.Config) { c.BodiesBytes = 2 << 20 })
	body := `{"model":"m","n":3,"stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("a", 400<<10) + `"}]}`
	if resp := p.do("POST", "/v1/chat/completions", body, agentapi.HeaderTenant, "a"); resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	for range 3 {
		<-p.seen
	}
	another := func() int {
		resp := p.do("POST", "/v1/chat/completions", strings.Replace(body, `"n":3`, `"n":1`, 1), agentapi.HeaderTenant, "a")
		return resp.StatusCode
	}
	if got := another(); got != http.StatusServiceUnavailable {
		t.Errorf("while the last choice waits: %d", got)
	}
	close(begin)
	eventually(t, "the request counts no more once the engine has all of it", func() bool { return another() == http.StatusOK })
}

// TestRequestsOfSeveralPromptsLeaveRoomForOthers, however many clients have such, which may run for hours.
func TestRequestsOfSeveralPromptsLeaveRoomForOthers(t *testing.T) {
	const size = 100 << 10
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		if strings.HasSuffix(r.GetId(), "-1") {
			<-ctx.Done()
			return ctx.Err()
		}
		return servetest.Hang(servetest.Admit(), servetest.Text("x"))(ctx, r, send)
	}, func(c *serve.Config) { c.BodiesBytes = 1 << 20 })
	go func() {
		for range p.seen { //nolint:revive // let the engine go on
		}
	}()
	text := strings.Repeat("a", size)
	ask := func(client int, path, body string) *http.Response {
		return p.do("POST", path, `{"model":"m","stream":true,`+body+`}`, agentapi.HeaderClient, fmt.Sprint(client))
	}
	served, refused := 0, 0
	for client := range 10 {
		if r := ask(client, "/v1/completions", `"prompt":["a","`+text+`"]`); r.StatusCode == http.StatusOK {
			served++
		} else if text := read(t, r); strings.Contains(text, "several prompts or choices") {
			refused++
		}
	}
	if served < 2 || served+refused != 10 {
		t.Errorf("of 10 clients, requests of %d are served, and those of %d refused", served, refused)
	}
	if r := ask(10, "/v1/chat/completions", `"messages":[{"role":"user","content":"`+text+text+`"}]`); r.StatusCode != http.StatusOK {
		t.Errorf("a long prompt of another client: status %d", r.StatusCode)
	}
}
