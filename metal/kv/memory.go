package kv

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"

	"metalfleet.dev/metalfleet/metal/pages"
)

// Stats is what a Memory did since it was made, and what it holds now.
type Stats struct {
	// Bytes and Blocks that are held, and Budget of the former.
	Bytes, Budget int64
	Blocks        int
	// Hits and Misses of View and Read.
	Hits, Misses int64
	// Held were taken in, Dropped had no room; for Prepared ones it was made ahead.
	Held, Dropped, Prepared int64
	// Fetched came from the tier below, Damaged were found corrupt there.
	Fetched, Damaged int64
	// Evicted made room for others or for a smaller budget.
	Evicted int64
	// Offered to the tier below, each once; Refused of them it did not take, and
	// Lost left without being offered.
	Offered, Refused, Lost int64
}

// Memory is the tier in RAM. What it holds lies outside the Go heap, so that it
// is the system's again the moment it goes; the total is exact at any time. The
// least recently used of the tenant that has the most goes first, save what a running
// request counts on, and never what is being read.
//
// Over a lower tier it writes behind: what came in is offered there once, by
// Behind as soon as it can, else when it leaves.
type Memory struct {
	lower Tier
	// dirtied wakes Behind.
	dirtied chan struct{}

	mu sync.Mutex
	// All below are guarded by mu.
	held map[Key]*block
	// used holds blocks, the most recently used in front.
	used *list.List
	// dirty blocks in the order they came.
	dirty []*block
	// bytes that are held by blocks, those that come or go included; counted of
	// them are those that running requests count on or that are being read.
	bytes, counted, budget int64
	// tenants that have blocks, and how many bytes ever came in.
	tenants map[Tenant]*tenancy
	came    int64
	// epoch grows with each Clear: what began to come before it does not
	// appear after it.
	epoch int64
	// distrusts counts calls of Distrust.
	distrusts int64
	closed    bool
	stats     Stats
	ahead     ahead
	// pin makes memory quick to copy, and pinned undoes it, by where the memory
	// begins. The latter is guarded by mu, the former never changes.
	pin    func([]byte) (unpin func())
	pinned map[*byte]func()
}

// block is what lies under a key.
type block struct {
	key     Key
	mapping []byte
	at      *list.Element
	// holders are requests that count on it, readers those that read it now.
	holders, readers int
	// dirty was not offered below yet; gone is under no key any more and goes with
	// its last reader.
	dirty, gone bool
}

func (b *block) size() int64 { return pages.Held(int64(len(b.mapping))) }

// NewMemory makes an empty tier of so many bytes over lower, which may be nil.
func NewMemory(budget int64, lower Tier) *Memory {
	return &Memory{lower: lower, budget: max(0, budget), held: map[Key]*block{}, tenants: map[Tenant]*tenancy{}, used: list.New(), dirtied: make(chan struct{}, 1)}
}

// Stats reads the counters.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Bytes, s.Budget, s.Blocks = m.bytes, m.budget, len(m.held)
	return s
}

// Bytes is what is held now.
func (m *Memory) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Counted is how much of that requests count on, or read.
func (m *Memory) Counted() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counted
}

// Put implements Tier.
func (m *Memory) Put(key Key, payload []byte) Saved {
	saved, _ := m.Make(key, int64(len(payload)), func(dst []byte) error {
		copy(dst, payload)
		return nil
	})
	return saved
}

// Offer implements Tier.
func (m *Memory) Offer(key Key, n int64, fill func([]byte) error) (Saved, error) {
	return m.Make(key, n, fill)
}

// Await implements Tier: memory always takes blocks.
func (m *Memory) Await(ctx context.Context) error { return ctx.Err() }

// Distrust implements Tier: all of it goes, here and below, and what is on its way
// down when it gets there.
func (m *Memory) Distrust() {
	m.Clear()
	m.mu.Lock()
	m.distrusts++
	m.mu.Unlock()
	if m.lower != nil {
		m.lower.Distrust()
	}
}

// down lets put take a block below.
func (m *Memory) down(put func() Saved) Saved {
	distrusts := func() int64 {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.distrusts
	}
	before := distrusts()
	saved := put()
	if distrusts() != before {
		m.lower.Distrust()
	}
	return saved
}

// Make has fill write the n bytes of a key where they will lie. What is there
// already is not made again. After an error of fill, nothing is there.
func (m *Memory) Make(key Key, n int64, fill func([]byte) error) (Saved, error) {
	return m.make(key, n, fill, m.lower != nil)
}

