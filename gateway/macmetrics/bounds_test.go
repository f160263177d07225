package macmetrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/gateway/route"
)

// TestLinesOfManyLabelsAreRefused: the time of the parser grows with the square of the labels of
// a line.
func TestLinesOfManyLabelsAreRefused(t *testing.T) {
	labels := func(format string, n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, ",")
	}
	for name, c := range map[string]struct {
		page     string
		answered int
	}{
		"as many as allowed": {page: "metalfleet_agent_x{" + labels(`l%d="v"`, maxLabels) + "} 1\n", answered: 1},
		"one more":           {page: "metalfleet_agent_x{" + labels(`l%d="v"`, maxLabels+1) + "} 1\n"},
		"with blanks":        {page: "metalfleet_agent_x{" + labels("l%d = \t\"v\"", maxLabels+1) + "} 1\n"},
		"quoted":             {page: `{"metalfleet_agent_x",` + labels(`"l%d"="v"`, maxLabels+1) + "} 1\n"},
		"hundreds":           {page: strings.Repeat("metalfleet_agent_x{"+labels(`l%d=""`, 400)+"} 1\n", 8)},
		"of another program": {page: "other{" + labels(`l%d="v"`, maxLabels+1) + "} 1\n"},
		"in a description":   {page: "# HELP metalfleet_agent_x " + labels(`l%d="v"`, 50) + "\nmetalfleet_agent_x 1\n", answered: 1},
	} {
		got := scrape(t, map[string]agent{"mac": says(200, c.page)})
		if want := fmt.Sprintf(`metalfleet_gateway_mac_scraped{mac="mac"} %d`, c.answered); !got[want] {
			t.Errorf("%s: no line %s in %v", name, want, got)
		}
	}
}

// TestScrapesShareTheBoundOfMacsAskedAtOnce: answers that outlive their scrape count in the
// next one, and those that end make room.
func TestScrapesShareTheBoundOfMacsAskedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		stuck := make(chan struct{})
		h := &Handler{
			Macs: func() (all []route.Mac) {
				for i := range 4 * parallel {
					all = append(all, route.Mac{Name: fmt.Sprintf("%03d", i), Address: "mac:8443"})
				}
				return all
			},
			To: func(route.Mac) http.RoundTripper {
				return agent(func(*http.Request) (*http.Response, error) {
					running.Add(1)
					defer running.Add(-1)
					<-stuck
					return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
				})
			},
		}
		for range 3 {
			scrapeOf(t, h)
			if running.Load() != parallel {
				t.Errorf("%d Macs are asked after a scrape, want %d", running.Load(), parallel)
			}
		}
		close(stuck)
		synctest.Wait()
		for line := range scrapeOf(t, h) {
			if !strings.HasSuffix(line, " 1") {
				t.Errorf("after the Macs answered: %s", line)
			}
		}
	})
}

// last is a page that is read to its end just when its time is over.
type last struct {
	io.Reader
	over func()
}

func (l last) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if err != nil {
		l.over()
	}
	return n, err
}

func TestParsingEndsWithTheScrape(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	to := agent(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(last{strings.NewReader("metalfleet_agent_x 1\n"), cancel})}, nil
	})
	if metrics, err := ask(ctx, to, route.Mac{Name: "mac", Address: "mac:8443"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v; want %v", metrics, err, context.Canceled)
	}
}
