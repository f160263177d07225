package proxy

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// errTurns means that a tenant has reached its limit of requests of a kind.
var errTurns = errors.New("too many requests of one kind at once")

// turns bounds how many requests of a kind run concurrently. A tenant alone may use all
// slots. Otherwise its requests queue among themselves, so that another tenant waits for at
// most one of each; beyond a limit for each tenant they are refused. If all slots are in use, kept
// more are for tenants that run none: requests that end when their clients like would otherwise
// have other tenants wait as long.
type turns struct {
	most, kept int
	each       int // requests of one tenant that may run and wait

	mu      sync.Mutex // guards the fields after it
	running int
	waiting list.List // of *turn, the oldest in front
	tenants map[string]*queued
}

// queued is a tenant with such requests.
type queued struct {
	places chan struct{}
	users  int // guarded by mu of turns
	runs   int // guarded by mu of turns
}

// turn is a request that has a place of its tenant, and waits for a slot.
type turn struct {
	of    *queued
	began chan struct{} // closed when it has one
}

func newTurns(most, each int) *turns {
	return &turns{most: most, each: each, tenants: map[string]*queued{}}
}

// begin waits for a slot, which end frees.
func (s *turns) begin(ctx context.Context, tenant string) (end func(), err error) {
	t, err := s.enter(tenant)
	if err != nil {
		return nil, err
	}
	select {
	case t.places <- struct{}{}:
	case <-ctx.Done():
		s.leave(tenant)
		return nil, ctx.Err()
	}
	if err := s.take(ctx, t); err != nil {
		<-t.places
		s.leave(tenant)
		return nil, err
	}
	return func() {
		s.give(t)
		<-t.places
		s.leave(tenant)
	}, nil
}

// take waits for a slot.
func (s *turns) take(ctx context.Context, t *queued) error {
	one := &turn{of: t, began: make(chan struct{})}
	s.mu.Lock()
	at := s.waiting.PushBack(one)
	s.try(at) // all before it wait for longer, and still have to
	s.mu.Unlock()
	select {
	case <-one.began:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.waiting.Remove(at)
	s.mu.Unlock()
	select {
	case <-one.began:
		s.give(t)
	default:
	}
	return ctx.Err()
}

// try lets a turn begin if there is a slot for it; the lock is held.
func (s *turns) try(at *list.Element) {
	one := at.Value.(*turn)
	if s.running >= s.most && (one.of.runs > 0 || s.running >= s.most+s.kept) {
		return
	}
	s.waiting.Remove(at)
	s.running++
	one.of.runs++
	close(one.began)
}

// give frees a slot.
func (s *turns) give(t *queued) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	t.runs--
	for at := s.waiting.Front(); at != nil && s.running < s.most+s.kept; {
		next := at.Next()
		s.try(at)
		at = next
	}
}

func (s *turns) enter(tenant string) (*queued, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil {
		t = &queued{places: make(chan struct{}, s.most+s.kept)}
		s.tenants[tenant] = t
	}
	if t.users == s.each {
		return nil, errTurns
	}
	t.users++
	return t, nil
}

func (s *turns) leave(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[tenant]; t.users > 1 {
		t.users--
	} else {
		delete(s.tenants, tenant)
	}
}

// newReads returns turns of requests that end when their clients like.
func newReads(most, each int) *turns {
	s := newTurns(most, each)
	s.kept = max(1, most/4)
	return s
}
