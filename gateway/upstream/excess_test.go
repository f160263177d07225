//go:build !race

package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
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

// TestAMacThatFloodsLosesItsConnections: net/http answers each frame, or walks all streams.
func TestAMacThatFloodsLosesItsConnections(t *testing.T) {
	var windows []byte
	for i := range 2700 {
		windows = append(windows, 0, 4, 0, 1, 0, byte(i%2))
	}
	long := frame(typeSettings, 0, 0, windows...)
	long[1] = byte(len(windows) >> 8)
	const typeWindow = 8
	for name, one := range map[string][]byte{
		"settings": frame(typeSettings, 0, 0), "pings": frame(typePing, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8), "many windows in settings": long,
		"windows of no stream": frame(typeWindow, 0, 1001, 0, 0, 0, 1),
	} {
		for _, reach := range []v1alpha1.MacReach{v1alpha1.ReachDirect, v1alpha1.ReachTunnel} {
			t.Run(name+" "+string(reach), func(t *testing.T) {
				h := newHostile(t, false)
				close(h.answers)
				h.flood = bytes.Repeat(one, max(1, 16000/len(one)))
				lost := make(chan error, 1)
				h.pool.lost = func(_ string, cause error) {
					select {
					case lost <- cause:
					default: // it is over the bound again
					}
				}
				if reach == v1alpha1.ReachTunnel {
					h.polite.Store(1) // the request that proves the tunnel
					h.openTunnel(t)
				}
				if err := h.askBy(t, reach); err == nil || NotReached(err) {
					t.Errorf("the running request ended with %v", err)
				}
				if n := h.flooded.Load(); n > excessBurst+8<<20 { // what lies in the buffers of sockets
					t.Errorf("%d bytes were sent", n)
				}
				select {
				case err := <-lost:
					if !errors.Is(err, errExcess) {
						t.Errorf("the Mac was lost with %v", err)
					}
				case <-time.After(patience.Of(t)):
					t.Error("the Mac was not lost")
				}
				_ = h.pool.excess("a").received(mostFlooded) // for longer than the next request takes
				if err := h.askBy(t, reach); !NotReached(err) {
					t.Errorf("the next request ended with %v", err)
				}
			})
		}
	}
}

// askBy sends a request directly or by the tunnel.
func (h *hostile) askBy(t *testing.T, reach v1alpha1.MacReach) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: h.addresses[0], Path: "/"}}
	resp, err := h.pool.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: h.addresses[0], Reach: reach}).RoundTrip(r.WithContext(ctx))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// TestExcessIsBoundedByItsRate: it falls as time passes, and as responses are read.
func TestExcessIsBoundedByItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := 0
		e := &excess{lost: func(error) { lost++ }}
		over := func(n int, want bool) {
			t.Helper()
			if err := e.received(n); (err != nil) != want {
				t.Errorf("%d more: %v, now %.0f", n, err, e.bytes)
			}
		}
		over(excessBurst, false)
		over(1, true)
		over(excessPerSecond, true)
		time.Sleep(2 * time.Second)
		over(excessPerSecond/2, false)
		for range 3600 { // the answers to pings
			time.Sleep(pingAfter)
			over(40, false)
		}
		time.Sleep(time.Minute)
		e.begin(streamWindow) // a client that reads nothing yet
		over(excessBurst+streamWindow, false)
		over(1, true)
		e.read(streamWindow + 2)
		e.end(streamWindow, 0)
		over(0, false)
		time.Sleep(time.Minute)
		e.end(0, streamWindow) // a client that went away
		over(excessBurst+streamWindow, false)
		over(1, true)
		time.Sleep(time.Minute)
		for range 1024 {
			e.end(0, streamWindow)
		}
		over(excessBurst+maxAbandoned, false)
		over(1, true)
		if lost != 4 {
			t.Errorf("the Mac was lost %d times, want 4", lost)
		}
	})
}

// TestASilentMacWhoseClientsLeaveSavesUpNothing for frames that nothing asked for.
func TestASilentMacWhoseClientsLeaveSavesUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &excess{lost: func(error) {}}
		for range 1000 {
			leave(t, e)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * abandonedTime)
		if e.received(excessBurst) != nil || e.received(1) == nil {
			t.Errorf("the count is %.0f bytes", e.bytes)
		}
	})
}

