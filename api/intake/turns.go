package intake

import (
	"container/list"
	"maps"
	"net/http"
	"runtime"
	"sync"
	"time"
)

const (
	// turnPause is how often turns are given while clients wait, and turnBurst the time whose turns begin at once.
	turnPause, turnBurst = time.Millisecond, 2 * time.Millisecond
	// turnClients is the number of addresses from which those are forgotten that wait for no turn.
	turnClients = 8192
)

// turns has clients without a key take turns: for each read of what they send, before it is parsed, and for
// each request. There may be any number of them, whose connections would all wait in the same queue for a
// processor as those of others. The next turn is for the address whose last one is the longest ago, so that one that
// asks now and then waits for no flood of others. The zero value is ready.
type turns struct {
	mu      sync.Mutex // guards the fields after it
	each    float64    // turns in a second
	credit  float64    // turns that may begin now
	counted time.Time  // when credit was
	clients map[string]*waiter
	next    ranks[*waiter] // with turns that wait
	waiting int
	giving  bool // soon
}

// waiter is an address whose clients take turns.
type waiter struct {
	last time.Time // when its last turn began
	wait list.List // of chan struct{}, which is closed when the turn begins; the oldest in front
	rank rank[*waiter]
}

// take waits for a turn of an address, of each in a second. It returns when the address had its last one before,
// and false if that ends first.
func (t *turns) take(each float64, address string, ends <-chan struct{}) (before time.Time, ok bool) {
	t.mu.Lock()
	t.each = each
	now := time.Now()
	t.count(now)
	w := t.of(address)
	before = w.last
	if t.waiting == 0 && t.credit >= 1 {
		t.credit--
		w.last = now
		t.mu.Unlock()
		return before, true
	}
	begins := make(chan struct{})
	at := w.wait.PushBack(begins)
	t.waiting++
	t.rank(w)
	if !t.giving {
		t.giving = true
		time.AfterFunc(turnPause, t.give)
	}
	t.mu.Unlock()
	select {
	case <-begins:
		return before, true
	case <-ends:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-begins:
		return before, true
	default:
	}
	w.wait.Remove(at)
	t.waiting--
	t.rank(w)
	return before, false
}

// forget has the turns of an address since a time not count: they were of a client with a key.
func (t *turns) forget(address string, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.clients[address]; w != nil && w.last.After(since) {
		w.last = since
		t.rank(w)
	}
}

// give begins the turns that wait, as many as may begin.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.count(now)
	for ; t.waiting > 0 && t.credit >= 1; t.credit-- {
		w := t.next.first()
		close(w.wait.Remove(w.wait.Front()).(chan struct{}))
		w.last = now
		t.waiting--
		t.rank(w)
	}
	if t.giving = t.waiting > 0; t.giving {
		time.AfterFunc(turnPause, t.give)
	}
}

// count adds the turns that may begin since it was called before; the lock is held.
func (t *turns) count(now time.Time) {
	most := max(1, t.each*turnBurst.Seconds())
	if t.credit += t.each * now.Sub(t.counted).Seconds(); t.credit > most || t.counted.IsZero() {
		t.credit = most
	}
	t.counted = now
}

// of returns an address; the lock is held.
func (t *turns) of(address string) *waiter {
	w := t.clients[address]
	if w == nil {
		if t.clients == nil {
			t.clients = map[string]*waiter{}
		}
		if len(t.clients) >= turnClients {
			maps.DeleteFunc(t.clients, func(_ string, w *waiter) bool { return w.wait.Len() == 0 })
		}
		w = &waiter{}
		w.rank.of = w
		t.clients[address] = w
	}
	return w
}

// rank gives an address its place among those that wait; the lock is held.
func (t *turns) rank(w *waiter) {
	const never = 1 << 62
	n := int64(0)
	switch {
	case w.wait.Len() == 0:
	case w.last.IsZero():
		n = never
	default:
		n = never - w.last.UnixNano()
	}
	t.next.set(&w.rank, n)
}

// Turn waits for the turn of a request without a key on a connection on which others had one, as a proxy sends
// them. Other connections of clients without a key have waited before. It returns false if the connection ends
// meanwhile: it gives way to others.
func Turn(r *http.Request) bool {
	c, ok := r.Context().Value(connKey{}).(*Conn)
	if !ok || c.listener.Turns == 0 || !c.known.Load() {
		return true
	}
	Pause(r.Context())
	if !c.takeTurn() {
		return false
	}
	Resume(r)
	return true
}

// awaitTurn waits for the turn of what a client without a key has sent. It returns false if the connection ends.
func (c *Conn) awaitTurn() bool {
	return c.listener.Turns == 0 || c.known.Load() || c.takeTurn()
}

func (c *Conn) takeTurn() bool {
	before, ok := c.listener.turns.take(float64(c.listener.Turns*runtime.GOMAXPROCS(0)), c.address.name, c.over)
	c.before.CompareAndSwap(nil, &before)
	return ok
}
