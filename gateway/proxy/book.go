package proxy

import (
	"sync"
	"time"

	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	// suspicionMin is how long a Mac that failed is left alone; each further
	// failure doubles it up to suspicionMax. The operator's own verdict comes
	// after 30 s.
	suspicionMin = 2 * time.Second
	suspicionMax = 16 * time.Second
)

// book is what this gateway itself knows of replicas and Macs: what it sent
// where, and who failed.
type book struct {
	now func() time.Time

	mu       sync.Mutex // guards all below
	replicas map[string]*load
	macs     map[string]suspicion
	turn     uint64
	pruneAt  int
}

type load struct {
	inFlight int
	total    uint64
	used     time.Time
}

type suspicion struct {
	until time.Time
	last  time.Duration
}

func newBook() *book {
	return &book{now: time.Now, replicas: map[string]*load{}, macs: map[string]suspicion{}, pruneAt: 1024}
}

// take chooses an endpoint and counts the request there until release. ok is
// false when every one is excluded.
func (b *book) take(endpoints []route.Endpoint, excluded func(route.Endpoint) bool) (e route.Endpoint, release func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.prune(now)
	candidates := make([]pick.Candidate, len(endpoints))
	loads := b.loads(endpoints)
	for i, e := range endpoints {
		candidates[i] = pick.Candidate{InFlight: loads[i].inFlight, Total: loads[i].total, Excluded: excluded(e),
			Suspect: now.Before(b.macs[e.Mac].until), Cold: e.Cold}
	}
	i, ok := pick.Best(candidates, b.turn)
	if !ok {
		return route.Endpoint{}, nil, false
	}
	b.turn++
	l := loads[i]
	l.inFlight++
	l.total++
	l.used = now
	return endpoints[i], sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		l.inFlight--
	}), true
}

// loads finds each endpoint's count. A new one starts at the least total of
// the others: it would otherwise get every request until it caught up.
func (b *book) loads(endpoints []route.Endpoint) []*load {
	out := make([]*load, len(endpoints))
	least, any := uint64(0), false
	for i, e := range endpoints {
		if out[i] = b.replicas[e.Replica]; out[i] != nil && (!any || out[i].total < least) {
			least, any = out[i].total, true
		}
	}
	for i, e := range endpoints {
		if out[i] == nil {
			out[i] = &load{total: least, used: b.now()}
			b.replicas[e.Replica] = out[i]
		}
	}
	return out
}

// prune forgets replicas that are long gone; never one with a request.
func (b *book) prune(now time.Time) {
	if len(b.replicas) < b.pruneAt {
		return
	}
	for uid, l := range b.replicas {
		if l.inFlight == 0 && now.Sub(l.used) > 10*time.Minute {
			delete(b.replicas, uid)
		}
	}
	b.pruneAt = max(1024, 2*len(b.replicas))
}

// suspect leaves a Mac alone for a while, because a connection to it failed.
// It says whether the Mac was trusted before.
func (b *book) suspect(mac string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	s := b.macs[mac]
	if now.Before(s.until) {
		return false // one failure breaks many requests, and counts once
	}
	s.last = min(max(2*s.last, suspicionMin), suspicionMax)
	s.until = now.Add(s.last)
	b.macs[mac] = s
	return true
}

// trust ends a suspicion: the Mac answered.
func (b *book) trust(mac string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.macs, mac)
}
