package upstream

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

// informed returns a context whose informational responses are counted.
func informed(ctx context.Context, n *int) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
		*n++
		return nil
	}})
}

// TestReportsOfAMacAreNoExcess: an agent of an earlier version repeats in each what the client chose.
func TestReportsOfAMacAreNoExcess(t *testing.T) {
	const reports, chosen = 3000, 1200
	ca := agentapitest.NewCA(t)
	pem := ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(agentapi.HeaderIgnored, strings.Repeat("|", chosen))
		for i := range reports {
			w.Header().Set(agentapi.HeaderTokens, strconv.Itoa(i)+"+0")
			w.WriteHeader(http.StatusProcessing)
		}
	}))
	s.TLS, s.EnableHTTP2 = agentapi.ServerTLS(ca.Mac("a").Pair(t), ca.Roots()), true
	s.Config.HTTP2 = &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}
	s.StartTLS()
	defer s.Close()
	p := New(Options{Table: tableWith("a"), Identity: func() *identity.Identity { return id }, Log: logr.Discard(),
		Lost: func(_ string, cause error) { t.Error(cause) }})
	defer p.Close()
	got := 0
	r, err := http.NewRequestWithContext(informed(t.Context(), &got), http.MethodPost, s.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := p.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: s.Listener.Addr().String()}).RoundTrip(r)
	if err != nil {
		t.Fatalf("after %d reports: %v", got, err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || got != reports {
		t.Errorf("%d reports: %v", got, err)
	}
	_ = resp.Body.Close()
	e := p.excess("a")
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bytes > excessBurst/2 {
		t.Errorf("%.0f bytes are counted", e.bytes)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestReportsExcuseNoFlood: a long header may take few bytes.
func TestReportsExcuseNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, got := &excess{lost: func(error) {}}, 0
		long := textproto.MIMEHeader{"X": {strings.Repeat("x", 16<<10)}}
		m := measured{roundTripper(func(r *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(r.Context())
			if trace == nil || trace.Got1xxResponse == nil { // then net/http bounds their bytes
				return &http.Response{Body: http.NoBody}, nil
			}
			if err := e.received(excessBurst); err != nil {
				t.Error(err)
			}
			for range 8 {
				if err := trace.Got1xxResponse(http.StatusProcessing, long); err != nil {
					t.Error(err)
				}
			}
			return nil, io.ErrUnexpectedEOF
		}), e}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		if _, err := m.RoundTrip(r); err != nil { //nolint:bodyclose // it is empty
			t.Errorf("reports that are not awaited are read: %v", err)
		}
		if _, err := m.RoundTrip(r.WithContext(informed(t.Context(), &got))); err == nil || got != 8 { //nolint:bodyclose // there is none
			t.Errorf("%d reports, %v", got, err)
		}
		if e.bytes < excessBurst-32<<10 {
			t.Errorf("%d reports took off %.0f bytes", got, excessBurst-e.bytes)
		}
	})
}

// TestNoHeaderOfAMacRefersToOneBefore: that takes one byte, and net/http's work for the header all the same.
func TestNoHeaderOfAMacRefersToOneBefore(t *testing.T) {
	for _, reach := range []v1alpha1.MacReach{v1alpha1.ReachDirect, v1alpha1.ReachTunnel} {
		t.Run(string(reach), func(t *testing.T) {
			h := newHostile(t, false)
			close(h.answers)
			stream, status := uint32(1), []byte("\x08\x03102") // a literal
			if reach == v1alpha1.ReachTunnel {
				stream = 3 // after the request that proves the tunnel
			}
			enters := frame(typeHeaders, flagEndHeaders, stream, append(status, "\x40\x07trailer\x03a,b"...)...)
			refers := frame(typeHeaders, flagEndHeaders, stream, append(status, 0xbe)...) // to the first in the table
			h.flood = append(enters, bytes.Repeat(refers, 1000)...)
			if reach == v1alpha1.ReachTunnel {
				h.polite.Store(1)
				h.openTunnel(t)
			}
			got := 0
			ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
			defer cancel()
			r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: h.addresses[0], Path: "/"}}
			to := h.pool.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: h.addresses[0], Reach: reach})
			resp, err := to.RoundTrip(r.WithContext(informed(ctx, &got)))
			if err == nil {
				_ = resp.Body.Close()
			}
			if err == nil || ctx.Err() != nil || got > 1 {
				t.Errorf("%d reports, %v", got, err)
			}
		})
	}
}

// TestAMacIsReachedSoonAfterItsRequestsEnd: what they could have sent counts as excess at once.
func TestAMacIsReachedSoonAfterItsRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests, room = 512, streamWindow
		e := &excess{lost: func(error) {}}
		for range requests {
			e.begin(room)
		}
		if err := e.received(requests * room); err != nil {
			t.Error(err)
		}
		for range requests {
			e.end(room, 0)
		}
		if err := e.received(0); err == nil {
			t.Error("nothing is over the bound")
		}
		time.Sleep(10 * time.Second)
		if err := e.received(0); err != nil {
			t.Errorf("after 10 s: %v, %.0f bytes", err, e.bytes)
		}
	})
}
