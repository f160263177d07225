package peer

import "sync"

// slots bound the number of copies at a time. No client has all of them, so that one
// that reads slowly does not occupy this Mac.
type slots struct {
	most int

	mu      sync.Mutex
	running map[string]int // by the UID of the client's MacNode; guarded by mu
}

// share is how many slots one client may have.
func (s *slots) share() int { return max(1, s.most-1) }

// free reports whether a client may begin a copy now.
func (s *slots) free(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has(client)
}

// has is free; the caller holds mu.
func (s *slots) has(client string) bool {
	all := 0
	for _, n := range s.running {
		all += n
	}
	return all < s.most && s.running[client] < s.share()
}

// take takes a slot, which end returns, or returns false.
func (s *slots) take(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.has(client) {
		return false
	}
	if s.running == nil {
		s.running = map[string]int{}
	}
	s.running[client]++
	return true
}

func (s *slots) end(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[client]--; s.running[client] == 0 {
		delete(s.running, client)
	}
}
