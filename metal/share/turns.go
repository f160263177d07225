// Package share divides among tenants what an engine has of one kind: places for work that takes
// long (Turns), and bytes that requests hold (Bytes). It owns who gets how much and who is next; it
// knows no work and no memory. Without API keys there is one tenant, without a name, which may have
// all.
package share

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Turns are places that tenants share. A tenant alone may take all of them. One that is
// given back passes to the waiting tenant that has the fewest, of several to the one that had
// places for the shortest time; among requests of one tenant the first comes first. Time is
// counted as by start-time fair queueing (Goyal, Vin and Cheng, 1996): a tenant that comes begins with
// what is now served, so that neither the past of others nor its absence is of use to it, and with the
// usual time of a place more, so that those that come once do not keep one that returns from a place.
type Turns struct {
	mu sync.Mutex
	// All below are guarded by mu.
	free    int
	tenants map[string]*user
	waiting []*waiter     // one of each tenant that waits, in turn
	served  time.Duration // the start of the latest that got a place
	usual   time.Duration // the time of a place, on average of the latest
	spent   time.Duration // the time of all places since one was given back
	sweep   int           // how many tenants there are when those without use are next removed
}

// user is a tenant that has places, waits for one, or had them for longer than others.
type user struct {
	taken int
	since time.Time     // up to which used counts
	used  time.Duration // the time of its places, from the start that it came with
}

// waiter is a tenant that waits, with a channel for each of its requests that is closed
// when it has a place.
type waiter struct {
	tenant string
	queue  []chan struct{}
}

// leastSweep is how many tenants are not worth a sweep.
const leastSweep = 64

// NewTurns returns places, all of them free.
func NewTurns(places int) *Turns {
	return &Turns{free: places, tenants: map[string]*user{}, sweep: leastSweep}
}

// Take waits for a place. The error is that of ctx, also if a place is free when ctx has ended.
func (t *Turns) Take(ctx context.Context, tenant string) error { return t.take(ctx, tenant, true) }

// take waits for a place; a tenant that yielded its own does not come as others do.
func (t *Turns) take(ctx context.Context, tenant string, comes bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	i := slices.IndexFunc(t.waiting, func(w *waiter) bool { return w.tenant == tenant })
	if u := t.user(tenant); u.taken == 0 && i < 0 {
		start := t.served
		if comes {
			start += t.usual
		}
		u.used = max(u.used, start)
	}
	if t.free > 0 {
		t.free--
		t.serve(tenant)
		t.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	if i < 0 {
		i = len(t.waiting)
		t.waiting = append(t.waiting, &waiter{tenant: tenant})
	}
	t.waiting[i].queue = append(t.waiting[i].queue, mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.leave(tenant, mine) { // it has a place meanwhile
		t.giveLocked(tenant)
	}
	return ctx.Err()
}

// leave ends the wait of one request, and reports whether it still waited.
func (t *Turns) leave(tenant string, mine chan struct{}) bool {
	for i, w := range t.waiting {
		at := slices.Index(w.queue, mine)
		if w.tenant != tenant || at < 0 {
			continue
		}
		if w.queue = slices.Delete(w.queue, at, at+1); len(w.queue) == 0 {
			t.waiting = slices.Delete(t.waiting, i, i+1)
		}
		return true
	}
	return false
}

// Yield gives a tenant's place to another tenant that waits and had places for no longer, and then
// waits for one again; a place is kept if there is none. After an error, which is that of ctx, the
// tenant has none.
func (t *Turns) Yield(ctx context.Context, tenant string) error {
	t.mu.Lock()
	mine := t.user(tenant).used
	others := slices.ContainsFunc(t.waiting, func(w *waiter) bool { return w.tenant != tenant && t.user(w.tenant).used <= mine })
	if others {
		t.giveLocked(tenant)
	}
	t.mu.Unlock()
	if !others {
		return nil
	}
	return t.take(ctx, tenant, false)
}

// Give gives a tenant's place back.
func (t *Turns) Give(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveLocked(tenant)
}

func (t *Turns) giveLocked(tenant string) {
	t.user(tenant).taken--
	t.usual += (t.spent - t.usual) / 8
	t.spent = 0
	if len(t.waiting) == 0 {
		t.free++
		t.forget()
		return
	}
	next := 0
	for i, w := range t.waiting {
		if t.before(w.tenant, t.waiting[next].tenant) {
			next = i
		}
	}
	w := t.waiting[next]
	t.waiting = slices.Delete(t.waiting, next, next+1)
	close(w.queue[0])
	t.serve(w.tenant)
	if w.queue = w.queue[1:]; len(w.queue) > 0 {
		t.waiting = append(t.waiting, w)
	}
	t.forget()
}

// before reports whether a tenant is served before another one that came earlier.
func (t *Turns) before(tenant, earlier string) bool {
	a, b := t.user(tenant), t.user(earlier)
	if a.taken != b.taken {
		return a.taken < b.taken
	}
	return a.used < b.used
}

// serve counts a place that a tenant has from now on.
func (t *Turns) serve(tenant string) {
	u := t.user(tenant)
	u.taken++
	t.served = max(t.served, u.used)
}

// user returns a tenant, with its time up to now.
func (t *Turns) user(tenant string) *user {
	now, u := time.Now(), t.tenants[tenant]
	if u == nil {
		u = &user{since: now}
		t.tenants[tenant] = u
	}
	spent := time.Duration(u.taken) * now.Sub(u.since)
	u.used, u.since = u.used+spent, now
	t.spent += spent
	return u
}

// forget removes tenants that would come as new ones do.
func (t *Turns) forget() {
	if len(t.tenants) < t.sweep {
		return
	}
	maps.DeleteFunc(t.tenants, func(tenant string, u *user) bool {
		return u.taken == 0 && u.used <= t.served && !slices.ContainsFunc(t.waiting, func(w *waiter) bool { return w.tenant == tenant })
	})
	t.sweep = max(leastSweep, 2*len(t.tenants))
}

// Free is how many places no tenant has.
func (t *Turns) Free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.free
}

// Taken is how many places a tenant has.
func (t *Turns) Taken(tenant string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u := t.tenants[tenant]; u != nil {
		return u.taken
	}
	return 0
}
