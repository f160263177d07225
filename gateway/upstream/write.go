package upstream

import (
	"net"
	"runtime"
	"sync"
	"time"
)

const (
	// combineBytes, the heads and bodies of a few requests, are sent by the goroutine that
	// wrote the last of them, so that a Mac can start on the first of many requests while
	// others are read.
	combineBytes = 2 << 10
	// pendingBytes bounds what may wait to be sent on one connection; further writes block.
	pendingBytes = 256 << 10
	// sendTimeout bounds the sending of what was pending. A Mac that reads less than
	// pendingBytes in this time loses its connection, even if it answers pings: blocked
	// writes also block net/http where it reads or closes the responses of the Mac.
	sendTimeout = 5 * time.Second
)

// combinedConn sends from its own goroutine, so that concurrent writes of several requests
// take one system call. HTTP/2 writes the head and the body of each separately, and a
// system call costs more than either. It is under TLS, which is unchanged.
//
// A write returns the error of an earlier one. No caller relies on it: a request fails by
// its missing response, or by a ping that is not answered.
type combinedConn struct {
	net.Conn
	ended chan struct{} // closed when the goroutine has ended
	late  *time.Timer   // closes Conn after sendTimeout; runs only during flush

	mu      sync.Mutex // guards the fields after it
	changed sync.Cond
	pending []byte
	spare   []byte // memory for the next batch
	sending bool   // a goroutine writes to Conn
	err     error
	closed  bool
}

func combineWrites(c net.Conn) *combinedConn {
	g := newCombined(c)
	go g.send()
	return g
}

func newCombined(c net.Conn) *combinedConn {
	g := &combinedConn{Conn: c, ended: make(chan struct{})}
	g.changed.L = &g.mu
	// Not a deadline: TLS and tunnels set their own on the same connection.
	g.late = time.AfterFunc(sendTimeout, func() { _ = c.Close() })
	g.late.Stop()
	return g
}

// Write implements net.Conn. It keeps a copy of p.
func (g *combinedConn) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.pending) >= pendingBytes && g.err == nil && !g.closed {
		g.changed.Wait()
	}
	switch {
	case g.err != nil:
		return 0, g.err
	case g.closed:
		return 0, net.ErrClosed
	}
	if len(g.pending) == 0 {
		g.changed.Broadcast()
	}
	g.pending = append(g.pending, p...)
	if len(g.pending) >= combineBytes && !g.sending {
		g.flush()
	}
	return len(p), nil
}

// send flushes until the connection is closed or a write failed. It first yields to
// goroutines that are about to write more.
func (g *combinedConn) send() {
	defer close(g.ended)
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		for (len(g.pending) == 0 || g.sending) && g.err == nil && !g.closed {
			g.changed.Wait()
		}
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
		switch {
		case g.err != nil || g.closed:
			return
		case len(g.pending) > 0 && !g.sending:
			g.flush()
		}
	}
}

// flush sends what is pending. The lock is held, except during the system call. One
// goroutine flushes at a time, so that the order is kept.
func (g *combinedConn) flush() {
	batch := g.pending
	g.pending, g.spare, g.sending = g.spare, nil, true
	g.mu.Unlock()
	g.late.Reset(sendTimeout)
	_, err := g.Conn.Write(batch)
	g.late.Stop()
	g.mu.Lock()
	g.sending = false
	if cap(batch) <= streamWindow {
		g.spare = batch[:0]
	}
	if err != nil {
		g.err, g.pending = err, nil
	}
	g.changed.Broadcast()
}

// Close closes the connection. Unsent data is lost, as it would be in a kernel buffer.
func (g *combinedConn) Close() error {
	g.mu.Lock()
	g.closed = true
	g.changed.Broadcast()
	g.mu.Unlock()
	err := g.Conn.Close()
	<-g.ended
	return err
}
