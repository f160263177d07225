package dispatch

import (
	"maps"
	"time"

	"metalfleet.dev/metalfleet/gateway/health"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	// avoidMin is how long a Mac is avoided after a failure; each further failure doubles
	// it, up to avoidMax. The operator notices a failed Mac only after 30 s.
	avoidMin = 2 * time.Second
	avoidMax = 16 * time.Second
	// slotsPerSequence is how many requests this gateway sends to a replica per concurrent
	// sequence, so that the next request is there when one ends. The rest wait here, where
	// the queue is fair.
	slotsPerSequence = 2
	// mostGuests is how many sequences of tenants with less than their part of a replica may exceed that
	// there, or one per sequence if that is more: an engine shares its sequences between the tenants that
	// wait there, and here they would wait until an answer ends. It is half of what waits there.
	// Tenants with a request there leave half of it to those without.
	mostGuests = 32
	// guestTime is how long such a request counts as that at most: by then the engine has given it a
	// turn, and answers without an end would keep other tenants away. The engine's queue bounds them then.
	guestTime = 30 * time.Second
	// pruneEvery is how often what is not used any more is dropped.
	pruneEvery = 10 * time.Second
	// forgetAfter is how long an unused replica is remembered.
	forgetAfter = 10 * time.Minute
	// reportModel is how long a deployment without requests is named in reports. Its metric
	// series stay while it exists: autoscalers need the zeros.
	reportModel = time.Minute
)

// slots is this gateway's knowledge of replicas and Macs: the requests in flight at each,
// and which ones failed. It is not safe for concurrent use.
type slots struct {
	pick     pick.Policy
	canReach func(route.Endpoint) bool
	// perSequence is slotsPerSequence; 0 if requests cannot wait here: then any number is
	// sent to the replicas, which have queues of their own.
	perSequence int

	replicas map[string]*replicaLoad
	models   map[route.Key]*modelLoad
	macs     map[string]avoidance
	outliers health.Outliers
	rejected health.Rejections
	recent   pick.Recent // recently used prompt prefixes of all models
	pruned   time.Time
}

// replicaLoad counts the requests that this gateway sent to a replica.
type replicaLoad struct {
	id       uint64
	inFlight int
	guests   int       // sequences beyond the limit, see mostGuests
	probed   time.Time // until then a request keeps others away while it is proving, see judge
	total    uint64
	used     time.Time
	tenants  map[string]int // in flight, by tenant
	answer   time.Duration  // how long an answer takes, on average
	took     time.Duration  // the same of all requests that it did not reject
	rejected lingering      // requests that it rejected or failed a moment ago, see linger
	brief    lingering      // requests that count for longer than they took, see lingerBrief
}

// modelLoad counts the requests that this gateway received for a deployment.
type modelLoad struct {
	of       *route.Model
	used     time.Time // when a request last arrived or received a slot
	inFlight int
	begun    uint64                    // in total
	prefixes map[uint64]int            // in flight, by prompt prefix
	tenants  map[string]int            // in flight, by tenant
	budgets  map[string]*health.Budget // of retries, by tenant
	seq      uint64                    // requests that received a slot
}

// add counts the slots of a request that begins (n > 0) or ends (n < 0).
func (l *modelLoad) add(prefix uint64, tenant string, n int) {
	l.inFlight += n
	count(l.tenants, tenant, n)
	if prefix != 0 {
		count(l.prefixes, prefix, n)
	}
}

// add counts the slots of a request that begins (n > 0) or ends (n < 0).
func (l *replicaLoad) add(tenant string, n int) {
	l.inFlight += n
	count(l.tenants, tenant, n)
}

// count adds n to the count of a key.
func count[K comparable](counts map[K]int, of K, n int) {
	if counts[of] += n; counts[of] == 0 {
		delete(counts, of)
	}
}

type avoidance struct {
	until time.Time
	last  time.Duration
}

func newSlots(c Config) *slots {
	s := &slots{pick: c.Pick, canReach: c.CanReach, perSequence: slotsPerSequence,
		replicas: map[string]*replicaLoad{}, models: map[route.Key]*modelLoad{}, macs: map[string]avoidance{}}
	if s.pick == nil {
		s.pick = pick.Choose
	}
	if s.canReach == nil {
		s.canReach = func(route.Endpoint) bool { return true }
	}
	if c.Queue.Count == 0 {
		s.perSequence = 0
	}
	return s
}

