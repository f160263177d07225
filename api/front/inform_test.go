package front_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/front"
)

// informing returns a client, and the address of a server whose responses begin with that many
// informational ones.
func informing(t *testing.T, version, reports int) (*http.Client, string) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(plain http.ResponseWriter, r *http.Request) {
		w := front.NewWriter(plain, r.ProtoMajor, time.Minute)
		w.Informs = true
		w.Header().Set("Ignored", strings.Repeat("|", 1000))
		for range reports {
			w.Inform("Tokens", "1+0")
		}
		w.Header().Set("Later", "yes")
		_, _ = w.Write([]byte("ok"))
	}))
	s.EnableHTTP2 = version == 2
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Client(), s.URL
}

// get returns the response of a server. Each informational one is passed to report.
func get(ctx context.Context, c *http.Client, url string, report func(textproto.MIMEHeader)) (*http.Response, error) {
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		report(h)
		return nil
	}}), http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	return c.Do(r)
}

// TestAReportHasNoOtherHeader: clients choose some of those of the response.
func TestAReportHasNoOtherHeader(t *testing.T) {
	for _, version := range []int{1, 2} {
		c, url := informing(t, version, 2)
		var reports []textproto.MIMEHeader
		resp, err := get(t.Context(), c, url, func(h textproto.MIMEHeader) { reports = append(reports, h) })
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "ok" || resp.ProtoMajor != version {
			t.Errorf("%s: %q, %v", resp.Proto, body, err)
		}
		one := textproto.MIMEHeader{"Tokens": {"1+0"}}
		if d := cmp.Diff([]textproto.MIMEHeader{one, one}, reports); d != "" {
			t.Errorf("%s: reports (-want +got):\n%s", resp.Proto, d)
		}
		if h := resp.Header; h.Get("Tokens") != "" || len(h.Get("Ignored")) != 1000 || h.Get("Later") != "yes" || resp.ContentLength != 2 {
			t.Errorf("%s: headers %v", resp.Proto, h)
		}
	}
}

// TestAReportToAClientThatLeaves: net/http may still be writing it when Inform returns.
func TestAReportToAClientThatLeaves(t *testing.T) {
	c, url := informing(t, 2, 5)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				ctx, leave := context.WithCancel(t.Context())
				if resp, err := get(ctx, c, url, func(textproto.MIMEHeader) { leave() }); err == nil {
					_ = resp.Body.Close()
				}
				leave()
			}
		})
	}
	all.Wait()
}
