package intake

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// Listener accepts a bounded number of connections, in total and per address.
type Listener struct {
	net.Listener
	// Total and PerAddress are the limits; 0 means none.
	Total, PerAddress int
	// HeadLines is the maximum number of header lines of a request; 0 is no limit. One with
	// more is refused with 431. It is for connections without TLS.
	HeadLines int
	// Silent closes refused connections without a response, which clients of TLS could not
	// read.
	Silent bool

	mu        sync.Mutex // guards the fields after it, and the lists of all connections
	count     int
	addresses map[string]*address
	ended     map[reason]int64
}

// reason why a connection was closed or refused; it is a metric label too.
type reason string

const (
	replaced  reason = "replaced" // another one took its place before a request was complete
	noTotal   reason = "total"    // refused: all others are in use
	noAddress reason = "address"  // refused: all others of its address are in use
)

// refusals are the responses to refused clients; a replaced connection is just closed.
var refusals = map[reason]struct {
	status  int
	message string
}{
	replaced:  {},
	noTotal:   {http.StatusServiceUnavailable, "The gateway has no room for another connection."},
	noAddress: {http.StatusTooManyRequests, "All connections that this address may have are in use."},
}

// address holds the connections of one address. Those that serve a request are in neither
// list. The others wait for a request, oldest first.
type address struct {
	name  string
	count int
	// fresh connections have not completed a request yet, used ones have.
	fresh, used list.List
}

// waiting returns the connection to sacrifice first; nil if all serve requests.
func (a *address) waiting() *Conn {
	for _, l := range []*list.List{&a.fresh, &a.used} {
		if first := l.Front(); first != nil {
			return first.Value.(*Conn)
		}
	}
	return nil
}

// Conn is an accepted connection.
type Conn struct {
	net.Conn
	listener *Listener
	heads    heads
	once     sync.Once

	// Guarded by the listener's mu.
	address *address
	in      *list.List // nil while it serves a request or is closed
	at      *list.Element
	gone    bool
}

// Accept returns the next connection for which there is room. A connection beyond the
// limits replaces one that waits for its client, or is refused with 429 or 503.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := &Conn{Conn: c, listener: l, heads: heads{max: l.HeadLines}}
		old, why := l.enter(conn, AddressOf(c.RemoteAddr().String()))
		if old != nil {
			_ = old.Close() // its client is gone or will notice
		}
		if why == "" || why == replaced {
			return conn, nil
		}
		if l.Silent {
			_ = c.Close()
		} else {
			refuse(c, why)
		}
	}
}

// Count returns the number of connections.
func (l *Listener) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// enter makes room for a connection. It returns the connection to close for it, or why
// there is none.
func (l *Listener) enter(c *Conn, name string) (old *Conn, why reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.addresses == nil {
		l.addresses, l.ended = map[string]*address{}, map[reason]int64{}
	}
	a := l.addresses[name]
	if a == nil {
		a = &address{name: name}
	}
	switch {
	case l.PerAddress > 0 && a.count >= l.PerAddress:
		old, why = a.waiting(), noAddress
	case l.Total > 0 && l.count >= l.Total:
		old, why = l.heaviest(a), noTotal
	}
	if old != nil {
		l.leave(old)
		why = replaced
	}
	if why != "" {
		l.ended[why]++
	}
	if why == noAddress || why == noTotal {
		return nil, why
	}
	l.addresses[name] = a
	c.address = a
	a.count++
	l.count++
	c.wait(&a.fresh)
	return old, why
}

// heaviest returns a waiting connection of the address with the most connections: the
// newcomer's, or one with more than the newcomer's.
func (l *Listener) heaviest(newcomer *address) (c *Conn) {
	most := 0
	for _, a := range l.addresses {
		if a.count > most && (a == newcomer || a.count > newcomer.count) {
			if w := a.waiting(); w != nil {
				c, most = w, a.count
			}
		}
	}
	return c
}

// leave removes a connection; the lock is held.
func (l *Listener) leave(c *Conn) {
	if c.gone {
		return
	}
	c.gone = true
	c.serve()
	l.count--
	if c.address.count--; c.address.count == 0 {
		delete(l.addresses, c.address.name)
	}
}

// wait appends the connection to a list; the lock is held.
func (c *Conn) wait(in *list.List) {
	c.serve()
	if !c.gone {
		c.in, c.at = in, in.PushBack(c)
	}
}

// serve removes the connection from its list; the lock is held.
func (c *Conn) serve() {
	if c.in != nil {
		c.in.Remove(c.at)
		c.in, c.at = nil, nil
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	// net/http reads a single byte while it responds to the request before.
	if len(p) > 1 && c.heads.tooMany() {
		refuseHead(c.Conn, c.heads.refusal())
		_ = c.Close() // net/http would add a response of its own
		return 0, errHeadLines
	}
	n, err := c.Conn.Read(p)
	c.heads.see(p[:n])
	return n, err
}

// Close implements net.Conn and frees the connection's place.
func (c *Conn) Close() (err error) {
	c.once.Do(func() {
		c.listener.mu.Lock()
		c.listener.leave(c)
		c.listener.mu.Unlock()
		err = c.Conn.Close()
	})
	return err
}

type connKey struct{}

// Context is for http.Server.ConnContext.
func Context(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// Arrived marks the request of a context as complete: from here until it ends, its
// connection is not closed in favour of another one.
func Arrived(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.serve()
	}
}

// ended returns the connection to those that wait for a request.
func (c *Conn) ended() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.wait(&c.address.used)
	c.heads.end()
}

const (
	// refuseTime is how long a client may take to read its refusal.
	refuseTime = 50 * time.Millisecond
	refusal    = "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%sConnection: close\r\n\r\n%s"
	// drainBytes of a head that is refused are read, so that closing the connection does not
	// discard the refusal.
	drainBytes = 64 << 10
)

// errHeadLines is the error of a connection whose client sends too many header lines.
var errHeadLines = errors.New("too many header lines")

// refuse answers the next request of the client, and closes the connection.
func refuse(c net.Conn, why reason) {
	e := &openai.Error{Status: refusals[why].status, Type: openai.TypeUnavailable, Code: openai.CodeOverloaded, Message: refusals[why].message + " Try again in a second."}
	_ = writeRefusal(c, e, fmt.Sprintf("Retry-After: %d\r\n", int(retry.Seconds())))
	_ = c.Close()
}

// refuseHead answers a request whose head is not read to its end.
func refuseHead(c net.Conn, e *openai.Error) {
	if writeRefusal(c, e, "") != nil || c.SetReadDeadline(time.Now().Add(refuseTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c, drainBytes)
}

// writeRefusal writes a response outside of net/http.
func writeRefusal(c net.Conn, e *openai.Error, headers string) error {
	code := "null"
	if e.Code != "" {
		code = `"` + e.Code + `"`
	}
	body := fmt.Sprintf(`{"error":{"message":"%s","type":"%s","param":null,"code":%s}}`, e.Message, e.Type, code)
	if err := c.SetWriteDeadline(time.Now().Add(refuseTime)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(c, refusal, e.Status, http.StatusText(e.Status), len(body), headers, body)
	return err
}
