package main

import (
	"bufio"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// said is a round in which everything costs as given.
func said(added, core, event, stream float64) figures {
	return figures{added: added, requests: map[int]rate{32: {seen: core / 4, core: core}, 256: {seen: core / 4, core: core}}, event: event, stream: stream}
}

func TestABoundThatIsMissedFails(t *testing.T) {
	nginx := []figures{said(0.1, 30000, 10, 50), said(0.1, 30000, 10, 50), said(0.1, 30000, 10, 50)}
	met := said(0.25, 11000, 19, 63)
	for name, c := range map[string]struct {
		ours []figures
		says string
	}{
		"all met":              {[]figures{met, met, met}, ""},
		"one bad round":        {[]figures{met, said(3, 1, 900, 900), met}, ""},
		"slow":                 {[]figures{met, said(0.31, 11000, 19, 63), said(0.31, 11000, 19, 63)}, "added to a request"},
		"few requests":         {[]figures{met, said(0.25, 10000, 19, 63), said(0.25, 10000, 19, 63)}, "on 256 connections"},
		"dear events":          {[]figures{met, said(0.25, 11000, 21, 63), said(0.25, 11000, 21, 63)}, "processor time of an event"},
		"large streams":        {[]figures{met, said(0.25, 11000, 19, 65), said(0.25, 11000, 19, 65)}, "memory of a stream"},
		"a round that is lost": {[]figures{met, met}, "not measured"},
	} {
		err := newReport(map[string][]figures{nameOurs: c.ours, nameNginx: nginx}).Judge()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestAPeerThatIsAheadFails(t *testing.T) {
	ours := []figures{said(0.1, 30000, 10, 50)}
	for peer, ahead := range map[float64]bool{29000: false, 31000: true} {
		err := newReport(map[string][]figures{nameOurs: ours, nameNginx: ours, "peer": {said(0.1, peer, 10, 50)}}).Judge()
		if (err != nil) != ahead || err != nil && !strings.Contains(err.Error(), "gateway / peer") {
			t.Errorf("a peer with %.0f requests beside our 30000: %v", peer, err)
		}
	}
}

func TestRoundsArePaired(t *testing.T) {
	if d := differences([]float64{1, 2}, []float64{1}); d != nil {
		t.Errorf("a round that is missing made %v", d)
	}
	if d := cmp.Diff([]float64{0.5, -1}, differences([]float64{1, 2}, []float64{0.5, 3})); d != "" {
		t.Error(d)
	}
}

func TestAPeerWithoutAProcessHasWhatClientsSee(t *testing.T) {
	unknown := said(0.5, 0, 0, 0)
	table := newReport(map[string][]figures{nameOurs: {said(0.1, 9, 9, 9)}, nameNginx: {said(0.1, 9, 9, 9)}, "peer": {unknown}, "known": {said(1, 9, 9, 9)}}).Table()
	for want, is := range map[string]bool{"| peer: added": true, "| peer: requests by the clock, 32": true, "| peer: requests of a core": false,
		"| peer: memory": false, "| known: requests of a core, 256": true, "| known: memory": true} {
		if strings.Contains(table, want) != is {
			t.Errorf("the table has %q: %v, want %v\n%s", want, !is, is, table)
		}
	}
}

func TestPeersAreNamedWithTheirAddress(t *testing.T) {
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
	for _, bad := range []string{"a", "a=", "a=127.0.0.1:1", "a=https://h:1", "a=http://h", "a=http://h:1/v1", "a=http://h:1/x/v1/", "a=http://h:1/?q", "=http://h:1", "nginx=http://h:1",
		"gateway=http://h:1", "a=http://h:1=x", "a=http://h:1=0", "a=http://h:1,a=http://h:2"} {
		if _, err := parsePeers(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestFiguresOfAProcess(t *testing.T) {
	if n, err := ticksIn("7 (a) name) S 1 7 7 0 -1 4194560 100 0 0 0 31 11 0 0 20 0 1 0 5 1 1"); err != nil || n != 42 {
		t.Errorf("ticks %d, %v", n, err)
	}
	if n, err := pssIn("5-6 ---p 0 00:00 0 [rollup]\nRss:  900 kB\nPss:  12 kB\nPss_Anon: 3 kB\n"); err != nil || n != 12<<10 {
		t.Errorf("memory %d, %v", n, err)
	}
	_, err := ticksIn("7 (a) S 1")
	_, e := pssIn("Rss: 1 kB\n")
	if !errors.Is(err, errNoFigure) || !errors.Is(e, errNoFigure) {
		t.Errorf("no figures: %v, %v", err, e)
	}
	cores, err := coresIn("0-2,5")
	if d := cmp.Diff([]string{"0", "1", "2", "5"}, cores); d != "" || err != nil {
		t.Error(d, err)
	}
	if _, err := coresIn("0-x"); err == nil {
		t.Error("a list of cores that is none is taken")
	}
}

// script is the scripted agent over TLS, asked without a proxy.
func script(t *testing.T) *world {
	t.Helper()
	w := &world{options: options{short: 20 * time.Millisecond, events: 100 * time.Millisecond, idle: 3, streams: 3}, agent: &agent{short: answer()}}
	t.Cleanup(func() {
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if w.certificate, err = newCertificates(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	at, err := w.listen("127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	client := agentapi.ClientTLS(w.certificate.client, w.certificate.roots, macName)
	client.NextProtos = nil
	w.direct = &target{name: "agent", address: at.String(), tls: client}
	return w
}

func TestTheClientReadsWhatTheScriptSays(t *testing.T) {
	w := script(t)
	if d, err := w.latency(t.Context(), w.direct); err != nil || d <= 0 {
		t.Errorf("latency %s, %v", d, err)
	}
	if r, err := w.shortAnswers(t.Context(), w.direct, 4); err != nil || r.seen <= 0 || r.core != 0 {
		t.Errorf("short answers %+v, %v", r, err)
	}
	if _, err := w.eventStreams(t.Context(), w.direct); err != nil {
		t.Error(err)
	}
	if _, err := w.idleStreams(t.Context(), w.direct); err != nil {
		t.Error(err)
	}
}

// TestAnotherAnswerIsNotMeasured: a proxy that refuses is fast.
func TestAnotherAnswerIsNotMeasured(t *testing.T) {
	w := script(t)
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
