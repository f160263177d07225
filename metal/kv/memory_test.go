package kv_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
	"metalfleet.dev/metalfleet/metal/pages"
	"metalfleet.dev/metalfleet/test/seed"
)

// page is what the smallest block takes.
var page = pages.Held(1)

func TestMemoryPassesTheSuite(t *testing.T) {
	roomy := kvtest.Room + 64*page
	for name, open := range map[string]func() *kv.Memory{
		"alone":                    func() *kv.Memory { return kv.NewMemory(roomy, nil) },
		"over another tier":        func() *kv.Memory { return kv.NewMemory(roomy, kvtest.NewFake()) },
		"small, over another tier": func() *kv.Memory { return kv.NewMemory(kvtest.Room/16, kvtest.NewFake()) },
		"of nothing, over another": func() *kv.Memory { return kv.NewMemory(0, kvtest.NewFake()) },
	} {
		t.Run(name, func(t *testing.T) {
			kvtest.Run(t, func(t *testing.T) kv.Tier {
				m := open()
				ctx, stop := context.WithCancel(context.Background())
				var writer sync.WaitGroup
				writer.Go(func() { m.WriteBack(ctx) })
				t.Cleanup(func() {
					stop()
					writer.Wait()
					m.Close(context.Background())
					if n := m.Bytes(); n != 0 {
						t.Errorf("%d bytes are held after Close", n)
					}
				})
				return m
			})
		})
	}
}

// plainBlock and plain are the model of a Memory: a list, the most recently used
// first.
type plainBlock struct {
	key, size, holders, readers int
	dirty, gone                 bool
}

type plain struct {
	budget  int64
	blocks  []*plainBlock
	leaving []*plainBlock // gone and still read
	offered []int
}

func (p *plain) bytes(counts func(*plainBlock) bool) int64 {
	var n int64
	for _, b := range slices.Concat(p.blocks, p.leaving) {
		if counts(b) {
			n += pages.Held(int64(b.size))
		}
	}
	return n
}

func (p *plain) total() int64 { return p.bytes(func(*plainBlock) bool { return true }) }

func (p *plain) find(key int) *plainBlock {
	for _, b := range p.blocks {
		if b.key == key {
			return b
		}
	}
	return nil
}

func (p *plain) touch(b *plainBlock) {
	p.remove(b)
	p.blocks = append([]*plainBlock{b}, p.blocks...)
}

func (p *plain) remove(b *plainBlock) {
	p.blocks = slices.DeleteFunc(p.blocks, func(o *plainBlock) bool { return o == b })
}

// evict evicts the least recently used block that may be evicted.
func (p *plain) evict(counted bool) bool {
	for i := len(p.blocks) - 1; i >= 0; i-- {
		if b := p.blocks[i]; b.readers == 0 && (counted || b.holders == 0) {
			p.remove(b)
			b.gone = true
			if b.dirty {
				p.offered = append(p.offered, b.key)
			}
			return true
		}
	}
	return false
}

func (p *plain) put(key, size int) {
	if b := p.find(key); b != nil {
		p.touch(b)
		return
	}
	need := pages.Held(int64(size))
	pinned := p.bytes(func(b *plainBlock) bool { return b.readers > 0 || b.holders > 0 && !b.gone })
	if need > p.budget-pinned {
		p.offered = append(p.offered, key) // whether the tier below has it, that one knows
		return
	}
	for p.total()+need > p.budget {
		p.evict(false)
	}
	p.blocks = append([]*plainBlock{{key: key, size: size, dirty: true}}, p.blocks...)
}

func (p *plain) shrink() {
	for p.total() > p.budget && (p.evict(false) || p.evict(true)) {
	}
}

func (p *plain) clear() {
	for _, b := range p.blocks {
		b.gone = true
		b.dirty = false
		if b.readers > 0 {
			p.leaving = append(p.leaving, b)
		}
	}
	p.blocks = nil
}

// writeBack offers the first block that was not offered yet.
func (p *plain) writeBack(order []int) {
	for _, key := range order {
		if b := p.find(key); b != nil && b.dirty {
			b.dirty = false
			p.offered = append(p.offered, key)
			return
		}
	}
}

// claim is one Hold or one View of a history, on both sides.
type claim struct {
	plain *plainBlock
	hold  kv.Pinned
	view  *kv.View
}

// play is one history: the tier, its model, and the tier below.
type play struct {
	t      *testing.T
	r      *rand.Rand
	m      *kv.Memory
	p      *plain
	below  *kvtest.Fake
	claims []claim
	came   []int // keys, in the order in which they were taken in
}

