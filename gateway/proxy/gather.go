package proxy

import (
	"net"
	"runtime"
	"sync"
)

// gatherBytes may wait to be sent on one connection; who would add more waits.
const gatherBytes = 256 << 10

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
	return len(p), nil
}

// send sends until the connection is closed or a write failed.
func (g *gathered) send() {
	defer close(g.ended)
	var spare []byte
	for {
		batch := g.take(spare)
		if batch == nil {
			return
		}
		if _, err := g.Conn.Write(batch); err != nil {
			g.fail(err)
			return
		}
		if spare = batch[:0]; cap(spare) > streamWindow {
			spare = nil
		}
	}
}

// take waits for something to send; nil is the end. Whoever is about to write
// more may do so first.
func (g *gathered) take(spare []byte) []byte {
	g.mu.Lock()
	for len(g.pending) == 0 && !g.closed {
		g.changed.Wait()
	}
	g.mu.Unlock()
	runtime.Gosched()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	batch := g.pending
	g.pending = spare
	g.changed.Broadcast()
	return batch
}

func (g *gathered) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err, g.pending = err, nil
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
