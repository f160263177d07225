package proxy

import (
	"context"
	"errors"
	"sync"
)

// searchesEach is how many searches of one tenant may run and wait.
const searchesEach = 16

// errSearches means that a tenant has reached its limit of searches.
var errSearches = errors.New("too many searches for kept responses")

// searches bounds how many searches for stored responses run concurrently. A tenant alone
// may use all slots. Otherwise its searches queue among themselves, so that another tenant
// waits for at most one search of each; beyond searchesEach they are refused.
type searches struct {
	all chan struct{}

	mu      sync.Mutex
	tenants map[string]*searching // guarded by mu
}

// searching is a tenant with running searches.
type searching struct {
	places chan struct{}
	users  int // guarded by mu of searches
}

func newSearches(most int) *searches {
	return &searches{all: make(chan struct{}, most), tenants: map[string]*searching{}}
}

// begin waits for a slot, which end frees.
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