const playKeys = 24

func sizeOf(key int) int { return 100 + key*int(page)/3 }

// Random histories against a list: what is held and in which order it is
// evicted, the total after every step, and what is offered to the disk tier,
// each block once.
func TestRandomHistories(t *testing.T) {
	seed := seed.Of(t)
	for i := range uint64(60) {
		x := &play{t: t, r: rand.New(rand.NewPCG(seed, i)), below: kvtest.NewFake()}
		budget := int64(10+x.r.IntN(60)) * page
		x.m, x.p = kv.NewMemory(budget, x.below), &plain{budget: budget}
		for step := range 300 {
			x.step()
			x.compare(step)
			if t.Failed() {
				t.Fatalf("history %d of seed %d, step %d", i, seed, step)
			}
		}
		for len(x.claims) > 0 {
			x.unclaim()
		}
		x.m.Close(t.Context())
		if n := x.m.Bytes(); n != 0 {
			t.Fatalf("history %d: %d bytes are held after Close", i, n)
		}
		for key := range playKeys { // what was offered, and nothing else, is below
			if _, ok := x.below.Size(kvtest.KeyOf(key)); ok {
				kvtest.Must(t, x.below, kvtest.KeyOf(key), kvtest.Payload(key, sizeOf(key)))
			}
		}
	}
}

func (x *play) step() {
	key := x.r.IntN(playKeys)
	switch n := x.r.IntN(20); {
	case n < 8:
		x.put(key)
	case n < 13:
		x.claim(key, n%2 == 0)
	case n < 16:
		x.unclaim()
	case n < 18:
		x.m.WriteBackOnce()
		x.p.writeBack(x.came)
	case n < 19:
		x.p.budget = int64(x.r.IntN(60)) * page
		before := x.p.total()
		x.p.shrink()
		if got, want := x.m.Resize(x.p.budget), before-x.p.total(); got != want {
			x.t.Errorf("Resize gave %d bytes back, want %d", got, want)
		}
	case x.r.IntN(4) == 0:
		before := x.p.total()
		x.p.clear()
		if got, want := x.m.Clear(), before-x.p.total(); got != want {
			x.t.Errorf("Clear gave %d bytes back, want %d", got, want)
		}
	}
}

func (x *play) put(key int) {
	if x.p.find(key) == nil {
		x.came = slices.DeleteFunc(x.came, func(k int) bool { return k == key })
		x.came = append(x.came, key)
	}
	x.p.put(key, sizeOf(key))
	x.m.Put(kvtest.KeyOf(key), kvtest.Payload(key, sizeOf(key)))
}

func (x *play) claim(key int, read bool) {
	b, c := x.p.find(key), claim{}
	var ok bool
	if read {
		v, err := x.m.View(kvtest.KeyOf(key))
		c.view, ok = v, err == nil
	} else {
		c.hold, ok = x.m.Pin(kvtest.KeyOf(key))
	}
	if ok != (b != nil) {
		x.t.Errorf("key %d is held: %v, want %v", key, ok, b != nil)
	}
	if !ok || b == nil {
		return
	}
	x.p.touch(b)
	if c.plain = b; read {
		b.readers++
	} else {
		b.holders++
	}
	x.claims = append(x.claims, c)
}

func (x *play) unclaim() {
	if len(x.claims) == 0 {
		return
	}
	i := x.r.IntN(len(x.claims))
	c := x.claims[i]
	x.claims = slices.Delete(x.claims, i, i+1)
	if c.view == nil {
		x.m.Unpin([]kv.Pinned{c.hold})
		if c.plain.holders--; !c.plain.gone {
			x.p.touch(c.plain)
		}
		return
	}
	if !bytes.Equal(c.view.Bytes(), kvtest.Payload(c.plain.key, sizeOf(c.plain.key))) {
		x.t.Errorf("key %d changed while it was read", c.plain.key)
	}
	c.view.Close()
	if c.plain.readers--; c.plain.gone && c.plain.readers == 0 {
		x.p.leaving = slices.DeleteFunc(x.p.leaving, func(b *plainBlock) bool { return b == c.plain })
	}
}

