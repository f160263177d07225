package proxy

import (
	"sync"
	"time"

	"metalfleet.dev/metalfleet/gateway/health"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/waiting"
)

const (
	// suspicionMin is how long a Mac that failed is left alone; each further
	// failure doubles it up to suspicionMax. The operator's own verdict comes
	// after 30 s.
	suspicionMin = 2 * time.Second
	suspicionMax = 16 * time.Second
)

// aheadOf is how many requests this gateway sends to a replica for each that
// runs there at once: as many again are there when one ends. The rest wait here,
// where turns are fair.
const aheadOf = 2

// book is what this gateway itself knows of replicas and Macs: what it sent
// where, who failed, and who waits. Counts of what runs are given back by the
// end of a request and by nothing else, however long it takes.
type book struct {
	now  func() time.Time
	pick pick.Policy
	// has says that there is a way to an endpoint; nil: there always is.
	has func(route.Endpoint) bool

	mu       sync.Mutex // guards all below
	replicas map[string]*load
	macs     map[string]suspicion
	models   map[route.Key]*modelLoad
	outliers health.Outliers
	room     *waiting.Room
	seats    map[*waiting.Waiter]*seat
	wakes    chan struct{} // of one: somebody began to wait
	begun    pick.Recent   // what prompts began with lately, of all models
	pruneAt  int
	// ahead is aheadOf; 0 where nobody can wait here: then replicas' own queues
	// take what they do.
	ahead int
}

type load struct {
	id       uint64
	inFlight int
	total    uint64
	used     time.Time
}

// modelLoad is what this gateway knows of a deployment.
type modelLoad struct {
	inFlight int
	begun    uint64         // requests that ever came
	prefixes map[uint64]int // in flight, by what their prompts begin with
	budget   health.Budget
	turn     uint64 // requests that were given a replica
}

// add counts requests that begin, or that end.
func (l *modelLoad) add(prefix uint64, n int) {
	l.inFlight += n
	if prefix == 0 {
		return
	}
	if l.prefixes[prefix] += n; l.prefixes[prefix] == 0 {
		delete(l.prefixes, prefix)
	}
}

type suspicion struct {
	until time.Time
	last  time.Duration
}

func newBook(l waiting.Limits) *book {
	ahead := aheadOf
	if l.Count == 0 {
		ahead = 0
	}
	return &book{ahead: ahead, now: time.Now, pick: pick.Choose, replicas: map[string]*load{}, macs: map[string]suspicion{}, models: map[route.Key]*modelLoad{},
		room: waiting.New(l), seats: map[*waiting.Waiter]*seat{}, wakes: make(chan struct{}, 1), pruneAt: 1024}
}

// grant is an endpoint on which a request is counted until release.
type grant struct {
	route.Endpoint
	release func()
}

// take chooses an endpoint now, and counts the request there. ok is false when
// every one is excluded or busy. Those who wait come first.
func (b *book) take(q *query) (g grant, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.prune(now)
	b.serve(q.model, now)
	return b.choose(q, now)
}

// choose is take; the lock is held.
func (b *book) choose(q *query, now time.Time) (grant, bool) {
	m, of := q.model, b.model(q.model.Key)
	endpoints := m.Endpoints()
	candidates := make([]pick.Candidate, len(endpoints))
	loads := b.loads(endpoints)
	for i, e := range endpoints {
		candidates[i] = pick.Candidate{ID: loads[i].id, InFlight: loads[i].inFlight, Total: loads[i].total, Excluded: q.excluded(e) || b.has != nil && !b.has(e),
			Most: b.ahead * int(e.Sequences), Slots: int(e.Sequences), Suspect: now.Before(b.macs[e.Mac].until), Cold: e.Cold, Retiring: e.Retiring}
	}
	b.suspectOutliers(endpoints, candidates, now)
	prefix := q.prefix
	prefix.InFlight, prefix.Known = of.prefixes[prefix.Shared], b.begun.Has(prefix.Shared)
	i, ok := b.pick(candidates, prefix, of.turn)
	if !ok {
		return grant{}, false
	}
	of.turn++
	l := loads[i]
	l.inFlight++
	l.total++
	l.used = now
	of.add(prefix.Shared, 1)
	if prefix.Shared != 0 {
		b.begun.Add(prefix.Shared)
	}
	return grant{endpoints[i], sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		l.inFlight--
		of.add(prefix.Shared, -1)
		b.serve(m, b.now())
	})}, true
}

// suspectOutliers marks the replicas whose requests fail.
func (b *book) suspectOutliers(endpoints []route.Endpoint, candidates []pick.Candidate, now time.Time) {
	if !b.outliers.Any() {
		return
	}
	uids := make([]string, len(endpoints))
	for i, e := range endpoints {
		uids[i] = e.Replica
	}
	for i, ejected := range b.outliers.Ejected(uids, now) {
		candidates[i].Suspect = candidates[i].Suspect || ejected
	}
}

func (b *book) model(key route.Key) *modelLoad {
	l := b.models[key]
	if l == nil {
		l = &modelLoad{prefixes: map[uint64]int{}}
		b.models[key] = l
	}
	return l
}

// asked counts a request's first try.
func (b *book) asked(key route.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.model(key)
	l.begun++
	l.budget.Request(b.now())
}

// mayRetry counts another try, or says that there were too many.
func (b *book) mayRetry(key route.Key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.model(key).budget.Retry(b.now())
}

// ended notes how a request ended at a replica, and says whether others are
// preferred from now on.
func (b *book) ended(replica string, failed bool) (ejected bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.outliers.Ended(replica, failed, b.now())
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
			out[i] = &load{id: pick.Hash([]byte(e.Replica)), total: least, used: b.now()}
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
	for key, l := range b.models {
		if l.inFlight == 0 && b.room.Len(key.String()) == 0 {
			delete(b.models, key)
		}
	}
	b.outliers.Prune(now)
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
