//go:build stories

package system

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	// keyed is the gateway of the shared fleet that asks for API keys.
	keyed         = "keyed"
	keysNamespace = "metalfleet-api-keys"
	failoverModel = "failover"
)

// TestFailover has two answers stream through a gateway from two Macs, to the
// official Python client, which never retries, with requests that wait for them;
// and one Mac dies. Its stream ends with a typed error; the other one and every
// request that had not begun are answered whole. Before that, the client has to
// understand what the gateway answers to API keys that are wrong, too narrow or too
// slow.
func TestFailover(t *testing.T) {
	w := together(t, fleet.Mac{Name: "failover-1", Chip: "M2Ultra", Memory: "192Gi"}, fleet.Mac{Name: "failover-2", Chip: "M4Max", Memory: "64Gi"})
	takeTurn(t)
	w.label(t, "failover-2", "failover-1") // both take replicas of the model
	md := w.deploy(t, fleet.Model{Name: failoverModel, File: "slow.gguf", MaxTokens: slowContext, MaxConcurrentRequests: 1, KVCacheTokens: 2 * slowContext, Mac: "failover-1"}, replicas(2))
	w.waitReady(t, md, 2)
	if r := w.replicas(t, md, 2); r[0].Spec.NodeName == r[1].Spec.NodeName {
		t.Fatalf("both replicas are on %s", r[0].Spec.NodeName)
	}
	f := &failover{world: w, tokens: map[string]string{}}
	var err error
	f.gateway, err = w.AddGateway(t.Context(), keyed)
	must(t, err)
	f.makeKeys(t)
	sequence(t, step{name: "API keys", do: f.refusals}, step{name: "a Mac dies", do: f.macDies})
}

type failover struct {
	*world
	gateway *fleet.Gateway
	tokens  map[string]string // API keys by name
}

// makeKeys makes three, as an administrator would, and waits until the gateway
// knows the last of them.
func (f *failover) makeKeys(t *testing.T) {
	t.Helper()
	for _, key := range []struct {
		name  string
		grant keys.Grant
	}{
		{name: "narrow", grant: keys.Grant{Models: []string{"another"}}},
		{name: "slow", grant: keys.Grant{Models: []string{"*"}, RequestsPerMinute: 1}},
		{name: "good", grant: keys.Grant{Models: []string{"default/" + failoverModel}, Expires: time.Now().Add(time.Hour), RequestsPerMinute: 1000, TokensPerMinute: 1_000_000}},
	} {
		secret, token, err := keys.NewSecret(keysNamespace, key.name, key.grant)
		must(t, err)
		must(t, f.Client.Create(t.Context(), secret))
		f.tokens[key.name] = token
	}
	eventually(t, "the gateway knows the keys", func(ctx context.Context) error { return fleet.KnowsKey(ctx, f.gateway.URL, f.tokens["good"]) })
}