// choice is the replica for a request.
type choice struct {
	at      route.Endpoint
	load    *replicaLoad
	model   *modelLoad
	isProbe bool // the replica is proving
}

// choose chooses a replica. ok is false if every replica is excluded or busy.
func (s *slots) choose(r *Request, now time.Time) (c choice, ok bool) {
	model := s.model(r.model, now)
	endpoints := r.model.Endpoints()
	candidates := make([]pick.Candidate, len(endpoints))
	loads := s.loads(endpoints, now)
	mayBeGuest, usual := s.mayBeGuest(r, s.size(endpoints)), s.usualRejections(endpoints, loads)
	for i, e := range endpoints {
		rejected := loads[i].more(usual)
		candidates[i] = pick.Candidate{ID: loads[i].id, InFlight: loads[i].inFlight, Rejected: rejected, Brief: loads[i].brief.n, Total: loads[i].total, Excluded: r.excluded(e) || !s.canReach(e),
			Max: s.limit(e, loads[i], rejected, mayBeGuest && loads[i].mayBeGuest(r.Owner, e)), Slots: int(e.Sequences), Suspect: now.Before(s.macs[e.Mac].until) || r.avoids(e), Cold: e.Cold, Retiring: e.Retiring}
	}
	proving := s.judge(r, endpoints, loads, candidates, now)
	prefix := r.Prefix
	prefix.InFlight, prefix.Known = model.prefixes[prefix.Shared], s.recent.Has(prefix.Shared)
	i, ok := s.pick(candidates, prefix, model.seq)
	if !ok {
		return choice{}, false
	}
	return choice{endpoints[i], loads[i], model, proving != nil && proving[i]}, true
}

// free reports whether there is a slot for a request.
func (s *slots) free(r *Request, now time.Time) bool {
	_, ok := s.choose(r, now)
	return ok
}

// take chooses a replica and counts the request there until free is called, and that of a guest as
// one until settle is called, which is nil for others. ok is false if every replica is excluded or busy.
func (s *slots) take(r *Request, now time.Time) (at route.Endpoint, free, settle func(), ok bool) {
	c, ok := s.choose(r, now)
	if !ok {
		return route.Endpoint{}, nil, nil, false
	}
	l, model, prefix, weight := c.load, c.model, r.Prefix.Shared, max(1, r.Sequences)
	model.seq++
	model.used = now
	asGuest := 0
	if limit := s.limit(c.at, l, 0, false); limit > 0 && l.inFlight >= limit {
		asGuest = weight
		settle = func() { l.guests, asGuest = l.guests-asGuest, 0 }
	}
	var probed time.Time
	if c.isProbe && r.OnlyMac == "" { // else no other replica can serve it
		probed = now.Add(lingerFor(OutcomeRejected, s.usualAnswer(r.model.Endpoints()), 0))
		l.probed = probed
	}
	l.guests += asGuest
	l.add(r.Owner, weight)
	l.total++
	l.used = now
	model.add(prefix, r.Owner, weight)
	if prefix != 0 {
		s.recent.Add(prefix)
	}
	return c.at, func() {
		l.guests, asGuest = l.guests-asGuest, 0
		if l.probed.Equal(probed) {
			l.probed = time.Time{}
		}
		l.add(r.Owner, -weight)
		model.add(prefix, r.Owner, -weight)
	}, settle, true
}

// limit returns how many requests a replica may have in flight for another one to be sent
// there; 0 means any number. rejected is how many more count there
// than usual.
func (s *slots) limit(e route.Endpoint, l *replicaLoad, rejected int, guest bool) int {
	limit := s.perSequence * int(e.Sequences)
	if guest && limit > 0 && l.guests < guestsAt(e) {
		return max(limit, l.inFlight+rejected+1)
	}
	return limit
}

// runs returns how many slots of a model the tenant of a request has.
func (s *slots) runs(r *Request) int {
	if l := s.models[r.model.Key]; l != nil {
		return l.tenants[r.Owner]
	}
	return 0
}

