// Package share divides among tenants what an engine has of one kind: places for work that takes
// long (Turns), and bytes that requests hold (Bytes). It owns who gets how much and who is next; it
// knows no work and no memory. Without API keys there is one tenant, without a name, which may have
// all.
package share

import (
	"context"
	"slices"
	"sync"
)

// Turns are places that tenants share. A tenant alone may take all of them. One that is
// given back passes to the waiting tenant that has the fewest, of several to the one
// whose turn it is; among requests of one tenant the first comes first.
type Turns struct {
	mu sync.Mutex
	// All below are guarded by mu.
	free    int
	taken   map[string]int
	waiting []*waiter // one of each tenant that waits, in turn
}

// waiter is a tenant that waits, with a channel for each of its requests that is closed
// when it has a place.
type waiter struct {
	tenant string
	queue  []chan struct{}
}

// NewTurns returns places, all of them free.
func NewTurns(places int) *Turns { return &Turns{free: places, taken: map[string]int{}} }

// Take waits for a place. The error is that of ctx, also if a place is free when ctx has ended.
func (t *Turns) Take(ctx context.Context, tenant string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.taken[tenant]++
		t.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	i := slices.IndexFunc(t.waiting, func(w *waiter) bool { return w.tenant == tenant })
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

// Yield gives a tenant's place to another tenant that waits, and then waits for one again; a
// place is kept if none waits. After an error, which is that of ctx, the tenant has none.
func (t *Turns) Yield(ctx context.Context, tenant string) error {
	t.mu.Lock()
	others := slices.ContainsFunc(t.waiting, func(w *waiter) bool { return w.tenant != tenant })
	if others {
		t.giveLocked(tenant)
	}
	t.mu.Unlock()
	if !others {
		return nil
	}
	return t.Take(ctx, tenant)
}

// Give gives a tenant's place back.
func (t *Turns) Give(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveLocked(tenant)
}

func (t *Turns) giveLocked(tenant string) {
	if t.taken[tenant]--; t.taken[tenant] == 0 {
		delete(t.taken, tenant)
	}
	if len(t.waiting) == 0 {
		t.free++
		return
	}
	next := 0
	for i, w := range t.waiting {
		if t.taken[w.tenant] < t.taken[t.waiting[next].tenant] {
			next = i
		}
	}
	w := t.waiting[next]
	t.waiting = slices.Delete(t.waiting, next, next+1)
	close(w.queue[0])
	t.taken[w.tenant]++
	if w.queue = w.queue[1:]; len(w.queue) > 0 {
		t.waiting = append(t.waiting, w)
	}
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
	return t.taken[tenant]
}