// python is a command line of a script with the official client.
func (f *failover) python(t *testing.T, script string, args ...string) *exec.Cmd {
	t.Helper()
	interpreter := absolute(t, ".cache", "client", "bin", "python")
	if _, err := os.Stat(interpreter); err != nil {
		t.Fatalf("the official client is not installed, run test/client.sh: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), interpreter, append([]string{filepath.Join("testdata", script), f.gateway.URL, failoverModel}, args...)...)
	cmd.Env = append(os.Environ(), "METALFLEET_API_KEY="+f.tokens["good"], "GOOD_KEY="+f.tokens["good"], "NARROW_KEY="+f.tokens["narrow"], "SLOW_KEY="+f.tokens["slow"])
	cmd.Stderr = os.Stderr
	return cmd
}

// refusals wants the official client to see each case as it would at OpenAI.
func (f *failover) refusals(t *testing.T) {
	out, err := f.python(t, "refusals.py").Output()
	must(t, err)
	var got map[string]string
	must(t, json.Unmarshal(out, &got))
	for name, want := range map[string]string{
		"good":              "answered",
		"wrong":             "AuthenticationError 401 invalid_api_key",
		"foreign":           "AuthenticationError 401 invalid_api_key",
		"narrow":            "NotFoundError 404 model_not_found",
		"narrow, one model": "NotFoundError 404 model_not_found",
		"narrow, models":    "0",
		"good, models":      "1",
		"slow":              "answered",
		"slow, again":       "RateLimitError 429 rate_limit_exceeded of 1, again later",
	} {
		if got[name] != want {
			t.Errorf("key case %q: the client saw %q, want %q", name, got[name], want)
		}
	}
}

// outcome is that of one request, as streams.py prints it.
type outcome struct {
	Event, Name, Kind, Mac, Finish, Error, Code, Message, Text string

	Macs           []string
	Pieces, Tokens int
	Typed          bool
}

// next reads a line of streams.py.
func next(t *testing.T, lines *bufio.Scanner, event string) (o outcome) {
	t.Helper()
	if !lines.Scan() {
		t.Fatalf("the client ended: %v; its errors are above", lines.Err())
	}
	if err := json.Unmarshal(lines.Bytes(), &o); err != nil || o.Event != event {
		t.Fatalf("the client printed %s, want the event %s (%v)", lines.Bytes(), event, err)
	}
	return o
}

func (f *failover) macDies(t *testing.T) {
	cmd := f.python(t, "streams.py", "2000")
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }() // it has printed all, or never will
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	macs := next(t, lines, "waiting").Macs
	if len(macs) != 2 || macs[0] == macs[1] {
		t.Fatalf("the streams come from %v; the gateway should spread them", macs)
	}
	must(t, f.gateway.WaitInFlight(t.Context(), 6)) // two streams, and four that wait
	engines, err := f.Agent(macs[0]).Engines()
	if err != nil || len(engines) != 1 {
		t.Fatalf("engines %v run on Mac %s, want 1: %v", engines, macs[0], err)
	}
	must(t, f.Agent(macs[0]).Kill()) // first, so that nothing starts the engine again
	must(t, engines[0].Kill())
	_, err = io.WriteString(stdin, "killed\n")
	must(t, err)
	var all []outcome
	for range 10 {
		all = append(all, next(t, lines, "result"))
	}
	judgeFailover(t, all, macs[0])
	if n, err := f.gateway.Metric(t.Context(), "metalfleet_gateway_retries_total"); err != nil || n < 1 {
		t.Errorf("the gateway retried %v times (%v): no request waited at the dead Mac", n, err)
	}
}

// judgeFailover judges the outcome of every request. The dead Mac had one of the
// two streams.
func judgeFailover(t *testing.T, all []outcome, dead string) {
	t.Helper()
	count, whole := map[string]int{}, ""
	for _, o := range all {
		switch {
		case o.Kind == "running" && o.Mac == dead:
			count["broken"]++
			if !o.Typed || o.Error != "APIError" || o.Code != agentapi.CodeEngineLost {
				t.Errorf("%s: the stream of the dead Mac ended with %s %s (%s), want APIError %s", o.Name, o.Error, o.Code, o.Message, agentapi.CodeEngineLost)
			}
			if o.Finish != "" || o.Pieces == 0 {
				t.Errorf("%s: %d pieces and the finish reason %q: it should have been broken off", o.Name, o.Pieces, o.Finish)
			}
		case o.Error != "" || o.Finish == "" || o.Tokens == 0 || o.Text == "":
			t.Errorf("%s was lost: %s %s; finish reason %q, %d tokens", o.Name, o.Error, o.Message, o.Finish, o.Tokens)
		case o.Mac == dead:
			t.Errorf("%s was answered by %s, which is dead", o.Name, o.Mac)
		default:
			count[o.Kind]++
			if o.Kind == "running" {
				whole = o.Text
			}
		}
	}
	if want := map[string]int{"broken": 1, "running": 1, "waiting": 4, "after": 4}; fmt.Sprint(count) != fmt.Sprint(want) {
		t.Errorf("outcomes %v, want %v", count, want)
	}
	for _, o := range all { // all ask the same, greedily: each Mac gives the same text
		if !strings.HasPrefix(whole, o.Text) {
			t.Errorf("%s: the text differs from that of the whole stream", o.Name)
		}
	}
}
