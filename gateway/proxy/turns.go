package proxy

import (
	"context"
	"errors"
	"sync"
)

// errTurns means that a tenant has reached its limit of requests of a kind.
var errTurns = errors.New("too many requests of one kind at once")

// turns bounds how many requests of a kind run concurrently. A tenant alone may use all
// slots. Otherwise its requests queue among themselves, so that another tenant waits for at
// most one of each; beyond a limit for each tenant they are refused.
type turns struct {
	each int // requests of one tenant that may run and wait
	all  chan struct{}

	mu      sync.Mutex
	tenants map[string]*queued // guarded by mu
}

// queued is a tenant with such requests.
type queued struct {
	places chan struct{}
	users  int // guarded by mu of turns
}

func newTurns(most, each int) *turns {
	return &turns{each: each, all: make(chan struct{}, most), tenants: map[string]*queued{}}
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
	select {
	case s.all <- struct{}{}:
	case <-ctx.Done():
		<-t.places
		s.leave(tenant)
		return nil, ctx.Err()
	}
	return func() {
		<-s.all
		<-t.places
		s.leave(tenant)
	}, nil
}

func (s *turns) enter(tenant string) (*queued, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil {
		t = &queued{places: make(chan struct{}, cap(s.all))}
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
