package intake

import (
	"container/list"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	// turnPause is how often turns are given while clients wait, and turnBurst the time whose turns begin at once. A
	// busy processor gives those of turnLag at once to clients that wait.
	turnPause, turnBurst, turnLag = time.Millisecond, 2 * time.Millisecond, 10 * time.Millisecond
	// turnQuiet is how long ago the last turn of a client is that counts as new.
	turnQuiet = time.Second
	// turnLongest is how long a client without a key waits at most: less than the probes of a load balancer have.
	turnLongest = 1500 * time.Millisecond
	// turnClients is the number of clients of a line, and of addresses with keys, from which others are forgotten.
	turnClients = 8192
	// turnKey is how long an address is one of clients with a key after one has shown it.
	turnKey = 10 * time.Minute
	// turnPieces of a first head are first turns: a long one arrives in several.
	turnPieces = 4
	// turnFree bytes of a body are read without a turn, where each read counts as turnLeast at least.
	turnFree, turnLeast = 8 << 10, 512
)

// errLate is the reason why a turn did not begin: it waited for turnLongest.
var errLate = errors.New("too many clients without a key")

// turns has clients take turns: those without a key for what they send, before it is parsed; others for each read
// of a large body. Any number of connections would all wait in the same queue for a processor as those of
// others, and one that always has more to read keeps it for 10 ms. The zero value is ready.
type turns struct {
	mu      sync.Mutex // guards the fields after it
	each    float64    // turns in a second
	credit  float64    // turns that may begin now
	counted time.Time  // when credit was
	lines   [lineCount]line
	last    int   // index of the last turn in order
	arrived int64 // how many waited
	waiting int
	giving  bool // soon
	// keys are when a client at an address showed a key; earlier ones were before these became too many.
	keys, earlier map[string]time.Time
}

// The lines in which clients wait. The turns of the first request of a connection are in one of their own: only then it
// is known whether its client has a key. Another one is for addresses at which clients have a key, which may be that of a
// proxy that others share, and one for what is on connections of clients with keys: bodies of requests that tenants own, of
// which there are fewer than addresses, and requests without a key that a proxy sends.
const (
	further = iota
	first
	firstWithKey
	owned
	lineCount
)

// order is whose turn is next, unless none waits in that line.
var order = []int{firstWithKey, owned, first, firstWithKey, owned, further}

// newest reports whether the newest one is next in a line.
func newest(in int) bool { return in == first || in == firstWithKey }

// line is where clients wait. The next one is that whose last turn is the longest ago, so that one that asks now
// and then waits for no flood of others. In a line of first turns the newest of those that had none for turnQuiet is next,
// and the newest of each client: if there are more than turns, the older ones give way to others.
type line struct {
	clients map[string]*waiter
	next    ranks[*waiter] // with turns that wait
}

// waiter is an address or owner whose clients wait in a line.
type waiter struct {
	last time.Time // when its last turn began
	wait list.List // of chan struct{}, which is closed when the turn begins; the oldest in front
	rank rank[*waiter]
}

// waits is what a wait for a turn ends with: net.ErrClosed, os.ErrDeadlineExceeded, and errLate.
type waits struct {
	closed, deadline <-chan struct{}
	late             <-chan time.Time
}

// take waits for a turn of a client, of each in a second, in a line.
func (t *turns) take(each float64, in int, client string, ends waits) (err error) {
	t.mu.Lock()
	t.each = each
	now := time.Now()
	t.count(now)
	l := &t.lines[in]
	w := l.of(client)
	if t.waiting == 0 && t.credit >= 1 {
		t.credit--
		w.last = now
		t.mu.Unlock()
		return nil
	}
	begins := make(chan struct{})
	at := w.wait.PushBack(begins)
	t.waiting++
	t.arrived++
	l.rank(w, newest(in), t.arrived, now)
	if !t.giving {
		t.giving = true
		time.AfterFunc(turnPause, t.give)
	}
	t.mu.Unlock()
	select {
	case <-begins:
		return nil
	case <-ends.closed:
		err = net.ErrClosed
	case <-ends.deadline:
		err = os.ErrDeadlineExceeded
	case <-ends.late:
		err = errLate
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-begins:
		return nil
	default:
	}
	w.wait.Remove(at)
	t.waiting--
	if w.wait.Len() == 0 {
		l.next.set(&w.rank, 0)
	}
	return err
}

// give begins the turns that wait, as many as may begin.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.count(now)
	for ; t.waiting > 0 && t.credit >= 1; t.credit-- {
		in, w := t.next()
		at := w.wait.Front()
		if newest(in) {
			at = w.wait.Back()
		}
		close(w.wait.Remove(at).(chan struct{}))
		t.waiting--
		w.last = now
		t.lines[in].rank(w, newest(in), t.arrived, now)
	}
	if t.giving = t.waiting > 0; t.giving {
		time.AfterFunc(turnPause, t.give)
	}
}

