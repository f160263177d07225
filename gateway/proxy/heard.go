package proxy

import (
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// errSilent says why a Mac is left alone of which no request failed.
var errSilent = errors.New("the Mac does not answer pings")

// heard knows when something last came in on a connection. A living Mac answers
// a ping after each pingAfter of silence, whether or not a request runs, so one
// that is closed after pingAfter and pingTimeout without a byte was given up:
// the library closes it then and tells only requests that run there.
type heard struct {
	net.Conn
	lost func()

	at     atomic.Pointer[time.Time]
	closed atomic.Bool
}

func (h *heard) note() {
	now := time.Now()
	h.at.Store(&now)
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if n > 0 {
		h.note()
	}
	return n, err
}

func (h *heard) Close() error {
	if h.closed.CompareAndSwap(false, true) && time.Since(*h.at.Load()) >= pingAfter+pingTimeout {
		h.lost()
	}
	return h.Conn.Close()
}
