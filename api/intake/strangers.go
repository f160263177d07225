package intake

import (
	"cmp"
	"container/list"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxStrangers connections may be authenticating at once by default, and
	// maxStrangersPerAddress of them from one address: the Macs of an office share an address.
	maxStrangers           = 256
	maxStrangersPerAddress = 64
)

// Strangers holds the connections that are authenticating. One beyond the limit closes the
// oldest: silent connections soon are the oldest, and cannot lock out a client that
// authenticates in less time than it takes to fill the limit. The zero value is ready.
type Strangers struct {
	// Max connections may be authenticating at once, MaxPerAddress of them from one
	// address; 0 means 256 and 64.
	Max, MaxPerAddress int
	shared
}

// shared are connections that have a limit in all, and one for each address or client.
type shared struct {
	mu   sync.Mutex            // guards the fields after it
	from map[string]*list.List // of *Stranger by address or client, the oldest in front
	n    int
}

// Stranger is a connection that has not authenticated, or another one that is counted.
type Stranger struct {
	net.Conn
	in    *shared
	from  string
	since time.Time
	place *list.Element // nil once it is out
	ended atomic.Bool
}

// Close implements net.Conn. A connection keeps its place until its client has everything.
func (s *Stranger) Close() error {
	if s.ended.Swap(true) {
		return nil
	}
	if part(s.Conn) {
		awaitSent(s.Conn, time.Now().Add(lingerTime), lingerCheck, func() { _ = s.end() })
		return nil
	}
	return s.end()
}

func (s *Stranger) end() error {
	defer s.in.Leave(s)
	lose(s.Conn)
	return s.Conn.Close()
}

// SetDeadline implements net.Conn.
func (s *Stranger) SetDeadline(t time.Time) error {
	if s.ended.Load() {
		return net.ErrClosed
	}
	return s.Conn.SetDeadline(t)
}

// Enter admits a connection to authentication. At a limit, the oldest one of the address
// with the most is closed.
func (s *Strangers) Enter(c net.Conn) *Stranger {
	return s.enter(c, AddressOf(c.RemoteAddr().String()))
}

func (s *Strangers) enter(c net.Conn, from string) *Stranger {
	return s.shared.enter(c, from, cmp.Or(s.Max, maxStrangers), cmp.Or(s.MaxPerAddress, maxStrangersPerAddress))
}

// enter adds a connection, for which an older one is closed at a limit.
func (s *shared) enter(c net.Conn, from string, most, mostEach int) *Stranger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == nil {
		s.from = map[string]*list.List{}
	}
	if own := s.from[from]; own != nil && own.Len() >= mostEach {
		s.close(own)
	} else if s.n >= most {
		s.close(s.fullest())
	}
	own := s.from[from]
	if own == nil {
		own = list.New()
		s.from[from] = own
	}
	one := &Stranger{Conn: c, in: s, from: from, since: time.Now()}
	one.place = own.PushBack(one)
	s.n++
	return one
}

// fullest returns the address with the most connections, and of those the one with the
// oldest.
func (s *shared) fullest() *list.List {
	var found *list.List
	for _, l := range s.from {
		if found == nil || l.Len() > found.Len() || l.Len() == found.Len() && oldest(l).since.Before(oldest(found).since) {
			found = l
		}
	}
	return found
}

func oldest(l *list.List) *Stranger { return l.Front().Value.(*Stranger) }

func (s *shared) close(l *list.List) {
	one := oldest(l)
	s.remove(one)
	lose(one.Conn)
	_ = one.Conn.Close() // which fails its authentication
}

func (s *shared) remove(one *Stranger) {
	l := s.from[one.from]
	l.Remove(one.place)
	one.place = nil
	s.n--
	if l.Len() == 0 {
		delete(s.from, one.from)
	}
}

// Leave removes a connection that has authenticated, failed or ended. It returns false for
// one that was closed to make room.
func (s *shared) Leave(one *Stranger) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.place == nil {
		return false
	}
	s.remove(one)
	return true
}

// closeAll closes all connections that are authenticating.
func (s *shared) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.from) > 0 {
		s.close(s.fullest())
	}
}
