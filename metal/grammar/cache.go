package grammar

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Cache keeps the compiled constraints of one vocabulary, those used last, within
// a number of bytes. Those in use stay, whatever they take.
type Cache struct {
	size  int
	spell func(id int32) []byte
	limit int64
	// compiling holds one place: constraints are compiled one after another, so
	// that hostile ones take one processor and no more.
	compiling chan struct{}
	vocab     func() *Vocabulary

	mu sync.Mutex
	// All below are guarded by mu.
	entries map[[sha256.Size]byte]*cached
	turn    uint64
	words   int64 // bytes of the vocabulary, once it is there
}

type cached struct {
	table *Table
	users int
	used  uint64
}

// NewCache makes an empty one; the vocabulary is sorted at the first constraint.
func NewCache(size int, spell func(id int32) []byte, limit int64) *Cache {
	c := &Cache{size: size, spell: spell, limit: limit, compiling: make(chan struct{}, 1), entries: map[[sha256.Size]byte]*cached{}}
	c.vocab = sync.OnceValue(func() *Vocabulary {
		v := NewVocabulary(c.size, c.spell)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.words = v.Bytes()
		return v
	})
	return c
}

// Table returns the states of a constraint, compiled if need be; the caller calls
// release once it is done. The error is an *Error, or that of ctx.
func (c *Cache) Table(ctx context.Context, s Spec) (t *Table, release func(), err error) {
	k := s.key()
	if e := c.take(k); e != nil {
		return e.table, c.releaser(e), nil
	}
	select {
	case c.compiling <- struct{}{}:
		defer func() { <-c.compiling }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if e := c.take(k); e != nil { // while this one waited
		return e.table, c.releaser(e), nil
	}
	g, err := Compile(s)
	if err != nil {
		return nil, nil, err
	}
	e := &cached{table: NewTable(g, c.vocab()), users: 1}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn++
	e.used = c.turn
	c.entries[k] = e
	c.shrink()
	return e.table, c.releaser(e), nil
}

func (c *Cache) take(k [sha256.Size]byte) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	if e != nil {
		c.turn++
		e.users++
		e.used = c.turn
	}
	return e
}

func (c *Cache) releaser(e *cached) func() {
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		e.users--
		c.shrink()
	})
}

// shrink forgets whoever was used longest ago, while all take too much; it is
// called with mu held.
func (c *Cache) shrink() {
	all := c.words
	for _, e := range c.entries {
		all += e.table.Bytes()
	}
	for all > c.limit {
		var oldest *cached
		var key [sha256.Size]byte
		for k, e := range c.entries {
			if e.users == 0 && (oldest == nil || e.used < oldest.used) {
				oldest, key = e, k
			}
		}
		if oldest == nil {
			return
		}
		all -= oldest.table.Bytes()
		delete(c.entries, key)
	}
}

// Bytes that vocabulary, constraints and masks take now, about.
func (c *Cache) Bytes() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.words
	for _, e := range c.entries {
		all += e.table.Bytes()
	}
	return all
}

// key tells constraints apart.
func (s Spec) key() (k [sha256.Size]byte) {
	h := sha256.New()
	text := func(parts ...string) {
		for _, p := range parts {
			binary.Write(h, binary.LittleEndian, int64(len(p)))
			io.WriteString(h, p)
		}
	}
	fmt.Fprintf(h, "%d %d ", s.Kind, len(s.Choices))
	text(s.Source)
	text(s.Choices...)
	if s.Calls != nil {
		if err := json.NewEncoder(h).Encode(s.Calls); err != nil {
			panic(fmt.Sprintf("calls cannot be encoded: %v", err))
		}
	}
	if s.Else != nil {
		other := s.Else.key()
		h.Write(other[:])
	}
	h.Sum(k[:0])
	return k
}
