package grammar

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// turns are places that tenants share. A tenant alone may take all of them. One that is
// given back passes to the waiting tenant that has the fewest, of several to the one
// whose turn it is; among requests of one tenant the first comes first.
type turns struct {
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

func newTurns(places int) *turns { return &turns{free: places, taken: map[string]int{}} }

// take waits for a place.
func (t *turns) take(ctx context.Context, tenant string) error {
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
func (t *turns) leave(tenant string, mine chan struct{}) bool {
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

// give gives a tenant's place back.
func (t *turns) give(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveLocked(tenant)
}

func (t *turns) giveLocked(tenant string) {
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

// inUse is how many places are taken.
func (t *turns) inUse() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, taken := range t.taken {
		n += taken
	}
	return n
}

// lane is a tenant's way to places: of the processors that long work on constraints may
// take while the others compute tokens, or of the constraints that are compiled at once.
// Places of processors are given back after each slice of work, so that none holds up
// another.
type lane struct {
	turns  *turns
	tenant string
}

func (l *lane) take(ctx context.Context) error { return l.turns.take(ctx, l.tenant) }
func (l *lane) give()                          { l.turns.give(l.tenant) }

// laneShare is the part of the processors that lanes have together.
const laneShare = 4

func newProcessors() *turns { return newTurns(max(1, runtime.GOMAXPROCS(0)/laneShare)) }
