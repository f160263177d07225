package intake

import (
	"cmp"
	"container/list"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// ReadRate is how many bytes per second a client has to read of a response.
	ReadRate = 64 << 10
	// stallTime is how long a client may be late at that rate before its connection gives way to
	// others.
	stallTime = time.Second
	// stallChecks is how often that is checked within stallTime.
	stallChecks = 4
	// pieceBytes is the most that one write counts as read.
	pieceBytes = 64 << 10
	// leftBytes are how many bytes of complete responses the kernel may hold for a connection whose
	// client is not awaited.
	leftBytes = 8 << 10
)

// reading is how a client reads the current response of a connection. One that reads a little
// now and then is late as well, and earlier bytes that it read fast do not help it.
type reading struct {
	// began is when the current write began; nil without one. bytes are those of this write, and
	// lag is how late the client was before it, in nanoseconds.
	began      atomic.Pointer[time.Time]
	bytes, lag atomic.Int64
	// left is since when the kernel holds more than leftBytes of responses that are complete, and
	// holds how many; nil if it does not.
	left  atomic.Pointer[time.Time]
	holds atomic.Int64
}

// write writes in pieces, so that a client that reads a long one is not late.
func (r *reading) write(to net.Conn, p []byte) (n int, err error) {
	for more := true; more && err == nil; more = n < len(p) {
		piece := p[n:min(len(p), n+pieceBytes)]
		r.bytes.Store(int64(len(piece)))
		began := time.Now()
		r.began.Store(&began)
		var wrote int
		wrote, err = to.Write(piece)
		r.lag.Store(int64(r.late(time.Now())))
		r.began.Store(nil)
		n += wrote
	}
	return n, err
}

// end ends a response.
func (r *reading) end() { r.lag.Store(0) }

// late returns how much longer the response takes than at ReadRate; 0 if the client is not
// awaited.
func (r *reading) late(now time.Time) time.Duration {
	took, bytes := time.Duration(0), int64(0)
	if began := r.began.Load(); began != nil {
		took, bytes = time.Duration(r.lag.Load())+now.Sub(*began), r.bytes.Load()
	} else if left := r.left.Load(); left != nil {
		took, bytes = now.Sub(*left), r.holds.Load()
	}
	return max(0, took-time.Duration(bytes)*time.Second/ReadRate)
}

// leaves has the connection count among those whose clients are awaited while the kernel holds much
// of a complete response: a short one fits there, of any number of connections.
func (c *Conn) leaves() {
	n := unsent(c.Conn)
	if n <= leftBytes {
		return
	}
	c.reads.holds.Store(int64(n))
	if now := time.Now(); c.reads.left.CompareAndSwap(nil, &now) {
		c.listener.writing.Add(1)
		c.listener.watch()
		c.awaitRead(lingerCheck)
	}
}

// awaitRead looks again and again whether the client has read what leaves found.
func (c *Conn) awaitRead(pause time.Duration) {
	time.AfterFunc(pause, func() {
		if unsent(c.Conn) > leftBytes {
			c.awaitRead(min(2*pause, stallTime))
			return
		}
		c.reads.left.Store(nil)
		c.listener.writing.Add(-1)
	})
}

// stalled reports whether the client has not kept up for long enough to give way.
func (c *Conn) stalled(now time.Time) bool { return c.reads.late(now) >= stallTime }

// stalled returns the connection whose client is the latest; nil if all read, as far as look has found.
func (a *address) stalled(now time.Time) *Conn {
	for first := a.late.Front(); first != nil; first = a.late.Front() {
		c := first.Value.(*Conn)
		if c.stalled(now) {
			return c
		}
		c.turn.move(c, nil)
	}
	return nil
}

// look finds the connections of all addresses that stall, unless it did so a moment ago: a client that
// opens many connections must not have all looked at for each. The lock is held.
func (l *Listener) look(now time.Time) {
	if now.Sub(l.looked) < stallTime/stallChecks {
		return
	}
	l.looked = now
	for _, a := range l.addresses {
		a.look(now)
		l.rank(a)
	}
}

// look finds the connections of an address that stall, unless it did so a moment ago. l.rank is next.
func (a *address) look(now time.Time) {
	if now.Sub(a.looked) < stallTime/stallChecks {
		return
	}
	a.looked = now
	var late []stalled
	for at := a.serving.Front(); at != nil; at = at.Next() {
		if c := at.Value.(*Conn); c.stalled(now) {
			late = append(late, stalled{Conn: c, late: c.reads.late(now)})
		}
	}
	slices.SortFunc(late, func(a, b stalled) int { return cmp.Compare(b.late, a.late) })
	for _, s := range late {
		s.turn.move(s.Conn, &a.late)
	}
}

// stalled is a connection that stalls.
type stalled struct {
	*Conn
	late time.Duration
	rank int // among those of its owner or address; those of strangers come after all others
}

// watch looks for clients that do not read, for as long as there may be too many.
func (l *Listener) watch() {
	if l.Unread > 0 && l.writing.Load() > int64(l.Unread) && l.watching.CompareAndSwap(false, true) {
		time.AfterFunc(stallTime/stallChecks, func() {
			for _, c := range l.tooMany(time.Now()) {
				c.abort() // which ends its request
			}
			l.watching.Store(false)
			l.watch()
		})
	}
}

// tooMany removes the connections that stall beyond the limit and returns them, to be closed.
// The clients of each owner or address that are least late stay, as many of each; strangers stay last.
func (l *Listener) tooMany(now time.Time) (out []*Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	by := map[string][]stalled{}
	for _, a := range l.addresses {
		for c := range a.all {
			if c.stalled(now) {
				of := cmp.Or(c.payer, a.name)
				by[of] = append(by[of], stalled{Conn: c, late: c.reads.late(now)})
			}
		}
	}
	var all []stalled
	for _, some := range by {
		slices.SortFunc(some, func(a, b stalled) int { return cmp.Compare(a.late, b.late) })
		for i := range some {
			if some[i].rank = i; some[i].stranger() {
				some[i].rank += 1 << 30
			}
		}
		all = append(all, some...)
	}
	slices.SortFunc(all, func(a, b stalled) int { return cmp.Compare(a.rank, b.rank) })
	for _, s := range all[min(len(all), l.Unread):] {
		l.leave(s.Conn)
		l.ended[unread]++
		out = append(out, s.Conn)
	}
	return out
}

// all yields the connections of an address.
func (a *address) all(yield func(*Conn) bool) {
	for _, l := range []*list.List{&a.serving, &a.fresh, &a.used, &a.sending, &a.known} {
		for at := l.Front(); at != nil; at = at.Next() {
			if !yield(at.Value.(*Conn)) {
				return
			}
		}
	}
}