// leave sends a request whose client leaves after a while, before its response has begun.
func leave(t *testing.T, e *excess) {
	t.Helper()
	ctx, left := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer left()
	m := measured{roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}), e}
	r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/", bytes.NewReader(make([]byte, 1<<20)))
	if _, err := m.RoundTrip(r); err == nil { //nolint:bodyclose // there is none
		t.Error("there is a response")
	}
}

// TestAMacWhoseClientsLeaveKeepsItsConnection: what it sent before it learned of that is no excess,
// also while other responses are read.
func TestAMacWhoseClientsLeaveKeepsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &excess{lost: func(err error) { t.Error(err) }}
		const upload = (1 << 20) / uploadShare
		receive := func(n int) {
			if err := e.received(n); err != nil {
				t.Error(err)
			}
		}
		for range 100 {
			for range 8 {
				go leave(t, e)
			}
			time.Sleep(20 * time.Millisecond)
			e.begin(streamWindow) // a client that stays
			receive(streamWindow)
			e.read(streamWindow)
			e.end(streamWindow, 0)
			for range 8 {
				receive(streamWindow + agentapi.MaxAnswerHeaderBytes + upload)
			}
		}
		time.Sleep(2 * abandonedTime)
		if e.add(0); e.bytes > 0 || e.room != 0 {
			t.Errorf("%.0f bytes are counted, and there is room for %.0f", e.bytes, e.room)
		}
	})
}

// TestABusyMacKeepsItsConnection: no honest one comes near the bound.
func TestABusyMacKeepsItsConnection(t *testing.T) {
	ca := agentapitest.NewCA(t)
	pem := ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(busy))
	s.TLS, s.EnableHTTP2 = agentapi.ServerTLS(ca.Mac("a").Pair(t), ca.Roots()), true
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // connections that are not used
	s.StartTLS()
	defer s.Close()
	p := New(Options{Table: tableWith("a"), Identity: func() *identity.Identity { return id }, Log: logr.Discard(),
		Lost: func(_ string, cause error) { t.Error(cause) }})
	defer p.Close()
	to := p.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: s.Listener.Addr().String()})
	e := p.excess("a")
	many := func(path string, upload []byte, clients, each int, read func(io.Reader) error) {
		t.Helper()
		e.mu.Lock()
		e.bytes = 0
		e.mu.Unlock()
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				for range each {
					r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, bytes.NewReader(upload))
					if err != nil {
						t.Error(err)
						return
					}
					resp, err := to.RoundTrip(r)
					if err != nil {
						t.Errorf("%s: %v", path, err)
						return
					}
					if err := read(resp.Body); err != nil {
						t.Errorf("%s: %v", path, err)
					}
					_ = resp.Body.Close()
				}
			})
		}
		all.Wait()
		if e.room != 0 {
			t.Errorf("after %s there is room for %.0f bytes", path, e.room)
		}
	}
	whole := func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
	late := func(r io.Reader) error { time.Sleep(200 * time.Millisecond); return whole(r) }
	first := func(r io.Reader) error { _, err := r.Read(make([]byte, 100)); return err }
	many("/small", nil, 8, 100, whole)
	many("/events", nil, 32, 1, whole)                             // 6,400 a second
	many("/events", nil, 32, 1, late)                              // several are read at once
	many("/large", nil, 32, 1, late)                               // 4 MiB lie in windows
	many("/large", nil, 16, 16, first)                             // clients go away
	many("/upload", make([]byte, 16<<20), 1, 2, whole)             // the Mac opens its windows in small steps
	many("/upload", make([]byte, 64<<10), 8, 8, whole)             // and for short bodies
	many("/small", bytes.Repeat([]byte("x"), 5000), 8, 100, whole) // that are not read
}

// busy answers as agents do.
func busy(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w).Flush
	switch r.URL.Path {
	case "/events":
		w.Header().Set("Trailer", "Metalfleet-Tokens")
		for range 200 {
			_, _ = io.WriteString(w, ": keep-alive\n\n")
			_ = flush()
			time.Sleep(5 * time.Millisecond)
		}
		w.Header().Set("Metalfleet-Tokens", "200")
	case "/large":
		for range 64 {
			if _, err := w.Write(make([]byte, 16<<10)); err != nil {
				return
			}
		}
	case "/upload":
		part := make([]byte, 1<<10)
		for {
			if _, err := r.Body.Read(part); err != nil {
				break
			}
		}
	}
}