func (x *play) compare(step int) {
	x.t.Helper()
	if got, want := x.m.Bytes(), x.p.total(); got != want {
		x.t.Errorf("step %d: %d bytes are held, want %d", step, got, want)
	}
	for key := range playKeys {
		if got, want := x.m.Has(kvtest.KeyOf(key)), x.p.find(key) != nil; got != want {
			x.t.Errorf("step %d: key %d is held: %v, want %v", step, key, got, want)
		}
	}
	want := make([]kv.Key, len(x.p.offered))
	for i, key := range x.p.offered {
		want[i] = kvtest.KeyOf(key)
	}
	if got := x.below.Puts(); !slices.Equal(got, want) {
		x.t.Errorf("step %d: %d blocks were offered below, want %d, or others", step, len(got), len(want))
	}
	if s := x.m.Stats(); s.Bytes != x.p.total() || s.Blocks != len(x.p.blocks) || s.Budget != x.p.budget || s.Offered != int64(len(want)) {
		x.t.Errorf("step %d: stats %+v", step, s)
	}
}

func TestEvictedBlockIsWrittenOnce(t *testing.T) {
	below := kvtest.NewFake()
	m := kv.NewMemory(2*page, below)
	defer m.Close(t.Context())
	put := func(i int) { m.Put(kvtest.KeyOf(i), kvtest.Payload(i, 100)) }
	put(1)
	for m.WriteBackOnce() {
	}
	put(2)
	put(3) // 1 leaves, and was written
	put(4) // 2 leaves, and was not
	if got := below.Puts(); !slices.Equal(got, []kv.Key{kvtest.KeyOf(1), kvtest.KeyOf(2)}) {
		t.Errorf("%d blocks were written, want 1 and 2", len(got))
	}
	if err := m.Fetch(t.Context(), kvtest.KeyOf(1), 100); err != nil {
		t.Fatal(err)
	}
	put(5)
	put(6) // 1 leaves again
	if got := below.Puts(); slices.Contains(got[2:], kvtest.KeyOf(1)) {
		t.Error("what came from below was written there again")
	}
	m.Close(t.Context())
	for i := 1; i <= 6; i++ {
		kvtest.Must(t, below, kvtest.KeyOf(i), kvtest.Payload(i, 100))
	}
	if got := below.Puts(); len(got) != 6 {
		t.Errorf("%d writes of 6 blocks", len(got))
	}
	if m.Put(kvtest.KeyOf(7), kvtest.Payload(7, 100)) != kv.Dropped {
		t.Error("a closed tier took a block")
	}
}

// A disk tier that hangs does not block Close; blocks it did not take are
// counted.
func TestCloseIsBounded(t *testing.T) {
	below := kvtest.NewFake()
	m := kv.NewMemory(10*page, below)
	for i := range 5 {
		m.Put(kvtest.KeyOf(i), kvtest.Payload(i, 100))
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	m.Close(over)
	if s := m.Stats(); s.Bytes != 0 || s.Lost != 5 || len(below.Puts()) != 0 {
		t.Errorf("%+v, %d writes", s, len(below.Puts()))
	}
}

// One refusal is enough; no further block is copied to be refused.
func TestUrgentEvictionDoesNotWaitForTheDisk(t *testing.T) {
	below := kvtest.NewFake()
	below.Fill(true)
	m := kv.NewMemory(10*page, below)
	defer m.Close(t.Context())
	for i := range 5 {
		m.Put(kvtest.KeyOf(i), kvtest.Payload(i, 100))
	}
	if got := m.Resize(page); got != 4*page {
		t.Errorf("%d bytes came back, want %d", got, 4*page)
	}
	if s := m.Stats(); s.Offered != 1 || s.Refused != 1 || s.Lost != 3 || s.Bytes != page {
		t.Errorf("%+v", s)
	}
}

// A slow disk tier delays WriteBack only.
func TestFreeingMemoryNeverWaitsForTheDisk(t *testing.T) {
	below := kvtest.NewFake()
	m := kv.NewMemory(3*page, below)
	defer m.Close(t.Context())
	for i := range 3 {
		m.Put(kvtest.KeyOf(i), kvtest.Payload(i, 100))
	}
	open := below.Block()
	defer open()
	m.Put(kvtest.KeyOf(3), kvtest.Payload(3, 100))           // the first leaves
	m.Put(kvtest.KeyOf(4), kvtest.Payload(4, 5*int(page)))   // has no room at all
	if got := m.Resize(0); got != 3*page || m.Bytes() != 0 { // and so have the others
		t.Errorf("%d bytes came back, %d are left", got, m.Bytes())
	}
	if got := below.Puts(); len(got) != 5 {
		t.Errorf("%d blocks were offered, want all 5", len(got))
	}
}

func TestBlockBeingWrittenIsDistrustedOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := kvtest.NewFake()
		m := kv.NewMemory(10*page, below)
		defer m.Close(t.Context())
		m.Put(kvtest.KeyOf(1), kvtest.Payload(1, 100))
		open := below.Block()
		var writing sync.WaitGroup
		writing.Go(func() { m.WriteBackOnce() })
		synctest.Wait()
		m.Distrust()
		open()
		writing.Wait()
		if _, found := m.Size(kvtest.KeyOf(1)); found || len(below.Puts()) != 1 {
			t.Errorf("it is found: %v; %d blocks were put", found, len(below.Puts()))
		}
	})
}

