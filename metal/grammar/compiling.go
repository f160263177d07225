package grammar

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/metal/share"
)

// A constraint is compiled in a place, which stands for the bytes that it may hold meanwhile:
// all places together are the budget of all compilations. Tenants take turns at them. Most
// constraints are quick. One that turns out to be heavy drops what was made of it, leaves its
// place and begins again in a heavy one, so that nothing waits with memory in its hands.
const (
	// maxQuick constraints are compiled at once in quickBytes and quickWork, which takes some
	// ten milliseconds, and maxHeavy in heavyBytes.
	maxQuick, maxHeavy = 4, 1
	// returnPause is the time between two heavy constraints whose garbage is returned to the
	// system at once: that takes a collection.
	returnPause = 5 * time.Second
)

// compile compiles a constraint in the place that it needs.
func (c *Cache) compile(ctx context.Context, k cacheKey, s Spec) (*cached, error) {
	e, err := c.compileIn(ctx, c.quick, k, s)
	if errors.Is(err, errHeavy) {
		e, err = c.compileIn(ctx, c.heavy, k, s)
		c.returned.after(returnPause)
	}
	c.refused.add(k, err)
	return e, err
}

func (c *Cache) compileIn(ctx context.Context, places *share.Turns, k cacheKey, s Spec) (*cached, error) {
	if err := places.Take(ctx, k.tenant); err != nil {
		return nil, err
	}
	defer places.Give(k.tenant)
	m := newMeter(ctx, nil)
	m.all = &c.making
	if places == c.quick {
		m.isQuick, m.quick = true, compileWork-quickWork
	} else {
		m.lane = &lane{c.processors, k.tenant}
		c.mu.Lock()
		c.shrink(heavyBytes)
		c.mu.Unlock()
	}
	g, err := compile(m, s)
	if err != nil {
		return nil, err
	}
	return c.enterUsed(k, g)
}

// returns is when garbage was last returned to the system.
type returns struct {
	mu   sync.Mutex
	last time.Time
}

// after returns garbage if it was not within a pause.
func (r *returns) after(pause time.Duration) {
	r.mu.Lock()
	due := time.Since(r.last) >= pause
	if due {
		r.last = time.Now()
	}
	r.mu.Unlock()
	if due {
		debug.FreeOSMemory()
	}
}

const (
	// maxRefusals are remembered, each of at most refusalBytes.
	maxRefusals  = 512
	refusalBytes = 1 << 10
)

// refusals are the errors of constraints that are too large, so that the same text does not
// cost its work again. The oldest are forgotten first.
type refusals struct {
	mu sync.Mutex
	// mu guards errors and keys, which has the oldest first.
	errors map[cacheKey]*Error
	keys   []cacheKey
}

func newRefusals() *refusals { return &refusals{errors: map[cacheKey]*Error{}} }

// of is the error of a constraint; nil if none is remembered.
func (r *refusals) of(k cacheKey) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.errors[k]; e != nil {
		return e
	}
	return nil
}

// add remembers that a constraint is too large, if that is what the error says.
func (r *refusals) add(k cacheKey, err error) {
	var refused *Error
	if !errors.As(err, &refused) || !errors.Is(refused, errLimit) || len(refused.Error())+len(k.tenant) > refusalBytes {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.errors[k] == nil {
		r.keys = append(r.keys, k)
	}
	r.errors[k] = refused
	if len(r.keys) > maxRefusals {
		delete(r.errors, r.keys[0])
		r.keys = r.keys[1:]
	}
}
