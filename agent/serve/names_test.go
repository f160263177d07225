package serve_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/openai"
)

// TestAttackNamesThatResultsRepeat: the engine's request has the name of a call once for each
// of its results, which are 32,000 at most. It would be gigabytes for a name of megabytes.
func TestAttackNamesThatResultsRepeat(t *testing.T) {
	p := newPort(t, servetest.Say("x"), func(c *serve.Config) { c.BodiesBytes = 8 << 20 })
	go func() {
		for range p.seen {
		}
	}()
	ask := func(name string, results int) (status int, answer string) {
		body := `{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"` + name + `","arguments":"{}"}}]}` +
			strings.Repeat(`,{"role":"tool","tool_call_id":"c","content":""}`, results) + `]}`
		resp, err := http.Post(p.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, read(t, resp)
	}
	for _, c := range []struct {
		name, results, status int
	}{
		{name: openai.MaxCallName, results: 100, status: http.StatusOK},
		{name: openai.MaxCallName, results: 20_000, status: http.StatusServiceUnavailable},
		{name: openai.MaxCallName + 1, results: 1, status: http.StatusBadRequest},
	} {
		if status, answer := ask(strings.Repeat("f", c.name), c.results); status != c.status {
			t.Errorf("%d results of a name of %d bytes: %d %.200s, want %d", c.results, c.name, status, answer, c.status)
		}
	}
}

// TestAttackAConversationOfManyItems: a request of a hundred bytes continues a stored
// conversation, whose items take ten times their texts as turns of a prompt.
func TestAttackAConversationOfManyItems(t *testing.T) {
	p := newPort(t, servetest.Say("x"), func(c *serve.Config) { c.BodiesBytes = 32 << 20 })
	go func() {
		for range p.seen {
		}
	}()
	post := func(path, body string) (status int, answer string) {
		resp, err := http.Post(p.url+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, read(t, resp)
	}
	calls := func(previous string, n int) (status int, answer string) {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `{"type":"function_call","call_id":"%d","name":"f","arguments":"{}"},`, i)
		}
		return post("/v1/responses", `{"model":"m",`+previous+`"input":[`+b.String()+`{"role":"user","content":"hi"}]}`)
	}
	status, answer := calls("", 8_000)
	var first struct{ ID string }
	if err := json.Unmarshal([]byte(answer), &first); err != nil || status != http.StatusOK {
		t.Fatalf("%d %.200s", status, answer)
	}
	previous := `"previous_response_id":"` + first.ID + `",`
	if status, answer := calls(previous, 1); status != http.StatusOK {
		t.Errorf("8,000 calls, which need 8 MiB: %d %.200s", status, answer)
	}
	if status, answer := calls(previous, 9_000); status != http.StatusBadRequest || !strings.Contains(answer, "Begin a new one") {
		t.Errorf("17,000 calls, which need more than half of the memory: %d %.200s", status, answer)
	}
}

// TestTextsOfAResponseThatGrow: an input of the Responses API is kept as items and as the turns of a prompt,
// whose JSON has six bytes for some characters of three.
func TestTextsOfAResponseThatGrow(t *testing.T) {
	p := newPort(t, servetest.Say("x"), func(c *serve.Config) { c.BodiesBytes = 8 << 20 })
	go func() {
		for range p.seen {
		}
	}()
	for _, c := range []struct {
		sign   string
		status int
	}{{"abc", http.StatusOK}, {"\u2028", http.StatusServiceUnavailable}} {
		body := `{"model":"m","input":[{"type":"custom_tool_call","call_id":"c","name":"f","input":"` + strings.Repeat(c.sign, 500_000) + `"},{"role":"user","content":"hi"}]}`
		resp, err := http.Post(p.url+"/v1/responses", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if answer := read(t, resp); resp.StatusCode != c.status {
			t.Errorf("%q: %d %.200s, want %d", c.sign, resp.StatusCode, answer, c.status)
		}
	}
}
