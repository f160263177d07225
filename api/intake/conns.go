package intake

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// Listener accepts a bounded number of connections, in total and per address.
type Listener struct {
	net.Listener
	// Total and PerAddress are the limits; 0 means none. When Total connections all serve, an
	// eighth more is for addresses that have few.
	Total, PerAddress int
	// HeadLines is the maximum number of header lines of a request, and HeadBytes of bytes of
	// its head; 0 is no limit. One with more is refused with 431. They are for connections
	// without TLS.
	HeadLines, HeadBytes int
	// Unread is how many connections may be open whose clients do not read their responses, each
	// of which holds some in memory; 0 is no limit.
	Unread int
	// Kernel is how many bytes of memory the kernel may use for all connections; 0 is no limit.
	Kernel int64
	// Turns is how many turns clients without a key take in each second, for each processor; 0 is no limit.
	// Reads is the same for reads of large bodies of all clients.
	Turns, Reads int
	// Bodies counts the memory of heads, against the address or what Own names; nil counts
	// none. It is for connections without TLS.
	Bodies *Bodies
	// Silent closes refused connections without a response, which clients of TLS could not
	// read.
	Silent bool

	mu        sync.Mutex // guards the fields after it, and the lists of all connections
	count     int
	addresses map[string]*address
	ended     map[reason]int64
	owned     map[string]int // requests by owner, see Own
	inAll     int            // of all owners

	// heavy ranks the addresses that have a connection to sacrifice by all that they have, lingering
	// by those that are closed, of which there are linger, silent by those that are silent, and crowds
	// by those that are young.
	heavy, lingering, silent, crowds ranks[*address]
	linger                           int
	idle, young                      list.List // connections without a key, where clients need one, see queue
	kept                             list.List // others that wait for a request, the first for longest
	looked                           time.Time // for connections that stall

	refused      shared // connections whose clients have not read that
	turns, reads turns  // of clients without a key, and of large bodies

	writing  atomic.Int64 // connections in a write, or with a response that is complete and not read
	watching atomic.Bool
	weighing atomic.Bool
}

// keptShare is the part of Total by which addresses may exceed it that have less than few connections
// each: requests may take as long as they like, so that some addresses could fill Total for hours.
const keptShare, few = 8, 2

// reason why a connection was closed or refused; it is a metric label too.
type reason string

const (
	replaced  reason = "replaced" // another one took its place: it had no complete request, or did not read
	unread    reason = "unread"   // closed: its client did not read, and there were too many of these
	noTotal   reason = "total"    // refused: all others are in use
	noAddress reason = "address"  // refused: all others of its address are in use
	heavy     reason = "memory"   // closed: the kernel used too much memory for all connections, and much for this one
	longHead  reason = "head"     // closed: a request had too many header lines, or bytes of them
)

// address holds the connections of one address, oldest first: those that serve a request, and
// those that wait for one.
type address struct {
	name    string
	count   int
	serving list.List
	// fresh connections have not completed a request yet, used ones have; closing ones are closed,
	// but their clients have not read everything. known ones wait like used ones, and sending ones send a
	// request: their clients have a key.
	fresh, used, sending, known, closing list.List
	// late ones of those that serve stall, the latest first; silent ones of the fresh ones have sent no
	// key in strangerTime, and young ones still may.
	late, silent, young                list.List
	looked                             time.Time // for late ones
	weight, lingering, silences, crowd rank[*address]
}

// newAddress returns one without connections.
func newAddress(name string) *address {
	a := &address{name: name}
	a.weight.of, a.lingering.of, a.silences.of, a.crowd.of = a, a, a, a
	return a
}

// place is the place of a connection in a list, or in none.
type place struct {
	in *list.List
	at *list.Element
}

// move appends the connection to a list, or to none.
func (p *place) move(c *Conn, to *list.List) {
	if p.in != nil {
		p.in.Remove(p.at)
	}
	if p.in, p.at = to, nil; to != nil {
		p.at = to.PushBack(c)
	}
}

