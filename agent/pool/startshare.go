package pool

import (
	"maps"
	"time"
)

// After an engine ended uncleanly nothing is started on this Mac for 10 s. A
// namespace whose engines fail again and again must not keep those of others
// waiting: it starts its next ones uncleanPause later, and twice as late each time
// that it happens again within crashWindow, at most maxUncleanPause; from the second
// time on one after another, each that much later.
const (
	uncleanPause    = 20 * time.Second
	maxUncleanPause = 5 * time.Minute
)

// startShares are the unclean ends that engines of each namespace caused. Its zero
// value is ready to use; registry.mu guards it.
type startShares struct{ by map[string]uncleanEnds }

// uncleanEnds of one namespace.
type uncleanEnds struct {
	count int
	last  time.Time
	// started is the last start since the first of them; zero: none was.
	started time.Time
}

// failed notes an unclean end that is a fault of the engine.
func (s *startShares) failed(namespace string, now time.Time) {
	if s.by == nil {
		s.by = map[string]uncleanEnds{}
	}
	maps.DeleteFunc(s.by, func(_ string, u uncleanEnds) bool { return now.Sub(u.last) >= crashWindow })
	u := s.by[namespace]
	u.count, u.last = u.count+1, now
	s.by[namespace] = u
}

// starts notes the start of an engine.
func (s *startShares) starts(namespace string, now time.Time) {
	if u, failed := s.by[namespace]; failed {
		u.started = now
		s.by[namespace] = u
	}
}

// notBefore returns when engines of a namespace may start; zero: at once.
func (s *startShares) notBefore(namespace string) time.Time {
	u, failed := s.by[namespace]
	if !failed {
		return time.Time{}
	}
	before := u.last
	if u.count > 1 && u.started.After(before) {
		before = u.started
	}
	at, end := before.Add(min(maxUncleanPause, uncleanPause<<min(u.count-1, 10))), u.last.Add(crashWindow)
	if at.After(end) {
		return end
	}
	return at
}

// startsNotBefore returns when the engine of an entry may start; the caller holds
// mu. Where no other namespace has replicas there is nothing to share.
func (rs *replicas) startsNotBefore(e *entry) time.Time {
	for _, o := range rs.entries {
		if o.want == wantRunning && o.assignment.Namespace != e.assignment.Namespace {
			if at := rs.shares.notBefore(e.assignment.Namespace); at.After(e.restart) {
				return at
			}
			break
		}
	}
	return e.restart
}
