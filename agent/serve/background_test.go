package serve_test

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/responses"
)

const backgroundBody = `{"model":"m","input":"hi","background":true}`

// inBackground begins a response and returns its stream and its id.
func (p *port) inBackground() (*http.Response, string) {
	p.t.Helper()
	resp := p.do("POST", dialect.PathResponses, backgroundBody, agentapi.HeaderBackground, "true")
	first := make([]byte, 4096)
	n, err := resp.Body.Read(first)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp, regexp.MustCompile(`resp_[0-9A-Za-z_-]+`).FindString(string(first[:n]))
}

// A gateway reads a response in the background as a stream, also where its client
// asked for none.
func TestBackgroundResponseIsStreamedToTheGateway(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	got := read(t, p.do("POST", dialect.PathResponses, backgroundBody, agentapi.HeaderBackground, "true"))
	id := regexp.MustCompile(`resp_[0-9A-Za-z_-]+`).FindString(got)
	if !strings.HasPrefix(got, "event: response.created\n") || !strings.Contains(got, `"status":"queued"`) || !strings.Contains(got, "event: response.completed\n") || id == "" {
		t.Fatal(got)
	}
	var r responses.Response
	if err := json.Unmarshal([]byte(p.kept("GET", id, 200)), &r); err != nil || !r.Background || r.Status != responses.StatusCompleted || r.Output[0].Text() != "x" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestBackgroundResponseThatCannotBeRetrievedIsRefused(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	for name, c := range map[string]struct{ body, says string }{
		"without a gateway": {body: backgroundBody, says: "to a gateway"},
		"not stored":        {body: strings.Replace(backgroundBody, "true", `true,"store":false`, 1), says: "when `store` is true"},
	} {
		headers := []string{agentapi.HeaderBackground, "true"}
		if name == "without a gateway" {
			headers = nil
		}
		resp := p.do("POST", dialect.PathResponses, c.body, headers...)
		if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, `"param":"background"`) || !strings.Contains(got, c.says) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, got)
		}
	}
}

// The clients of other responses are gone with their connections; that of a
// response in the background polls for its end.
func TestBackgroundResponseWhoseGatewayIsLostHasFailed(t *testing.T) {
	p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("a")))
	resp, id := p.inBackground()
	status := func() (r responses.Response) {
		if err := json.Unmarshal([]byte(p.kept("GET", id, 200)), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := status(); r.Status != responses.StatusInProgress {
		t.Errorf("it is %s while it runs", r.Status)
	}
	resp.Body.Close()
	eventually(t, "the response has failed", func() bool { return status().Status == responses.StatusFailed })
	if r := status(); r.Error == nil || r.Error.Code != "server_error" || r.Output == nil {
		t.Errorf("%+v", r)
	}
}

func TestBackgroundResponseIsCancelledByID(t *testing.T) {
	p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("a")))
	resp, id := p.inBackground()
	if got := p.kept("POST", id+"/cancel", 200); !strings.Contains(got, `"status":"cancelled"`) {
		t.Error(got)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("the stream to the gateway broke off: %v", err)
	}
	if got := p.kept("GET", id, 200); !strings.Contains(got, `"status":"cancelled"`) {
		t.Error(got)
	}
}
