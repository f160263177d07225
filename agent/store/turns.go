package store

import (
	"context"
	"slices"
	"sync"
)

// turns are the downloads that run at once. One namespace never has all of them, so
// that sources that are slow, or never end, do not hold up the downloads of the others.
type turns struct {
	most int

	mu      sync.Mutex // guards what follows
	all     int
	running map[string]int // by namespace
	waiting []*turn        // in the order of their arrival
}

// turn is a download that waits until begun is closed.
type turn struct {
	namespace string
	begun     chan struct{}
}

func newTurns(most int) *turns { return &turns{most: most, running: map[string]int{}} }

// begin waits for a turn, which end gives back.
func (t *turns) begin(ctx context.Context, namespace string) (end func(), err error) {
	w := &turn{namespace, make(chan struct{})}
	t.change(func() { t.waiting = append(t.waiting, w) })
	end = func() { t.change(func() { t.ended(namespace) }) }
	select {
	case <-w.begun:
		return end, nil
	case <-ctx.Done():
	}
	t.change(func() {
		if at := slices.Index(t.waiting, w); at >= 0 {
			t.waiting = slices.Delete(t.waiting, at, at+1)
		} else { // it has begun just now
			t.ended(namespace)
		}
	})
	return nil, context.Cause(ctx)
}

func (t *turns) ended(namespace string) {
	t.all--
	if t.running[namespace]--; t.running[namespace] == 0 {
		delete(t.running, namespace)
	}
}

// change changes who runs and waits, and begins what may run then: of the namespace
// that has the fewest turns, the oldest one.
func (t *turns) change(what func()) {
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

// share is how many turns a namespace may have; an unknown one may have all.
func (t *turns) share(namespace string) int {
	if namespace == "" {
		return t.most
	}
	return max(1, t.most-1)
}
