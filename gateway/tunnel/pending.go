package tunnel

import (
	"container/list"
	"net"
	"sync"
	"time"
)

const (
	// maxPending connections may be authenticating at once, and maxPendingPerAddress of
	// them from one address: the Macs of an office share an address.
	maxPending           = 256
	maxPendingPerAddress = 64
)

// pending holds the connections that are authenticating. One beyond the limit closes the
// oldest: silent connections soon are the oldest, and cannot lock out a Mac, which
// authenticates in less time than it takes to fill the limit.
type pending struct {
	mu   sync.Mutex            // guards the fields after it
	from map[string]*list.List // of *pendingConn by address, the oldest in front
	n    int
}

type pendingConn struct {
	net.Conn
	from  string
	since time.Time
	place *list.Element // nil once it is out
}

// enter admits a connection to authentication. At a limit, the oldest one of the address
// with the most is closed.
func (s *pending) enter(c net.Conn, from string) *pendingConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.from[from]; own != nil && own.Len() >= maxPendingPerAddress {
		s.close(own)
	} else if s.n >= maxPending {
		s.close(s.fullest())
	}
	own := s.from[from]
	if own == nil {
		own = list.New()
		s.from[from] = own
	}
	one := &pendingConn{Conn: c, from: from, since: time.Now()}
	one.place = own.PushBack(one)
	s.n++
	return one
}

// fullest returns the address with the most connections, and of those the one with the
// oldest.
func (s *pending) fullest() *list.List {
	var found *list.List
	for _, l := range s.from {
		if found == nil || l.Len() > found.Len() || l.Len() == found.Len() && oldest(l).since.Before(oldest(found).since) {
			found = l
		}
	}
	return found
}

func oldest(l *list.List) *pendingConn { return l.Front().Value.(*pendingConn) }

func (s *pending) close(l *list.List) {
	one := oldest(l)
	s.remove(one)
	_ = one.Close() // which fails its authentication
}

func (s *pending) remove(one *pendingConn) {
	l := s.from[one.from]
	l.Remove(one.place)
	one.place = nil
	s.n--
	if l.Len() == 0 {
		delete(s.from, one.from)
	}
}

// leave removes a connection that has authenticated or failed. It returns false for one
// that was closed to make room.
func (s *pending) leave(one *pendingConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.place == nil {
		return false
	}
	s.remove(one)
	return true
}