// size returns how many slots replicas have.
func (s *slots) size(endpoints []route.Endpoint) (n int) {
	for _, e := range endpoints {
		n += s.perSequence * int(e.Sequences)
	}
	return n
}

// mayBeGuest reports whether a request is sent at once to a replica where its tenant has less than its part:
// while it has less of the model's slots too, which others may hold for long.
func (s *slots) mayBeGuest(r *Request, size int) bool {
	l := s.models[r.model.Key]
	return r.Owner != "" && (l == nil || l.tenants[r.Owner]*len(l.tenants) < size)
}

// mayBeGuest reports whether a tenant has less than its part of a replica, and leaves enough places to
// tenants without a slot there.
func (l *replicaLoad) mayBeGuest(tenant string, e route.Endpoint) bool {
	runs := l.tenants[tenant]
	return runs == 0 || runs*len(l.tenants) < slotsPerSequence*int(e.Sequences) && l.guests < guestsAt(e)/2
}

// guestsAt returns how many guests a replica may have, see mostGuests.
func guestsAt(e route.Endpoint) int { return max(mostGuests, int(e.Sequences)) }

func uidsOf(endpoints []route.Endpoint) []string {
	out := make([]string, len(endpoints))
	for i, e := range endpoints {
		out[i] = e.Replica
	}
	return out
}

func (s *slots) model(m *route.Model, now time.Time) *modelLoad {
	l := s.models[m.Key]
	if l == nil {
		l = &modelLoad{used: now, prefixes: map[uint64]int{}, tenants: map[string]int{}, budgets: map[string]*health.Budget{}}
		s.models[m.Key] = l
	}
	l.of = m // the deployment may have been created again
	return l
}

// began counts a request for a model.
func (s *slots) began(r *Request, now time.Time) {
	l := s.model(r.model, now)
	l.used = now
	l.begun++
	l.budget(r.Owner).Request(now)
}

// budget returns the retry budget of a tenant.
func (l *modelLoad) budget(tenant string) *health.Budget {
	b := l.budgets[tenant]
	if b == nil {
		b = &health.Budget{}
		l.budgets[tenant] = b
	}
	return b
}

// loads returns the load of each endpoint. A new one starts at the lowest total of the
// others: otherwise it would get every request until it caught up.
func (s *slots) loads(endpoints []route.Endpoint, now time.Time) []*replicaLoad {
	out := make([]*replicaLoad, len(endpoints))
	least, any := uint64(0), false
	for i, e := range endpoints {
		if out[i] = s.replicas[e.Replica]; out[i] != nil && (!any || out[i].total < least) {
			least, any = out[i].total, true
		}
	}
	for i, e := range endpoints {
		if out[i] == nil {
			out[i] = &replicaLoad{id: pick.Hash([]byte(e.Replica)), total: least, used: now, tenants: map[string]int{}}
			s.replicas[e.Replica] = out[i]
		}
	}
	return out
}

// prune drops, from time to time, replicas and Macs that have not been used for long, and
// models that are deleted; never one with a request. It returns false if it is not time yet.
func (s *slots) prune(now time.Time, waits func(route.Key) bool) bool {
	if now.Sub(s.pruned) < pruneEvery {
		return false
	}
	s.pruned = now
	for uid, l := range s.replicas {
		if l.inFlight == 0 && now.Sub(l.used) > forgetAfter {
			delete(s.replicas, uid)
		}
	}
	for key, l := range s.models {
		maps.DeleteFunc(l.budgets, func(_ string, b *health.Budget) bool { return b.Idle(now) })
		if l.inFlight == 0 && !waits(key) && l.of.Gone() {
			delete(s.models, key)
		}
	}
	for mac, a := range s.macs {
		if now.Sub(a.until) > forgetAfter {
			delete(s.macs, mac)
		}
	}
	s.outliers.Prune(now)
	s.rejected.Prune(now)
	return true
}

// avoid avoids a Mac for a while. It returns false if it was avoided already.
func (s *slots) avoid(mac string, now time.Time) bool {
	a := s.macs[mac]
	if now.Before(a.until) {
		return false // a single connection failure fails many requests; count it once
	}
	a.last = min(max(2*a.last, avoidMin), avoidMax)
	a.until = now.Add(a.last)
	s.macs[mac] = a
	return true
}