// next returns whose turn is next, and its line; the lock is held, and one waits.
func (t *turns) next() (in int, w *waiter) {
	for w == nil {
		t.last = (t.last + 1) % len(order)
		in = order[t.last]
		w = t.lines[in].next.first()
	}
	return in, w
}

// count adds the turns that may begin since it was called before; the lock is held.
func (t *turns) count(now time.Time) {
	most := max(1, t.each*turnBurst.Seconds())
	if t.waiting > 0 {
		most = max(1, t.each*turnLag.Seconds())
	}
	if t.credit += t.each * now.Sub(t.counted).Seconds(); t.credit > most || t.counted.IsZero() {
		t.credit = most
	}
	t.counted = now
}

// of returns a client.
func (l *line) of(client string) *waiter {
	w := l.clients[client]
	if w == nil {
		if l.clients == nil {
			l.clients = map[string]*waiter{}
		}
		if len(l.clients) >= turnClients {
			maps.DeleteFunc(l.clients, func(_ string, w *waiter) bool { return w.wait.Len() == 0 })
		}
		w = &waiter{}
		w.rank.of = w
		l.clients[client] = w
	}
	return w
}

// rank gives a client its place in the line.
func (l *line) rank(w *waiter, newest bool, arrived int64, now time.Time) {
	const never = 1 << 62
	n := int64(0)
	switch {
	case w.wait.Len() == 0:
	case newest && now.Sub(w.last) > turnQuiet:
		n = never + arrived
	case !w.last.IsZero():
		n = never - w.last.UnixNano()
	default:
		n = never
	}
	l.next.set(&w.rank, n)
}

// shows notes that a client at an address has shown a key.
func (t *turns) shows(address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == nil || len(t.keys) >= turnClients {
		t.keys, t.earlier = map[string]time.Time{}, t.keys
	}
	t.keys[address] = time.Now()
}

// lineOf returns the line of the first turn of a connection.
func (t *turns) lineOf(address string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.keys[address]
	if !ok {
		at = t.earlier[address]
	}
	if time.Since(at) <= turnKey {
		return firstWithKey
	}
	return first
}

// Turn waits for the turn of a request without a key on a connection on which others had one, as a proxy sends
// them. Other connections of clients without a key have waited before. The error is that of too many requests if it
// waits for long, or net.ErrClosed if the context of the request ends, as it does if its connection gives way to others.
func Turn(r *http.Request) error {
	c, ok := r.Context().Value(connKey{}).(*Conn)
	if !ok || c.listener.Turns == 0 || !c.known.Load() {
		return nil
	}
	Pause(r.Context())
	if err := c.takeTurn(r.Context(), owned); err != nil {
		if errors.Is(err, errLate) {
			return openai.RateLimited(retry)
		}
		return err
	}
	Resume(r)
	return nil
}

// awaitTurn waits for the turn of n bytes that a client has sent, or of a request that was read together with
// another one.
func (c *Conn) awaitTurn(n int) error {
	l := c.listener
	if l.Turns > 0 && !c.known.Load() {
		in := further
		if c.pieces.Add(1) <= turnPieces && !c.had.Load() {
			in = l.turns.lineOf(c.address.name)
		}
		return c.takeTurn(c.life, in)
	}
	if l.Reads == 0 || c.body.Add(int64(max(n, turnLeast))) <= turnFree {
		return nil
	}
	in, client := further, c.address.name
	l.mu.Lock()
	if c.owner != "" {
		in, client = owned, c.owner
	}
	l.mu.Unlock()
	return l.reads.take(perSecond(l.Reads), in, client, waits{closed: c.life.Done(), deadline: c.wakes})
}

// SetReadDeadline implements net.Conn. One that is over ends a wait for a turn too.
func (c *Conn) SetReadDeadline(t time.Time) error {
	select {
	case <-c.wakes:
	default:
	}
	if !t.IsZero() && !t.After(time.Now()) {
		select {
		case c.wakes <- struct{}{}:
		default:
		}
	}
	return c.Conn.SetReadDeadline(t)
}

// takeTurn waits for the turn of a client without a key.
func (c *Conn) takeTurn(ctx context.Context, in int) error {
	late := time.NewTimer(turnLongest)
	defer late.Stop()
	return c.listener.turns.take(perSecond(c.listener.Turns), in, c.address.name, waits{closed: ctx.Done(), late: late.C})
}

// perSecond returns how many turns there are in a second, of a number for each processor.
func perSecond(each int) float64 { return float64(each * runtime.GOMAXPROCS(0)) }
