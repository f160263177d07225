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
)

// reading is how a client reads the current response of a connection. One that reads a little
// now and then is late as well, and earlier bytes that it read fast do not help it.
type reading struct {
	// began is when the current write began; nil without one. bytes are those of this write, and
	// lag is how late the client was before it, in nanoseconds.
	began      atomic.Pointer[time.Time]
	bytes, lag atomic.Int64
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
	began := r.began.Load()
	if began == nil {
		return 0
	}
	took := time.Duration(r.lag.Load()) + now.Sub(*began)
	return max(0, took-time.Duration(r.bytes.Load())*time.Second/ReadRate)
}

// stalled reports whether the client has not kept up for long enough to give way.
func (c *Conn) stalled(now time.Time) bool { return c.reads.late(now) >= stallTime }

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
// The clients of each owner or address that are least late stay, as many of each.
func (l *Listener) tooMany(now time.Time) (out []*Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	type stalled struct {
		*Conn
		late time.Duration
		rank int // among those of its owner or address
	}
	by := map[string][]stalled{}
	for _, a := range l.addresses {
		for c := range a.all {
			if c.stalled(now) {
				of := cmp.Or(c.owner, a.name)
				by[of] = append(by[of], stalled{Conn: c, late: c.reads.late(now)})
			}
		}
	}
	var all []stalled
	for _, some := range by {
		slices.SortFunc(some, func(a, b stalled) int { return cmp.Compare(a.late, b.late) })
		for i := range some {
			some[i].rank = i
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
	for _, l := range []*list.List{&a.serving, &a.fresh, &a.used} {
		for at := l.Front(); at != nil; at = at.Next() {
			if !yield(at.Value.(*Conn)) {
				return
			}
		}
	}
}
