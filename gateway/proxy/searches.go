package proxy

import (
	"context"
	"errors"
	"sync"
)

// searchesEach is how many searches of one tenant run and wait at most.
const searchesEach = 16

// errSearches is for a tenant that has as many searches as it may.
var errSearches = errors.New("too many searches for kept responses")

// searches bounds how many searches for kept responses run at once. A tenant alone may
// have all of them run. Its further ones wait for its own, so that the search of
// another tenant waits for no more than one of each; of more than searchesEach none waits.
type searches struct {
	all chan struct{}

	mu      sync.Mutex
	tenants map[string]*searching // guarded by mu
}

// searching is a tenant with searches.
type searching struct {
	places chan struct{}
	users  int // guarded by mu of searches
}

func newSearches(most int) *searches {
	return &searches{all: make(chan struct{}, most), tenants: map[string]*searching{}}
}

// begin waits for a place, which end gives back.
func (s *searches) begin(ctx context.Context, tenant string) (end func(), err error) {
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

func (s *searches) enter(tenant string) (*searching, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil {
		t = &searching{places: make(chan struct{}, cap(s.all))}
		s.tenants[tenant] = t
	}
	if t.users == searchesEach {
		return nil, errSearches
	}
	t.users++
	return t, nil
}

func (s *searches) leave(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[tenant]; t.users > 1 {
		t.users--
	} else {
		delete(s.tenants, tenant)
	}
}
