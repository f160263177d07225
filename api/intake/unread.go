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
	// stallTime is how long a client may be behind that rate before its connection gives way to
	// others.
	stallTime = time.Second
	// stallChecks is how often that is checked within stallTime.
	stallChecks = 4
	// pieceBytes is the most that one write counts as read.
	pieceBytes = 64 << 10
)

// reading is how a client reads the current response of a connection. A client that reads a
// little now and then is behind as well.
type reading struct {
	// began is when the current write began, in nanoseconds since 1970; 0 without one. bytes and
	// nanoseconds are of all writes, and of the current one the bytes.
	began, bytes, nanoseconds atomic.Int64
}

// write writes in pieces, so that a client that reads a long one is not behind.
func (r *reading) write(to net.Conn, p []byte) (n int, err error) {
	for more := true; more && err == nil; more = n < len(p) {
		piece := p[n:min(len(p), n+pieceBytes)]
		began := time.Now()
		r.bytes.Add(int64(len(piece)))
		r.began.Store(began.UnixNano())
		var wrote int
		wrote, err = to.Write(piece)
		r.nanoseconds.Add(int64(time.Since(began)))
		r.began.Store(0)
		n += wrote
	}
	return n, err
}

// end ends a response.
func (r *reading) end() {
	r.bytes.Store(0)
	r.nanoseconds.Store(0)
}

// behind returns how much longer the response has taken than at ReadRate; 0 if the client is
// not awaited.
func (r *reading) behind(now time.Time) time.Duration {
	began := r.began.Load()
	if began == 0 {
		return 0
	}
	took := r.nanoseconds.Load() + now.UnixNano() - began
	return max(0, time.Duration(took)-time.Duration(r.bytes.Load())*time.Second/ReadRate)
}

// stalled reports whether the client has not kept up for long enough to give way.
func (c *Conn) stalled(now time.Time) bool { return c.reads.behind(now) >= stallTime }

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
// The clients of each owner or address that are least behind stay, as many of each.
func (l *Listener) tooMany(now time.Time) (out []*Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	type stalled struct {
		*Conn
		behind time.Duration
		rank   int // among those of its owner or address
	}
	by := map[string][]stalled{}
	for _, a := range l.addresses {
		for c := range a.all {
			if c.stalled(now) {
				of := cmp.Or(c.owner, a.name)
				by[of] = append(by[of], stalled{Conn: c, behind: c.reads.behind(now)})
			}
		}
	}
	var all []stalled
	for _, some := range by {
		slices.SortFunc(some, func(a, b stalled) int { return cmp.Compare(a.behind, b.behind) })
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
