package grammar

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/share"
)

// Cache keeps the compiled constraints of one vocabulary within a number of
// bytes. It never evicts those in use. Each tenant has its own entries, so that
// timing reveals nothing about other tenants' requests. If entries take too
// much memory, the tenant with the most loses its least recently used one.
type Cache struct {
	size  int
	spell func(id int32) []byte
	limit int64
	// processors are for what takes long.
	processors *share.Turns
	// quick and heavy have a place for each constraint that may be compiled at once. In a heavy
	// one, an answer may also be followed that needs many states.
	quick, heavy *share.Turns
	// making are the bytes of what is compiled now.
	making   atomic.Int64
	refused  *refusals
	returned returns
	vocab    func() *Vocabulary
	// used are the grammars in use, which are not evicted.
	used *share.Bytes
	// bytes of the entries, and states those of states and masks of the ones in use.
	bytes, states atomic.Int64

	mu sync.Mutex
	// All below are guarded by mu.
	entries map[cacheKey]*cached
	// compiling are the constraints that are compiled now.
	compiling map[cacheKey]*compilation
	// tenants that have entries.
	tenants map[string]*holdings
	turn    uint64
	words   int64 // bytes of the vocabulary, once it is there
}

// cacheKey is a constraint of a tenant.
type cacheKey struct {
	tenant string
	spec   [sha256.Size]byte
}

type cached struct {
	key   cacheKey
	table *Table
	users int
	used  uint64
	// idle is its place among its tenant's, if it has no users.
	idle *list.Element
}

// compilation is one constraint's; done is closed at its end, and err is good then.
type compilation struct {
	done chan struct{}
	err  error
}

const (
	// usedBytes bounds the grammars in use. The largest has about 10 MiB, one of fifty
	// functions 4.
	usedBytes = 48 << 20
	// MostBytes are those of all constraints that are compiled, and of masks. Grammars in use
	// or kept for later, and the vocabulary, are what Cache.Bytes counts.
	MostBytes = statesBytes + maxQuick*quickBytes + maxHeavy*heavyBytes
)

// ErrBusy is that of a constraint for which there is no memory while others are in use.
var ErrBusy = errors.New("other constraints in use take too much memory; try again, or use smaller constraints")

// errUnfinished is that of a compilation that ended in a panic.
var errUnfinished = errors.New("the constraint was not compiled")

// NewCache returns an empty cache; the vocabulary is sorted at the first
// constraint.
func NewCache(size int, spell func(id int32) []byte, limit int64) *Cache {
	c := &Cache{
		size: size, spell: spell, limit: limit, processors: newProcessors(), quick: share.NewTurns(maxQuick), heavy: share.NewTurns(maxHeavy), refused: newRefusals(),
		entries: map[cacheKey]*cached{}, compiling: map[cacheKey]*compilation{}, used: share.NewBytes(usedBytes), tenants: map[string]*holdings{},
	}
	c.vocab = sync.OnceValue(func() *Vocabulary {
		v := NewVocabulary(c.size, c.spell)
		c.mu.Lock()
		c.words = v.Bytes()
		c.mu.Unlock()
		c.returned.after(returnPause)
		return v
	})
	return c
}

// CountIn has the grammars in use count in another account as well. It is called before the first
// Table.
func (c *Cache) CountIn(all *share.Bytes) { c.used.Within(all) }

// Table returns the states of a tenant's constraint, compiled if need be; the caller
// calls release once it is done. The error is an *Error, ErrBusy, or that of ctx.
func (c *Cache) Table(ctx context.Context, tenant string, s Spec) (t *Table, release func(), err error) {
	if err := s.check(); err != nil { // the key is made of the whole text
		return nil, nil, err
	}
	k := cacheKey{tenant, s.key()}
	for {
		if e, err := c.take(k); err != nil {
			return nil, nil, err
		} else if e != nil {
			return e.table, c.releaser(e), nil
		}
		if err := c.refused.of(k); err != nil {
			return nil, nil, err
		}
		running, first := c.begin(k)
		if first {
			e, err := c.compileFirst(ctx, k, s)
			if err != nil {
				return nil, nil, err
			}
			return e.table, c.releaser(e), nil
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		var refused *Error
		if errors.As(running.err, &refused) {
			return nil, nil, refused
		} // else it is there now, or its client left
	}
}

// begin returns the compilation of a constraint, and reports whether it is the caller's.
func (c *Cache) begin(k cacheKey) (running *compilation, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if running := c.compiling[k]; running != nil {
		return running, false
	}
	running = &compilation{done: make(chan struct{})}
	c.compiling[k] = running
	return running, true
}

func (c *Cache) end(k cacheKey, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	running := c.compiling[k]
	delete(c.compiling, k)
	running.err = err
	close(running.done)
}

// compileFirst compiles for all that wait for the constraint. After a panic, which ends the
// request, they compile it themselves.
func (c *Cache) compileFirst(ctx context.Context, k cacheKey, s Spec) (e *cached, err error) {
	err = errUnfinished
	defer func() { c.end(k, err) }()
	return c.compile(ctx, k, s)
}

// enterUsed adds a grammar that is in use from now on.
func (c *Cache) enterUsed(k cacheKey, g *Grammar) (*cached, error) {
	e := &cached{key: k, table: newTable(g, c.vocab(), &lane{c.processors, k.tenant})}
	e.table.heavy = &lane{c.heavy, k.tenant}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.entries[k]; other != nil {
		e = other // another compilation ended after this one's request looked
	} else {
		c.enter(e)
	}
	err := c.use(e)
	if err != nil && e.idle == nil {
		c.remove(e)
	}
	c.shrink(0)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (c *Cache) take(k cacheKey) (*cached, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	if e == nil {
		return nil, nil
	}
	if err := c.use(e); err != nil {
		return nil, err
	}
	return e, nil
}

// use counts one more user. It is called with mu held.
func (c *Cache) use(e *cached) error {
	if e.users == 0 {
		if !c.used.Take(e.key.tenant, e.table.fixed()) {
			return ErrBusy
		}
		h := c.tenants[e.key.tenant]
		e.table.used.Store(true)
		h.use(e.table.bytes.Load())
		if e.idle != nil {
			h.idle.Remove(e.idle)
			e.idle = nil
		}
	}
	e.users++
	return nil
}

func (c *Cache) releaser(e *cached) func() {
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if e.users--; e.users == 0 {
			c.used.Give(e.key.tenant, e.table.fixed())
			h := c.tenants[e.key.tenant]
			e.table.used.Store(false)
			h.use(-e.table.bytes.Load())
			c.turn++
			e.used, e.idle = c.turn, h.idle.PushBack(e)
		}
		c.shrink(0)
	})
}

// Bytes that vocabulary, constraints, those that are compiled, and masks take now, about.
func (c *Cache) Bytes() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.words + c.bytes.Load() + c.making.Load()
}
