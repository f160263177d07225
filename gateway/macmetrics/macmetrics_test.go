package macmetrics

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/route"
)

// agent is the transport to a Mac that answers with a text.
type agent func(*http.Request) (*http.Response, error)

func (a agent) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func says(status int, text string) agent {
	return func(r *http.Request) (*http.Response, error) {
		if r.URL.Path != agentapi.PathMetrics || r.URL.Host == "" {
			return nil, fmt.Errorf("asked for %s", r.URL)
		}
		return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text))}, nil
	}
}

// scrape returns the lines of an answer, without comments.
func scrape(t *testing.T, agents map[string]agent) map[string]bool {
	t.Helper()
	return scrapeOf(t, handlerOf(agents))
}

func handlerOf(agents map[string]agent) *Handler {
	return &Handler{To: func(m route.Mac) http.RoundTripper { return agents[m.Name] }, Macs: func() (all []route.Mac) {
		for name := range agents {
			all = append(all, route.Mac{Name: name, Address: name + ":8443"})
		}
		return all
	}}
}

func scrapeOf(t *testing.T, h *Handler) map[string]bool {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/macs", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			lines[strings.TrimSpace(line)] = true
		}
	}
	return lines
}

func TestMetricsOfMacsAreJoined(t *testing.T) {
	got := scrape(t, map[string]agent{
		"a": says(200, "# TYPE metalfleet_agent_memory_bytes gauge\nmetalfleet_agent_memory_bytes{term=\"used\"} 5\ngo_goroutines 3\n"),
		"b": says(200, "# TYPE metalfleet_agent_memory_bytes gauge\nmetalfleet_agent_memory_bytes{term=\"used\"} 7\n# TYPE metalfleet_agent_reclaims_total counter\nmetalfleet_agent_reclaims_total 2\n"),
		"c": func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") },
	})
	want := []string{`metalfleet_agent_memory_bytes{term="used",mac="a"} 5`, `metalfleet_agent_memory_bytes{term="used",mac="b"} 7`, `metalfleet_agent_reclaims_total{mac="b"} 2`,
		`metalfleet_gateway_mac_scraped{mac="a"} 1`, `metalfleet_gateway_mac_scraped{mac="b"} 1`, `metalfleet_gateway_mac_scraped{mac="c"} 0`}
	for _, line := range want {
		if !got[line] {
			t.Errorf("no line %s in %v", line, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d lines, want %d: %v", len(got), len(want), got)
	}
}

// TestAttackAMacInventsSeries: a Mac speaks for itself alone, about an agent alone, and in bounds.
func TestAttackAMacInventsSeries(t *testing.T) {
	repeat := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		says agent
		want string // of mac_scraped
	}{
		"another Mac's":           {says: says(200, "metalfleet_agent_x{mac=\"good\"} 1\n"), want: "1"},
		"an operator's":           {says: says(200, "metalfleet_operator_replicas{state=\"ready\"} 99\n"), want: "1"},
		"another type":            {says: says(200, "# TYPE metalfleet_agent_x histogram\nmetalfleet_agent_x_bucket{le=\"+Inf\"} 1\nmetalfleet_agent_x_sum 1\nmetalfleet_agent_x_count 1\n"), want: "1"},
		"too many":                {says: says(200, repeat("metalfleet_agent_x{n=\"%d\"} 1\n", maxSeries+1)), want: "0"},
		"many of another program": {says: says(200, repeat("other{n=\"%d\"} 1\n", maxSeries+1)), want: "0"},
		"names without series":    {says: says(200, repeat("# TYPE other_%d gauge\n", maxLines+1)), want: "0"},
		"one of many labels":      {says: says(200, "metalfleet_agent_x{"+repeat("l%d=\"\",", maxLine/6)+"} 1\n"), want: "0"},
		"more bytes than a Mac's": {says: says(200, strings.Repeat("# a comment\n", maxBytes/10)+"metalfleet_agent_x 1\n"), want: "0"},
		"a page":                  {says: says(200, "<html>"), want: "0"},
		"an error":                {says: says(500, "metalfleet_agent_x 1\n"), want: "0"},
	} {
		got := scrape(t, map[string]agent{"evil": c.says, "good": says(200, "# TYPE metalfleet_agent_x gauge\nmetalfleet_agent_x 5\n")})
		if !got[`metalfleet_agent_x{mac="good"} 5`] || !got[`metalfleet_gateway_mac_scraped{mac="evil"} `+c.want] {
			t.Errorf("%s: %v", name, got)
		}
		for line := range got {
			if strings.Contains(line, "operator") || strings.Contains(line, `mac="good"`) && !strings.HasSuffix(line, " 5") && !strings.HasSuffix(line, " 1") {
				t.Errorf("%s: a Mac added %s", name, line)
			}
		}
		if len(got) > 4 {
			t.Errorf("%s: %d lines", name, len(got))
		}
	}
}

// endless is an answer that neither ends nor lets itself be closed.
type endless struct{ ended chan struct{} }

func (e endless) Read([]byte) (int, error) {
	<-e.ended
	return 0, io.ErrUnexpectedEOF
}

func (e endless) Close() error { <-e.ended; return nil }

// TestAttackAMacThatNeverEndsItsAnswer: the metrics of other Macs are served, each time, and
// the Mac is not asked again and again.
func TestAttackAMacThatNeverEndsItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		body := endless{make(chan struct{})}
		defer close(body.ended)
		agents := map[string]agent{"good": says(200, "metalfleet_agent_x 5\n"), "evil": func(*http.Request) (*http.Response, error) {
			asked.Add(1)
			return &http.Response{StatusCode: 200, Body: body}, nil
		}}
		h := handlerOf(agents)
		for range 3 {
			got := scrapeOf(t, h)
			if !got[`metalfleet_agent_x{mac="good"} 5`] || !got[`metalfleet_gateway_mac_scraped{mac="evil"} 0`] {
				t.Error(got)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("the Mac was asked %d times", asked.Load())
		}
	})
}