func (m *Memory) make(key Key, n int64, fill func([]byte) error, dirty bool) (Saved, error) {
	m.mu.Lock()
	if b := m.held[key]; b != nil {
		m.touch(b)
		m.mu.Unlock()
		return Held, nil
	}
	epoch := m.epoch
	m.mu.Unlock()
	mapping, ok := m.room(n)
	if !ok {
		return m.past(key, n, fill, dirty)
	}
	b := &block{key: key, mapping: mapping, dirty: dirty}
	err := fill(mapping)
	m.mu.Lock()
	other := m.held[key]
	if err == nil && epoch == m.epoch && !m.closed && other == nil {
		m.stats.Held++
		m.enter(b)
		if b.dirty {
			m.dirty = append(m.dirty, b)
			m.wake()
		}
		over := m.bytes > m.budget
		m.mu.Unlock()
		if over { // the budget became smaller meanwhile
			m.shrink()
		}
		return Held, nil
	}
	m.mu.Unlock()
	m.free(b)
	switch {
	case err != nil:
		return Dropped, err
	case other != nil:
		return Held, nil
	}
	return m.drop(), nil
}

func (m *Memory) drop() Saved {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Dropped++
	return Dropped
}

// past is what becomes of a block that there is no room for: it is offered
// below.
func (m *Memory) past(key Key, n int64, fill func([]byte) error, dirty bool) (Saved, error) {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if !dirty || closed {
		return m.drop(), nil
	}
	saved, err := m.lower.Offer(key, n, fill)
	if err != nil {
		return Dropped, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Offered++
	if saved == Dropped {
		m.stats.Refused++
		m.stats.Dropped++
	}
	return saved, nil
}

// leave offers a block that was taken out below, and gives its memory back. It
// says whether it went without loss.
func (m *Memory) leave(b *block) bool {
	kept := m.offer(b)
	m.free(b)
	return kept
}

// offer offers a block that was taken out below if that was not done yet, and says
// whether it went without loss. Whoever wants the memory waits for no disk.
func (m *Memory) offer(b *block) bool {
	if !m.claim(b) {
		return true
	}
	return m.offered(m.down(func() Saved {
		saved, _ := m.lower.Offer(b.key, int64(len(b.mapping)), func(dst []byte) error {
			copy(dst, b.mapping)
			return nil
		})
		return saved
	}))
}

// claim says that whoever calls is the one to offer a block.
func (m *Memory) claim(b *block) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := b.dirty
	b.dirty = false
	return was
}

// offered counts what became of a block below, and says whether it is there.
func (m *Memory) offered(saved Saved) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Offered++
	if saved == Dropped {
		m.stats.Refused++
	}
	return saved != Dropped
}

// free gives the memory of a block back.
func (m *Memory) free(b *block) { m.unmap(b.mapping) }

// Size implements Tier.
func (m *Memory) Size(key Key) (int64, bool) {
	m.mu.Lock()
	b := m.held[key]
	m.mu.Unlock()
	if b != nil {
		return int64(len(b.mapping)), true
	}
	if m.lower != nil {
		return m.lower.Size(key)
	}
	return 0, false
}

// Has says whether a key is held here, whatever lies below.
func (m *Memory) Has(key Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held[key] != nil
}

// Read implements Tier.
func (m *Memory) Read(ctx context.Context, key Key, dst []byte) error {
	if v, err := m.View(key); err == nil {
		defer v.Close()
		if len(dst) != len(v.Bytes()) {
			return fmt.Errorf("%d bytes to read %d into", len(dst), len(v.Bytes()))
		}
		copy(dst, v.Bytes())
		return nil
	}
	if m.lower == nil {
		return ErrAbsent
	}
	return m.lower.Read(ctx, key, dst)
}

// Fetch brings what lies below here, if there is room for it.
func (m *Memory) Fetch(ctx context.Context, key Key) error {
	if m.Has(key) {
		return nil
	}
	if m.lower == nil {
		return ErrAbsent
	}
	n, ok := m.lower.Size(key)
	if !ok {
		return ErrAbsent
	}
	saved, err := m.make(key, n, func(dst []byte) error { return m.lower.Read(ctx, key, dst) }, false)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case errors.Is(err, ErrCorrupt):
		m.stats.Damaged++
	case err == nil && saved == Dropped:
		return fmt.Errorf("no room for %d bytes: %w", n, ErrAbsent)
	case err == nil:
		m.stats.Fetched++
	}
	return err
}

// View is a block that stays while it is read.
type View struct {
	m *Memory
	b *block
}

// Bytes of the block; nobody changes them.
func (v *View) Bytes() []byte { return v.b.mapping }

// Close ends the reading. Closing twice is a fault.
func (v *View) Close() { v.m.read(v.b) }

// View reads a block where it lies. ErrAbsent.
func (m *Memory) View(key Key) (*View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.held[key]
	if b == nil {
		m.stats.Misses++
		return nil, ErrAbsent
	}
	m.stats.Hits++
	m.count(b)
	b.readers++
	m.touch(b)
	return &View{m: m, b: b}, nil
}

// count adds what is about to be held or read for the first time. It is called
// with mu held.
func (m *Memory) count(b *block) {
	if b.holders+b.readers == 0 {
		m.counted += b.size()
	}
}

