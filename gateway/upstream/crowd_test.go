package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

// mostFlooded ends a flood that nothing stops.
const mostFlooded = 64 << 20

// hostile is a Mac that speaks HTTP/2 as it likes. It accepts connections at two addresses.
type hostile struct {
	pool      *Pool
	addresses [2]string
	open      atomic.Int64
	// stops makes it accept no further request on a connection after the first.
	stops bool
	// answers makes it answer; else each request hangs.
	answers chan struct{}
	config  *tls.Config
	// flood is sent again and again before an answer, up to mostFlooded, once polite requests were
	// answered.
	flood   []byte
	polite  atomic.Int64
	flooded atomic.Int64
}

func newHostile(t *testing.T, stops bool) *hostile {
	ca := agentapitest.NewCA(t)
	pem := ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{pool: New(Options{Table: tableWith("a"), Identity: func() *identity.Identity { return id },
		TakesTunnels: true, Changed: func() {}, Registry: prometheus.NewRegistry()}), stops: stops, answers: make(chan struct{}),
		config: agentapi.ServerTLS(ca.Mac("a").Pair(t), ca.Roots())}
	var served sync.WaitGroup
	for i := range h.addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		h.addresses[i] = l.Addr().String()
		served.Go(func() {
			for {
				raw, err := l.Accept()
				if err != nil {
					return
				}
				served.Go(func() {
					h.open.Add(1)
					defer h.open.Add(-1)
					c := tls.Server(raw, h.config)
					h.serve(c)
					_ = c.Close()
				})
			}
		})
	}
	t.Cleanup(func() {
		h.pool.drop("a")
		h.pool.Close()
	})
	return h
}

// Frames of HTTP/2.
const (
	typeHeaders, typeSettings, typePing = 1, 4, 6
	flagAck, flagEndHeaders, flagEnd    = 1, 4, 1
)

func frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	head := []byte{0, 0, byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), payload...)
}

func (h *hostile) serve(c net.Conn) {
	in := bufio.NewReader(c)
	if _, err := in.Discard(24); err != nil { // the client's preface
		return
	}
	var mu sync.Mutex
	send := func(f []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		_, err := c.Write(f)
		return err == nil
	}
	send(frame(typeSettings, 0, 0))
	for {
		head := make([]byte, 9)
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(in, payload); err != nil {
			return
		}
		switch kind, flags := head[3], head[4]; {
		case kind == typeSettings && flags&flagAck == 0:
			go send(frame(typeSettings, flagAck, 0)) // it reads also while it floods
		case kind == typePing && flags&flagAck == 0:
			go send(frame(typePing, flagAck, 0, payload...))
		case kind == typeHeaders:
			stream := binary.BigEndian.Uint32(head[5:])
			go func() {
				<-h.answers
				if h.flood != nil && h.polite.Add(-1) < 0 {
					for h.flooded.Load() < mostFlooded && send(h.flood) {
						h.flooded.Add(int64(len(h.flood)))
					}
				}
				if h.stops { // SETTINGS_MAX_CONCURRENT_STREAMS is 0
					send(frame(typeSettings, 0, 0, 0, 3, 0, 0, 0, 0))
				}
				send(frame(typeHeaders, flagEndHeaders|flagEnd, stream, 0x88)) // :status 200
			}()
		}
	}
}

// ask sends a request to one of the addresses.
func (h *hostile) ask(t *testing.T, address string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: address, Path: "/"}}
	resp, err := h.pool.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: address}).RoundTrip(r.WithContext(ctx))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// openTunnel opens a tunnel of the Mac.
func (h *hostile) openTunnel(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = h.pool.Tunnels().Serve(ctx, l) })
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = raw.Close(); all.Wait() })
	if err := agentapi.SayTunnel(raw, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := agentapi.HearGateway(raw); err != nil {
		t.Fatal(err)
	}
	all.Go(func() { h.serve(tls.Server(agentapi.Tunnel(raw), h.config)) })
	for end := time.Now().Add(patience.Of(t)); h.pool.Tunnels().Len() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the tunnel did not open")
		}
	}
}

// TestAttackAMacThatAcceptsOneRequestOnEachConnection: each connection stays open, and takes
// memory and pings at the gateway.
func TestAttackAMacThatAcceptsOneRequestOnEachConnection(t *testing.T) {
	h := newHostile(t, true)
	close(h.answers)
	var last error
	for range maxOpen + 1 {
		if last = h.ask(t, h.addresses[0]); last != nil {
			break
		}
		time.Sleep(10 * time.Millisecond) // its settings arrive
	}
	if !NotReached(last) {
		t.Errorf("the last request ended with %v, want the failure of the Mac", last)
	}
	if n := h.open.Load(); n > maxOpen {
		t.Errorf("%d connections are open, want at most %d", n, maxOpen)
	}
}

// TestConnectionsToAnEarlierAddressEndWithTheirRequests: a Mac may flip its address.
func TestConnectionsToAnEarlierAddressEndWithTheirRequests(t *testing.T) {
	h := newHostile(t, false)
	const requests = maxOpen
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			if err := h.ask(t, h.addresses[i%2]); err != nil {
				t.Error(err)
			}
		})
		for h.open.Load() <= int64(i) {
			time.Sleep(time.Millisecond)
		}
	}
	close(h.answers)
	all.Wait()
	for deadline := time.Now().Add(5 * time.Second); h.open.Load() > 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open after all requests ended, want 1", h.open.Load())
		}
	}
}

// TestRequestsThatComeAtOnceAllFindAConnection, although there is room for fewer than they are.
func TestRequestsThatComeAtOnceAllFindAConnection(t *testing.T) {
	h := newHostile(t, false)
	close(h.answers)
	var all sync.WaitGroup
	for range 10 * maxOpen {
		all.Go(func() {
			if err := h.ask(t, h.addresses[0]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// tableWith returns a table that knows a Mac.
func tableWith(mac string) *route.Table {
	table := route.NewTable()
	table.SetMac(route.Mac{Name: mac, UID: agentapitest.UID(mac), Open: true})
	return table
}