// TestMacsThatHangAreAskedAfterTheOthers: who stole an enrolment token joins as many Macs as it
// allows, and all of them hang.
func TestMacsThatHangAreAskedAfterTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hanging, well = 100, 20
		h := &Handler{
			Macs: func() (all []route.Mac) {
				for i := range hanging + well {
					all = append(all, route.Mac{Name: fmt.Sprintf("%03d", i), Address: "mac:8443"})
				}
				return all
			},
			To: func(m route.Mac) http.RoundTripper {
				if m.Name >= fmt.Sprintf("%03d", hanging) {
					return says(200, "")
				}
				return agent(func(r *http.Request) (*http.Response, error) {
					<-r.Context().Done()
					return nil, r.Context().Err()
				})
			},
		}
		var answered []int
		for range 10 {
			n := 0
			for line := range scrapeOf(t, h) {
				if strings.HasSuffix(line, " 1") {
					n++
				}
			}
			answered = append(answered, n)
			time.Sleep(time.Minute)
		}
		if answered[8] != well || answered[9] != well {
			t.Errorf("%v of %d Macs that are well were scraped, want all in the end", answered, well)
		}
	})
}

// TestAttackAnAnswerOverWhichTheParserPanics: it fails, and no other one does.
func TestAttackAnAnswerOverWhichTheParserPanics(t *testing.T) {
	got := scrape(t, map[string]agent{"good": says(200, "metalfleet_agent_x 5\n"), "evil": func(*http.Request) (*http.Response, error) { panic("a defect") }})
	if !got[`metalfleet_agent_x{mac="good"} 5`] || !got[`metalfleet_gateway_mac_scraped{mac="evil"} 0`] {
		t.Error(got)
	}
}

// TestAttackOtherSeriesInEachAnswer: Prometheus keeps each series for hours.
func TestAttackOtherSeriesInEachAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := 0
		h := handlerOf(map[string]agent{"good": says(200, "metalfleet_agent_x 5\n"), "evil": func(r *http.Request) (*http.Response, error) {
			answers++
			var b strings.Builder
			b.WriteString("metalfleet_agent_same 1\n")
			for i := range maxSeries - 1 {
				fmt.Fprintf(&b, "metalfleet_agent_x{n=\"%d-%d\"} 1\n", answers, i)
			}
			return says(200, b.String())(r)
		}})
		all := map[string]bool{}
		for range 120 { // an hour
			got := scrapeOf(t, h)
			if !got[`metalfleet_agent_x{mac="good"} 5`] || !got[`metalfleet_agent_same{mac="evil"} 1`] || !got[`metalfleet_gateway_mac_scraped{mac="evil"} 1`] {
				t.Fatal("a series that is in each answer is missing")
			}
			for line := range got {
				all[line] = true
			}
			time.Sleep(30 * time.Second)
		}
		if most := maxFresh + freshPerHour + 10; len(all) > most {
			t.Errorf("%d series in an hour, want at most %d", len(all), most)
		}
	})
}