// Conn is an accepted connection.
type Conn struct {
	net.Conn
	listener *Listener
	heads    heads
	room     headRoom
	once     sync.Once // of closing
	headOnce sync.Once // of counting a head that is refused
	endOnce  sync.Once // of giving its place back
	aborted  atomic.Bool
	raised   atomic.Bool // its receive buffer
	reads    reading
	life     context.Context // ends when it is closed
	cancel   context.CancelFunc
	wakes    chan struct{} // has one when a read deadline is over
	turned   atomic.Bool   // what was read last had its turn
	had      atomic.Bool   // a request
	pieces   atomic.Int64  // of its first head
	body     atomic.Int64  // bytes read since a request began
	known    atomic.Bool   // a request of it had a key; set with the listener's mu

	// Guarded by the listener's mu.
	address   *address
	owner     string    // of its request; empty if unknown
	payer     string    // owner of its last request
	entered   time.Time // or when it began to wait for its client again
	place               // in none if it is closed
	turn      place     // to give way, see queue
	atAddress place     // among the young ones
	gone      bool
}

func newConn(of net.Conn, l *Listener) *Conn {
	c := &Conn{Conn: of, listener: l, heads: heads{max: l.HeadLines, maxBytes: l.HeadBytes}, room: headRoom{bodies: l.Bodies}, wakes: make(chan struct{}, 1)}
	c.life, c.cancel = context.WithCancel(context.Background())
	return c
}

// Accept returns the next connection for which there is room. A connection beyond the
// limits replaces one that waits for its client, which sends or reads nothing, or is refused
// with 429 or 503.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		runtime.Gosched() // any number of clients may connect, and others need this processor too
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, ofAccept(err)
		}
		conn := newConn(c, l)
		old, why := l.enter(conn, AddressOf(c.RemoteAddr().String()))
		if old != nil {
			old.abort() // its client is gone or will notice
		}
		if why == "" || why == replaced {
			conn.boundUnread()
			return conn, nil
		}
		l.refuse(c, why)
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
		a = newAddress(name)
	}
	now := time.Now()
	switch {
	case l.PerAddress > 0 && a.count >= l.PerAddress:
		a.look(now)
		old, why = l.waiting(a, now), noAddress
		l.rank(a)
	case l.Total > 0 && l.count >= l.Total:
		if old = l.stranger(now); old == nil {
			old = l.heaviest(a, now)
		}
		if why = noTotal; old == nil && a.count < few && l.count < l.Total+l.Total/keptShare {
			why = ""
		}
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
	c.address, c.entered = a, now
	a.count++
	l.count++
	c.move(&a.fresh)
	l.weigh()
	return old, why
}

// heaviest returns a waiting connection of the address with the most connections: the
// newcomer's, or one with more than the newcomer's. Before a newcomer is refused, or takes the place of a
// request that its own address begins, the one that idles for longest gives way, of any address.
func (l *Listener) heaviest(newcomer *address, now time.Time) *Conn {
	l.look(now)
	for {
		a := l.heavy.first()
		if a == nil || a.count <= newcomer.count {
			c := l.waiting(newcomer, now)
			if first := l.kept.Front(); first != nil && (c == nil || (c.in == &newcomer.fresh || c.in == &newcomer.sending) && now.Sub(c.entered) < strangerTime) {
				return first.Value.(*Conn)
			}
			return c
		}
		c := l.waiting(a, now)
		if c != nil {
			return c
		}
		l.rank(a) // its late clients have read
	}
}

// rank notes what an address has; the lock is held.
func (l *Listener) rank(a *address) {
	weight := 0
	if a.late.Len()+a.closing.Len()+a.fresh.Len()+a.used.Len()+a.sending.Len()+a.known.Len() > 0 {
		weight = a.count
	}
	l.linger += a.closing.Len() - int(a.lingering.n)
	l.heavy.set(&a.weight, int64(weight))
	l.lingering.set(&a.lingering, int64(a.closing.Len()))
	l.silent.set(&a.silences, int64(a.silent.Len()))
	l.crowds.set(&a.crowd, int64(a.young.Len()))
}

