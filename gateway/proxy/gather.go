package proxy

import (
	"net"
	"runtime"
	"sync"
)

const (
	// flushBytes are sent by whoever wrote the last of them: the heads and bodies of
	// some requests. A Mac so begins with the first of many while others are read.
	flushBytes = 2 << 10
	// gatherBytes may wait to be sent on one connection; who would add more waits.
	gatherBytes = 256 << 10
)

// gathered sends what is written to a connection by a goroutine of its own, so
// that what several requests write at the same time goes out at once. HTTP/2
// writes the head and the body of each apart, and a system call costs more than
// either. It lies below TLS, which so is as it was.
//
// A write says of an earlier one that it failed. Nobody relies on that: an
// answer does, or pings find out.
type gathered struct {
	net.Conn
	ended chan struct{} // the goroutine has

	mu      sync.Mutex // guards what follows
	changed sync.Cond
	pending []byte
	spare   []byte // memory for what comes next
	sending bool   // somebody does
	err     error
	closed  bool
}

func gather(c net.Conn) *gathered {
	g := &gathered{Conn: c, ended: make(chan struct{})}
	g.changed.L = &g.mu
	go g.send()
	return g
}

// Write takes p over.
func (g *gathered) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.pending) >= gatherBytes && g.err == nil && !g.closed {
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
	if len(g.pending) >= flushBytes && !g.sending {
		g.flush()
	}
	return len(p), nil
}

// send sends until the connection is closed or a write failed. Whoever is about
// to write more may do so first.
func (g *gathered) send() {
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

// flush sends what waits, under the lock but while it sends. One does at a time,
// so that all goes out in its order.
func (g *gathered) flush() {
	batch := g.pending
	g.pending, g.spare, g.sending = g.spare, nil, true
	g.mu.Unlock()
	_, err := g.Conn.Write(batch)
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

// Close closes the connection; what was not sent is lost, as it is in a buffer
// of the kernel.
func (g *gathered) Close() error {
	g.mu.Lock()
	g.closed = true
	g.changed.Broadcast()
	g.mu.Unlock()
	err := g.Conn.Close()
	<-g.ended
	return err
}
