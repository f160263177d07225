package store

import (
	"context"
	"slices"
	"sync"
)

// slots bound the number of downloads at a time. No namespace can use all of
// them, so that slow or endless sources of one do not block the downloads of
// others.
type slots struct {
	most int

	mu      sync.Mutex // guards what follows
	all     int
	running map[string]int // by namespace
	waiting []*waiter      // in the order of their arrival
}

// waiter is a download that waits until begun is closed.
type waiter struct {
	namespace string
	begun     chan struct{}
}

func newSlots(most int) *slots { return &slots{most: most, running: map[string]int{}} }

// acquire waits for a slot, which end returns.
func (t *slots) acquire(ctx context.Context, namespace string) (end func(), err error) {
	w := &waiter{namespace: namespace, begun: make(chan struct{})}
	t.change(func() { t.waiting = append(t.waiting, w) })
	end = func() { t.change(func() { t.release(namespace) }) }
	select {
	case <-w.begun:
		return end, nil
	case <-ctx.Done():
	}
	t.change(func() {
		if at := slices.Index(t.waiting, w); at >= 0 {
			t.waiting = slices.Delete(t.waiting, at, at+1)
		} else { // it has just got a slot
			t.release(namespace)
		}
	})
	return nil, context.Cause(ctx)
}

func (t *slots) release(namespace string) {
	t.all--
	if t.running[namespace]--; t.running[namespace] == 0 {
		delete(t.running, namespace)
	}
}

// change changes the running and waiting downloads, and starts what may run then:
// the oldest one of the namespace with the fewest slots.
func (t *slots) change(what func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	what()
	for t.all < t.most {
		next := -1
		for i, w := range t.waiting {
			if t.running[w.namespace] < t.share(w.namespace) && (next < 0 || t.running[w.namespace] < t.running[t.waiting[next].namespace]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := t.waiting[next]
		t.waiting = slices.Delete(t.waiting, next, next+1)
		t.all++
		t.running[w.namespace]++
		close(w.begun)
	}
}

// share is how many slots a namespace may use; an unknown one may use all.
func (t *slots) share(namespace string) int {
	if namespace == "" {
		return t.most
	}
	return max(1, t.most-1)
}