// leave removes a connection; the lock is held.
func (l *Listener) leave(c *Conn) {
	if c.gone {
		return
	}
	l.count--
	if c.address.count--; c.address.count == 0 {
		delete(l.addresses, c.address.name)
	}
	c.move(nil)
	c.disown()
	c.gone = true
}

// move appends the connection to a list, or to none; the lock is held.
func (c *Conn) move(to *list.List) {
	if c.gone {
		return
	}
	c.place.move(c, to)
	c.queue()
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	// net/http reads a single byte while it responds to the request before.
	if len(p) > 1 && c.heads.tooMany() {
		return 0, c.refuseLong()
	}
	if len(p) > 1 && c.heads.ends() {
		return 0, errHeadLines
	}
	n, err := c.Conn.Read(p)
	if len(p) > 1 && n > 0 {
		if err := c.awaitTurn(n); err != nil {
			return 0, c.late(err)
		}
		c.turned.Store(true)
	}
	if fine := c.heads.see(p[:n]); fine < n && len(p) > 1 {
		if n, err = fine, nil; n == 0 {
			return 0, c.refuseLong()
		}
	}
	if m := c.heads.memory(); m > freeHead && !c.room.grow(c.address.name, m, c.interrupt) {
		refuseHead(c.Conn, openai.Overloaded(retry))
		_ = c.Close()
		return 0, errNoHeadRoom
	}
	return n, err
}

// refuseLong ends a connection for too many or too long header lines.
func (c *Conn) refuseLong() error {
	c.countHead()
	refuseHead(c.Conn, c.heads.refusal())
	_ = c.Close() // net/http would add a response of its own
	return errHeadLines
}

// countHead counts a connection that is closed for too many or too long header lines.
func (c *Conn) countHead() {
	c.headOnce.Do(func() {
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.listener.ended[longHead]++
	})
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.listener.writing.Add(1)
	defer c.listener.writing.Add(-1)
	c.listener.watch()
	return c.reads.write(c.Conn, p)
}

// Close implements net.Conn. It frees the connection's place, once the client has read
// everything.
func (c *Conn) Close() (err error) {
	c.once.Do(func() {
		c.cancel()
		c.room.release(true)
		if !c.linger() {
			err = c.end()
		}
	})
	return err
}

// end frees the connection's place.
func (c *Conn) end() (err error) {
	c.endOnce.Do(func() {
		l := c.listener
		l.mu.Lock()
		l.leave(c)
		l.mu.Unlock()
		err = c.Conn.Close()
	})
	return err
}

// interrupt ends the connection for the memory of its head. What its client has not read is lost.
func (c *Conn) interrupt() {
	c.aborted.Store(true)
	c.cancel()
	lose(c.Conn)
	_ = c.Conn.Close()
}

type connKey struct{}

// Context is for http.Server.ConnContext. The context ends when the connection is closed: net/http does
// not notice that while the body of a request is unread.
func Context(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	conn, ok := c.(*Conn)
	if !ok {
		return ctx
	}
	ctx, stop := context.WithCancel(context.WithValue(ctx, connKey{}, conn))
	context.AfterFunc(conn.life, stop)
	return ctx
}

// Arrived marks the request of a context as complete: from here until it ends, its
// connection is not closed in favour of another one while its client reads.
func Arrived(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		c.lower()
		c.room.arrived()
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.move(&c.address.serving)
	}
}

// Pause takes back Arrived: until Resume is called, the connection of a context gives way to
// others as if its request had not arrived.
func Pause(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		c.room.paused()
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		if c.in == &c.address.serving {
			c.wait()
		}
	}
}

// Resume ends Pause.
func Resume(r *http.Request) {
	if r.Body == http.NoBody {
		Arrived(r.Context())
	}
}

// ended returns the connection to those that wait for a request.
func (c *Conn) ended() {
	c.lower()
	c.room.release(false)
	c.reads.end()
	c.body.Store(0)
	c.leaves()
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.disown()
	c.wait()
	c.heads.end()
}

// wait moves the connection to those that wait for their client; the lock is held.
func (c *Conn) wait() {
	c.entered = time.Now()
	if c.known.Load() {
		c.move(&c.address.known)
	} else {
		c.move(&c.address.used)
	}
}