// Nothing is offered only to be dropped.
func TestBlocksWaitWhileTheDiskTierIsDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := kvtest.NewFake()
		m := kv.NewMemory(10*page, below)
		back := below.Leave()
		ctx, cancel := context.WithCancel(t.Context())
		var writing sync.WaitGroup
		writing.Go(func() { m.WriteBack(ctx) })
		for i := range 3 {
			m.Put(kvtest.KeyOf(i), kvtest.Payload(i, 100))
		}
		synctest.Wait()
		if n := len(below.Puts()); n != 0 {
			t.Errorf("%d blocks were offered without an owner", n)
		}
		back()
		synctest.Wait()
		if n := len(below.Puts()); n != 3 {
			t.Errorf("%d blocks were offered once the lower tier accepted them, want 3", n)
		}
		cancel()
		writing.Wait()
		m.Close(t.Context())
	})
}

// Other blocks are evicted first.
func TestBudgetHoldsDuringAPut(t *testing.T) {
	m := kv.NewMemory(2*page, nil)
	defer m.Close(t.Context())
	for i := range 5 {
		saved, err := m.Make(kvtest.KeyOf(i), 100, func([]byte) error {
			if n := m.Bytes(); n > 2*page {
				t.Errorf("%d bytes are held while block %d comes", n, i)
			}
			return nil
		})
		if saved != kv.Held || err != nil {
			t.Errorf("block %d: %v, %v", i, saved, err)
		}
	}
}

// A long prompt does not evict its own beginning; returning memory still does.
func TestClaimedBlocksAreNotEvictedForNewOnes(t *testing.T) {
	m := kv.NewMemory(3*page, nil)
	defer m.Close(t.Context())
	var chain []kv.Pinned
	for i := range 5 {
		if m.Put(kvtest.KeyOf(i), kvtest.Payload(i, 100)) == kv.Held != (i < 3) {
			t.Errorf("block %d of 5 in room for 3", i)
		}
		if h, ok := m.Pin(kvtest.KeyOf(i)); ok {
			chain = append(chain, h)
		}
	}
	m.Unpin(chain)
	m.Put(kvtest.KeyOf(9), kvtest.Payload(9, 100))
	if !m.Has(kvtest.KeyOf(0)) || !m.Has(kvtest.KeyOf(1)) || m.Has(kvtest.KeyOf(2)) {
		t.Error("the end of a chain must be evicted first: the other blocks are useful without it")
	}
	if _, ok := m.Pin(kvtest.KeyOf(0)); !ok || m.Resize(0) != 3*page {
		t.Error("what a request counts on stays where memory is given back")
	}
	if s := m.Stats(); s.Bytes != 0 || s.Evicted != 4 || s.Dropped != 2 {
		t.Errorf("%+v", s)
	}
}

// Another request's claim under the same key stays.
func TestReleasingAStaleClaimKeepsOthers(t *testing.T) {
	m := kv.NewMemory(page, nil)
	defer m.Close(t.Context())
	key := kvtest.KeyOf(1)
	m.Put(key, kvtest.Payload(1, 100))
	old, _ := m.Pin(key)
	m.Clear()
	m.Put(key, kvtest.Payload(1, 100))
	if _, ok := m.Pin(key); !ok {
		t.Fatal("the block is not there again")
	}
	m.Unpin([]kv.Pinned{old})
	if m.Put(kvtest.KeyOf(2), kvtest.Payload(2, 100)) == kv.Held {
		t.Error("the end of an old claim let go of what another request counts on")
	}
}

