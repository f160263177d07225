package tunnel

import (
	"container/list"
	"net"
	"sync"
	"time"
)

const (
	// strangersMost may be proving which Mac they are at once, and of one address
	// at most strangersEach: Macs of one office share an address.
	strangersMost = 256
	strangersEach = 64
)

// strangers are the connections that have not proved yet which Mac they are. One
// too many has the oldest closed: those that say nothing are the oldest soon, and
// keep no Mac out, which proves itself in less time than it takes to fill the room.
type strangers struct {
	mu   sync.Mutex            // guards what follows
	from map[string]*list.List // of *stranger by address, the oldest in front
	n    int
}

type stranger struct {
	net.Conn
	from  string
	since time.Time
	place *list.Element // nil once it is out
}

// enter lets a stranger begin. The address with the most gives up its oldest.
func (s *strangers) enter(c net.Conn, from string) *stranger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.from[from]; own != nil && own.Len() >= strangersEach {
		s.close(own)
	} else if s.n >= strangersMost {
		s.close(s.fullest())
	}
	own := s.from[from]
	if own == nil {
		own = list.New()
		s.from[from] = own
	}
	one := &stranger{Conn: c, from: from, since: time.Now()}
	one.place = own.PushBack(one)
	s.n++
	return one
}

// fullest is the address with the most, and of those the one with the oldest.
func (s *strangers) fullest() *list.List {
	var found *list.List
	for _, l := range s.from {
		if found == nil || l.Len() > found.Len() || l.Len() == found.Len() && oldest(l).since.Before(oldest(found).since) {
			found = l
		}
	}
	return found
}

func oldest(l *list.List) *stranger { return l.Front().Value.(*stranger) }

func (s *strangers) close(l *list.List) {
	one := oldest(l)
	s.remove(one)
	_ = one.Close() // so what it waits for fails
}

func (s *strangers) remove(one *stranger) {
	l := s.from[one.from]
	l.Remove(one.place)
	one.place = nil
	s.n--
	if l.Len() == 0 {
		delete(s.from, one.from)
	}
}

// leave takes out a stranger that has proved itself or failed. It is false for one
// that was closed to make room.
func (s *strangers) leave(one *stranger) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.place == nil {
		return false
	}
	s.remove(one)
	return true
}
