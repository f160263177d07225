package proxy

import (
	"maps"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/gateway/route"
)

// Demand fills a report for the operator: what runs and waits, counted at one
// time.
func (p *Proxy) Demand(r *demand.Report) { p.book.demand(r) }

// Wakes is sent something when a request begins to wait.
func (p *Proxy) Wakes() <-chan struct{} { return p.book.wakes }

func (b *book) demand(r *demand.Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	waits := map[string]struct {
		count  int
		oldest time.Duration
	}{}
	for _, q := range b.room.Queues() {
		w := waits[q.Model]
		w.count, w.oldest = q.Count, now.Sub(q.Oldest)
		waits[q.Model] = w
	}
	r.Models, r.Replicas = nil, map[string]int{}
	for _, key := range slices.SortedFunc(maps.Keys(b.models), route.Key.Compare) {
		l, w := b.models[key], waits[key.String()]
		r.Models = append(r.Models, demand.Model{Namespace: key.Namespace, Name: key.Name, Running: l.inFlight, Waiting: w.count,
			OldestMillis: max(0, w.oldest.Milliseconds()), Begun: l.begun})
	}
	for uid, l := range b.replicas {
		if l.inFlight > 0 {
			r.Replicas[uid] = l.inFlight
		}
	}
}

// begunToWait has the operator be told soon.
func (b *book) begunToWait() {
	select {
	case b.wakes <- struct{}{}:
	default: // it is about to be told
	}
}

// startsIn is when the first replica of a model that has none is thought to
// take requests: it was asked for when the first of those came who wait.
func (b *book) startsIn(m *route.Model, now time.Time) (time.Duration, bool) {
	takes := m.StartTime()
	if takes == 0 || len(m.Endpoints()) > 0 {
		return 0, false
	}
	since := now
	if oldest, any := b.room.Oldest(m.Key.String()); any {
		since = oldest
	}
	return max(time.Second, since.Add(takes).Sub(now)), true
}