// A block being written during the clear does not appear, and its memory is
// freed.
func TestNothingAppearsAfterAClear(t *testing.T) {
	for name, forget := range map[string]func(*kv.Memory){
		"clear": func(m *kv.Memory) { m.Clear() },
		"close": func(m *kv.Memory) { m.Close(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			below := kvtest.NewFake()
			m := kv.NewMemory(4*page, below)
			defer m.Close(t.Context())
			began, cleared := make(chan struct{}), make(chan struct{})
			var writer sync.WaitGroup
			writer.Go(func() {
				saved, err := m.Make(kvtest.KeyOf(1), 100, func([]byte) error {
					close(began)
					<-cleared
					return nil
				})
				if saved != kv.Dropped || err != nil {
					t.Errorf("Make = %v, %v, want dropped", saved, err)
				}
			})
			<-began
			forget(m)
			close(cleared)
			writer.Wait()
			for m.WriteBackOnce() {
			}
			if m.Has(kvtest.KeyOf(1)) || m.Bytes() != 0 || len(below.Puts()) != 0 {
				t.Errorf("held %v, %d bytes, %d writes", m.Has(kvtest.KeyOf(1)), m.Bytes(), len(below.Puts()))
			}
		})
	}
}

// TestFetchBringsWhatLiesBelow, and a damaged block is counted and forgotten.
func TestFetchBringsWhatLiesBelow(t *testing.T) {
	below := kvtest.NewFake()
	m := kv.NewMemory(2*page, below)
	defer m.Close(t.Context())
	for i := range 4 {
		below.Put(kvtest.KeyOf(i), kvtest.Payload(i, 100))
	}
	if err := m.Fetch(t.Context(), kvtest.KeyOf(0), 100); err != nil || !m.Has(kvtest.KeyOf(0)) {
		t.Errorf("Fetch: %v", err)
	}
	v, err := m.View(kvtest.KeyOf(0))
	if err != nil || !bytes.Equal(v.Bytes(), kvtest.Payload(0, 100)) {
		t.Fatalf("what was fetched: %v", err)
	}
	defer v.Close()
	below.Damage(kvtest.KeyOf(1))
	if err := m.Fetch(t.Context(), kvtest.KeyOf(1), 100); !errors.Is(err, kv.ErrCorrupt) || m.Has(kvtest.KeyOf(1)) {
		t.Errorf("a damaged block: %v", err)
	}
	if err := m.Fetch(t.Context(), kvtest.KeyOf(9), 100); !errors.Is(err, kv.ErrAbsent) {
		t.Errorf("a block that is nowhere: %v", err)
	}
	m.Resize(page) // which is being read
	if err := m.Fetch(t.Context(), kvtest.KeyOf(2), 100); !errors.Is(err, kv.ErrAbsent) {
		t.Errorf("a block that has no room: %v", err)
	}
	if s := m.Stats(); s.Fetched != 1 || s.Damaged != 1 || s.Bytes != page {
		t.Errorf("%+v", s)
	}
}

// TestAFailedFillLeavesNothing: neither a block nor its memory.
func TestAFailedFillLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	for _, budget := range []int64{2 * page, 0} {
		m := kv.NewMemory(budget, kvtest.NewFake())
		if _, err := m.Make(kvtest.KeyOf(1), 100, func([]byte) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("Make = %v", err)
		}
		if _, ok := m.Size(kvtest.KeyOf(1)); ok || m.Bytes() != 0 {
			t.Errorf("held %v, %d bytes", ok, m.Bytes())
		}
		m.Close(t.Context())
	}
}

// TestWhatGoesIsTheSystemsAgain: payloads lie outside the Go heap, and their
// pages are gone with them.
func TestWhatGoesIsTheSystemsAgain(t *testing.T) {
	if _, err := os.Stat("/proc/self/statm"); err != nil {
		if runtime.GOOS == "linux" {
			t.Fatal(err)
		}
		t.Skip("the resident size of a process is read from /proc/self/statm, which only Linux has")
	}
	const size, blocks = 8 << 20, 8
	m := kv.NewMemory(size*blocks, nil)
	defer m.Close(t.Context())
	before := resident(t)
	for i := range blocks {
		if m.Put(kvtest.KeyOf(i), bytes.Repeat([]byte{1}, size)) != kv.Held {
			t.Fatal("no room")
		}
	}
	full := resident(t)
	freed := m.Resize(0)
	if got := full - resident(t); freed != size*blocks || got < freed*9/10 || full-before < freed*9/10 {
		t.Errorf("%d bytes freed: resident %d, then %d, then %d less", freed, before, full, got)
	}
}

func resident(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * int64(os.Getpagesize())
}
