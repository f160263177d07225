//go:build !race

package gateway

import (
	"bufio"
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/scenario/boundtest"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

func TestBoundsNextToOtherProxies(t *testing.T) {
	figures := proxyFigures([]*target{{name: "known", pid: 7}, {name: "unknown"}})
	boundtest.Check(t, figures, nil, map[string]boundtest.Values{
		"added to a request, gateway - nginx":                       {"gateway/p50": {1.21}},
		"requests by the clock on 256 connections, gateway / nginx": {"gateway" + seen(256): {0.34}},
		"processor time of an event, gateway / nginx":               {"gateway/event": {2.1}},
		"memory of a waiting stream, gateway":                       {"gateway/stream": {65}},
		"nginx: requests of a core, 32 connections: not measured":   {"nginx" + core(32): nil},
		"gateway / known":   {"known" + seen(32): {1.1}},
		"gateway / unknown": {"unknown" + seen(256): {1.1}},
	})
	if got := boundtest.Verdict(figures, boundtest.Values{"unknown/stream": nil, "unknown" + core(32): nil}); got != "" {
		t.Errorf("figures of an unknown process are wanted: %s", got)
	}
}

func TestPeersAreParsed(t *testing.T) {
	got, err := parsePeers("a=http://127.0.0.1:1,b-2=http://localhost:2/=77,c=http://localhost:3/openai/")
	if err != nil {
		t.Fatal(err)
	}
	var flat []string
	for _, p := range got {
		line, _, _ := strings.Cut(string(p.request(nil)), " HTTP")
		flat = append(flat, p.name+" "+p.address+" "+line+" "+strings.Repeat("p", p.pid))
	}
	if d := cmp.Diff([]string{"a 127.0.0.1:1 POST /v1/chat/completions ", "b-2 localhost:2 POST /v1/chat/completions " + strings.Repeat("p", 77),
		"c localhost:3 POST /openai/v1/chat/completions "}, flat); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{"a", "a=", "a=127.0.0.1:1", "a=https://h:1", "a=http://h", "a=http://h:1/v1", "a=http://h:1/x/v1/", "=http://h:1", "nginx=http://h:1",
		"gateway=http://h:1", "agent=http://h:1", "a=http://h:1=x", "a=http://h:1=1=2", "a=http://h:1,a=http://h:2"} {
		if _, err := parsePeers(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// scripted is the scripted agent over TLS, without a proxy.
func scripted(t *testing.T) *world {
	t.Helper()
	w := &world{proxyOptions: proxyOptions{short: 20 * time.Millisecond, events: 100 * time.Millisecond, idle: 3, streams: 3}, Env: &scenario.Env{}, agent: &agent{short: shortAnswer()}}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if w.certificates, err = newCertificates(t.TempDir(), macName); err != nil {
		t.Fatal(err)
	}
	at, err := w.listen("127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	if w.direct, err = w.straight(at); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestTheClientMeasuresTheScriptedAgent(t *testing.T) {
	w := scripted(t)
	if d, err := w.latency(t.Context(), w.direct); err != nil || d <= 0 {
		t.Errorf("latency %s, %v", d, err)
	}
	v := scenario.Values{}
	for name, measure := range map[string]func() error{
		"short answers": func() error { return w.shortAnswers(t.Context(), w.direct, 4, v) },
		"events":        func() error { return w.eventStreams(t.Context(), w.direct, v) },
		"idle":          func() error { return w.idleStreams(t.Context(), w.direct, v) },
	} {
		if err := measure(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(v) != 1 || v["seen 4"] <= 0 { // the process of the agent is unknown
		t.Errorf("values %v", v)
	}
}

// A proxy that refuses is fast.
func TestAnUnexpectedAnswerIsNotMeasured(t *testing.T) {
	w := scripted(t)
	dial := func() *conn {
		c, err := w.direct.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	if err := dial().whole(w.direct.request([]byte(`{"user":"other"}`)), len(w.agent.short)); err == nil {
		t.Error("a refusal was measured")
	}
	refusal := &conn{in: bufio.NewReader(strings.NewReader("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nno\n"))}
	if _, err := refusal.head(); err == nil {
		t.Error("a refusal of the right length was measured")
	}
	if err := dial().whole(w.direct.request(question(askShort, 1)), len(w.agent.short)+1); err == nil {
		t.Error("a shorter answer was measured")
	}
	if _, err := dial().events(w.direct.request(question(askEvents, 2)), patience, 3); err == nil {
		t.Error("a shorter stream was measured")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.latency(ctx, w.direct); err == nil {
		t.Error("measured after the end")
	}
}

func TestBoundsOfTheFirstTokenAndOfRouting(t *testing.T) {
	boundtest.Check(t, firstTokenFigures, boundtest.Values{"gateway/p50": {2}}, map[string]boundtest.Values{"added to the first token": {"gateway/p50": {2.1}}})
	boundtest.Check(t, routingFigures(), boundtest.Values{"prefix affinity/hits": {1.2}}, map[string]boundtest.Values{
		"hit rate, ours / least load":          {"least load/hits": {1.1}},
		"first token, p99, ours / round robin": {"round robin/p99": {0.9}},
	})
}

func TestATraceFollowsItsSeed(t *testing.T) {
	s := chats(600)
	s.rate = 3
	a := s.trace(3)
	if !reflect.DeepEqual(a, s.trace(3)) || reflect.DeepEqual(a, s.trace(4)) {
		t.Fatal("traces do not follow the seed")
	}
	if !slices.IsSortedFunc(a, func(x, y turn) int { return int(x.at - y.at) }) || len(a) < s.requests {
		t.Fatalf("%d requests, want %d in the order of their times", len(a), s.requests)
	}
	last, groups := map[int]turn{}, map[int]int{}
	for _, x := range a {
		before, known := last[x.conversation]
		if known && (x.group != before.group || x.number != before.number+1) || !known && x.number != 0 {
			t.Fatalf("%+v after %+v", x, before)
		}
		last[x.conversation] = x
		groups[x.group]++
	}
	if groups[0] < 2*groups[s.groups-1] {
		t.Errorf("the first application is asked %d times, the last %d", groups[0], groups[s.groups-1])
	}
}

func TestNoTwoRunsSendTheSameText(t *testing.T) {
	s := script{words: func(n int) int { return n }, shape: chats(1)}
	messages := func(salt uint64, x turn) []traffic.Message {
		s.salt = salt
		return s.request(x).Messages
	}
	a, b := messages(1, turn{group: 1, conversation: 2}), messages(1, turn{group: 1, conversation: 2, number: 1})
	if len(a) != 2 || len(b) != 4 || !slices.Equal(a, b[:2]) {
		t.Error("the second turn does not continue the first")
	}
	if messages(2, turn{group: 1, conversation: 2})[0] == a[0] || messages(1, turn{group: 1, conversation: 3})[1] == a[1] {
		t.Error("another run or conversation has the same text")
	}
}
