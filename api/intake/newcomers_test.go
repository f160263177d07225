package intake

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// visit enters a connection of one address.
func visit(t *testing.T, l *Listener) (*Conn, context.Context) {
	c := newConn(nil, l)
	if _, why := l.enter(c, "proxy"); why != "" && why != replaced {
		t.Fatalf("a connection is %q, want %q", why, replaced)
	}
	return c, Context(t.Context(), c)
}

// idle enters a connection whose request has ended.
func idle(t *testing.T, l *Listener, known bool) *Conn {
	c, ctx := visit(t, l)
	if known {
		Know(ctx)
	}
	Arrived(ctx)
	c.ended()
	return c
}

// TestANewConnectionOutlivesIdleOnesOfItsAddress: at the limit of an address that many clients share, others that come
// and idle are closed before one whose request is on its way. Of new ones that send nothing, some are.
func TestANewConnectionOutlivesIdleOnesOfItsAddress(t *testing.T) {
	keyed := &Listener{Total: 4096, PerAddress: 2048, Bodies: &Bodies{Keyed: true}}
	open := &Listener{Total: 4096, PerAddress: 2048, Bodies: &Bodies{}}
	for _, tc := range []struct {
		what         string
		in           *Listener
		known        bool          // the idle ones have a key
		after        time.Duration // for which these idle
		idle, silent int           // more connections
		closed       bool
	}{
		{what: "idle ones without a key", in: keyed, idle: 9000},
		{what: "idle ones", in: open, idle: 9000},
		{what: "a few at a health port", in: Port(nil).(*Listener), idle: 900},
		{what: "few silent ones next to idle ones with a key", in: keyed, known: true, silent: 256},
		{what: "silent ones next to idle ones with a key", in: keyed, known: true, after: strangerTime, silent: 257, closed: true},
		{what: "silent ones next to idle ones without a key", in: keyed, silent: 2047},
		{what: "silent ones next to idle ones", in: open, after: strangerTime, silent: 2047},
		{what: "few silent ones next to those that idle for less", in: open, silent: 256},
		{what: "silent ones next to those that idle for less", in: open, silent: 257, closed: true},
	} {
		t.Run(tc.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &Listener{Total: tc.in.Total, PerAddress: tc.in.PerAddress, Bodies: tc.in.Bodies}
				for range l.PerAddress {
					idle(t, l, tc.known)
				}
				time.Sleep(tc.after)
				mine, _ := visit(t, l)
				for range tc.idle {
					idle(t, l, false)
				}
				for range tc.silent {
					_, _ = visit(t, l)
				}
				if mine.gone != tc.closed {
					t.Errorf("a new connection is closed: %t, want %t", mine.gone, tc.closed)
				}
				time.Sleep(strangerTime)
				if _, _ = visit(t, l); tc.silent < 2047 && !mine.gone {
					t.Errorf("a new connection that is silent for %s stays", strangerTime)
				}
			})
		})
	}
}

// TestAnUploadOnAUsedConnectionDoesNotIdle: at the limit of its address it is closed after those that wait for a request,
// where clients need a key, and otherwise after those that have waited since before it.
func TestAnUploadOnAUsedConnectionDoesNotIdle(t *testing.T) {
	for _, tc := range []struct {
		what         string
		keyed, known bool // known ones had a key before
	}{{"with a key", true, true}, {"with its first key", true, false}, {"where clients need none", false, false}} {
		t.Run(tc.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &Listener{PerAddress: 64, Bodies: &Bodies{Keyed: tc.keyed}}
				mine := idle(t, l, tc.known)
				for range l.PerAddress - 1 {
					idle(t, l, tc.keyed)
				}
				time.Sleep(strangerTime)
				r := httptest.NewRequestWithContext(Context(t.Context(), mine), http.MethodPost, "/", strings.NewReader("{}"))
				Guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if tc.keyed {
						Know(r.Context())
						time.Sleep(strangerTime)
					}
					for range l.PerAddress / 2 {
						idle(t, l, tc.keyed)
					}
					if mine.gone {
						t.Error("an upload is closed, and idle connections stay")
					}
				})).ServeHTTP(httptest.NewRecorder(), r)
			})
		})
	}
}