// read ends one reading. A block that went meanwhile goes with its last reader.
func (m *Memory) read(b *block) {
	m.mu.Lock()
	b.readers--
	last := b.readers == 0
	if last && (b.gone || b.holders == 0) {
		m.counted -= b.size()
	}
	gone := b.gone
	m.mu.Unlock()
	if last && gone {
		m.leave(b)
	}
}

// Holding is one request's claim on a block.
type Holding struct{ b *block }

// Hold says that a request counts on a block until Unhold: it does not make room
// for others, and goes only where memory is given back. false where it is not
// here.
func (m *Memory) Hold(key Key) (Holding, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.held[key]
	if b == nil {
		return Holding{}, false
	}
	m.count(b)
	b.holders++
	m.touch(b)
	return Holding{b}, true
}

// Unhold ends the claims on a chain of blocks, in its order. The first become
// the most recently used, since the later ones are worth nothing without them.
// A block that went in between is ignored, whatever lies under its key now.
func (m *Memory) Unhold(chain []Holding) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(chain) - 1; i >= 0; i-- {
		b := chain[i].b
		b.holders--
		if b.gone {
			continue
		}
		if b.holders+b.readers == 0 {
			m.counted -= b.size()
		}
		m.touch(b)
	}
}

// Resize changes the budget at once, and says how many bytes came back,
// measured. What is being read follows when it was read.
func (m *Memory) Resize(budget int64) int64 {
	m.mu.Lock()
	m.budget = max(0, budget)
	m.mu.Unlock()
	return m.shrink()
}

// Shed gives back at least so many bytes, if as many can go, and says how many
// those were. The budget stays.
func (m *Memory) Shed(bytes int64) int64 {
	m.mu.Lock()
	target := max(0, m.bytes-bytes)
	m.mu.Unlock()
	return m.shrinkTo(target)
}

func (m *Memory) shrink() int64 {
	m.mu.Lock()
	target := m.budget
	m.mu.Unlock()
	return m.shrinkTo(target)
}

// shrinkTo lets blocks leave, those that no request counts on first. Once the
// tier below has refused one the others are not offered: memory is wanted now.
func (m *Memory) shrinkTo(target int64) int64 {
	freed, offering := int64(0), true
	for {
		m.mu.Lock()
		if m.bytes <= target {
			m.mu.Unlock()
			return freed
		}
		if len(m.ahead.spares) > 0 {
			m.mu.Unlock()
			freed += m.giveSpare()
			continue
		}
		b := m.victim(false)
		if b == nil {
			b = m.victim(true)
		}
		if b != nil && b.dirty && !offering {
			b.dirty = false
			m.stats.Lost++
		}
		m.mu.Unlock()
		if b == nil {
			return freed
		}
		size := b.size()
		offering = m.leave(b) && offering
		freed += size
	}
}

// Clear forgets everything and says how many bytes came back, measured. Nothing
// of it is offered below, and nothing that was on its way in appears
// afterwards.
func (m *Memory) Clear() int64 {
	m.mu.Lock()
	m.epoch++
	m.dirty = nil
	var out []*block
	for _, b := range m.held {
		if b.dirty {
			b.dirty = false
			m.stats.Lost++
		}
		m.takeOut(b)
		if b.readers == 0 {
			out = append(out, b)
		}
	}
	m.ahead.count = 0
	spares := m.ahead.spares
	m.ahead.spares = nil
	m.mu.Unlock()
	freed := int64(0)
	for _, b := range out {
		freed += b.size()
		m.free(b)
	}
	for _, spare := range spares {
		freed += m.unmap(spare)
	}
	return freed
}

// Behind offers what came in below, in its order, until ctx ends. While nobody
// takes it there, it stays here and waits.
func (m *Memory) Behind(ctx context.Context) {
	for m.lower != nil && m.lower.Await(ctx) == nil && ctx.Err() == nil {
		if m.behind() {
			continue
		}
		select {
		case <-m.dirtied:
		case <-ctx.Done():
		}
	}
}

// behind offers the oldest block that was not yet; false where there is none.
func (m *Memory) behind() bool {
	m.mu.Lock()
	var b *block
	for len(m.dirty) > 0 && b == nil {
		if first := m.dirty[0]; first.dirty && !first.gone {
			b = first
		}
		m.dirty[0] = nil
		m.dirty = m.dirty[1:]
	}
	if b == nil {
		m.mu.Unlock()
		return false
	}
	b.dirty = false
	m.count(b)
	b.readers++
	m.mu.Unlock()
	m.offered(m.down(func() Saved { return m.lower.Put(b.key, b.mapping) }))
	m.read(b)
	return true
}

// wake is called with mu held.
func (m *Memory) wake() {
	select {
	case m.dirtied <- struct{}{}:
	default:
	}
}

// Close takes nothing in any more, offers what is left below until ctx ends, and
// gives everything back.
func (m *Memory) Close(ctx context.Context) {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	for ctx.Err() == nil && m.behind() {
	}
	m.Clear()
	m.ahead.done.Wait()
}
