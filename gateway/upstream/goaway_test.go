package upstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

// poolOf returns a pool with a Mac that serves each connection with a function, and its address.
func poolOf(t *testing.T, serve func(net.Conn)) (p *Pool, address string) {
	t.Helper()
	ca := agentapitest.NewCA(t)
	pem := ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := agentapi.ServerTLS(ca.Mac("a").Pair(t), ca.Roots())
	var served sync.WaitGroup
	served.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				c := tls.Server(raw, config)
				defer func() { _ = c.Close() }()
				serve(c)
			})
		}
	})
	p = New(Options{Table: tableWith("a"), Identity: func() *identity.Identity { return id }})
	t.Cleanup(func() {
		p.drop("a")
		p.Close()
		_ = l.Close()
		served.Wait()
	})
	return p, l.Addr().String()
}

// TestAttackAMacThatEndsEachConnection: a request opens few connections to it, and then another
// Mac is tried.
func TestAttackAMacThatEndsEachConnection(t *testing.T) {
	var opened atomic.Int64
	p, address := poolOf(t, func(c net.Conn) {
		opened.Add(1)
		const settings, goAway = "\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
		if _, err := io.WriteString(c, settings+goAway); err == nil {
			_, _ = io.Copy(io.Discard, c)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: address, Path: "/"}}
	_, err := p.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: address}).RoundTrip(r.WithContext(ctx))
	if !NotReached(err) {
		t.Errorf("the request ended with %v", err)
	}
	if n := opened.Load(); n != maxDials {
		t.Errorf("it opened %d connections, want %d", n, maxDials)
	}
}

// TestALongReasonOfAMacIsShortened: it would be in the log lines of all requests that it ends.
func TestALongReasonOfAMacIsShortened(t *testing.T) {
	for name, begins := range map[string]bool{"before the response": false, "within it": true} {
		t.Run(name, func(t *testing.T) {
			p, address := poolOf(t, func(c net.Conn) {
				in := bufio.NewReader(c)
				if _, err := in.Discard(24); err != nil { // the client's preface
					return
				}
				all := frame(typeSettings, 0, 0)
				for {
					head := make([]byte, 9)
					if _, err := io.ReadFull(in, head); err != nil {
						return
					}
					if _, err := in.Discard(int(head[1])<<8 | int(head[2])); err != nil {
						return
					}
					if head[3] == typeHeaders {
						break
					}
				}
				if begins {
					all = append(all, frame(typeHeaders, flagEndHeaders, 1, 0x88)...) // :status 200
				}
				const typeGoAway, long = 7, 16000
				reason := frame(typeGoAway, 0, 0, append([]byte{0, 0, 0, 1, 0, 0, 0, 0}, bytes.Repeat([]byte{1}, long)...)...)
				reason[1] = byte((long + 8) >> 8)
				_, _ = c.Write(append(all, reason...))
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
			defer cancel()
			r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: address, Path: "/"}}
			resp, err := p.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: address}).RoundTrip(r.WithContext(ctx))
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			if err == nil || len(err.Error()) > 1000 || !strings.Contains(err.Error(), "GOAWAY") {
				t.Errorf("the request ended with %.1000v", err)
			}
		})
	}
}

// TestAnErrorIsKnownByMoreThanItsText: it may be shortened.
func TestAnErrorIsKnownByMoreThanItsText(t *testing.T) {
	if err := shortened(fmt.Errorf("%w: %s", errNotReached, strings.Repeat("x", 2*maxText))); !NotReached(err) || len(err.Error()) > 2*maxText {
		t.Errorf("%v is not %v", err, errNotReached)
	}
}
