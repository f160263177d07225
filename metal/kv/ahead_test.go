package kv_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
	"metalfleet.dev/metalfleet/test/patience"
)

// prepared waits until the memory holds want bytes and has this many spares.
func prepared(t *testing.T, m *kv.Memory, want int64, spares int) {
	t.Helper()
	for deadline := time.Now().Add(patience.Of(t)); m.Bytes() != want || m.Spares() != spares; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are held, %d of it room, want %d and %d", m.Bytes(), m.Spares(), want, spares)
		}
	}
}

func TestPreparedMemoryCountsAgainstTheBudget(t *testing.T) {
	m := kv.NewMemory(3*page, nil)
	m.Prepare(page, 2)
	prepared(t, m, 2*page, 2)
	for key, want := range []int64{2 * page, 2 * page, 3 * page} { // the third is mapped for its block
		if got := m.Put(kvtest.KeyOf(key), kvtest.Payload(key, int(page))); got != kv.Held {
			t.Fatalf("block %d: %v", key, got)
		}
		if got := m.Bytes(); got != want {
			t.Errorf("%d bytes are held with block %d, want %d", got, key, want)
		}
	}
	if got := m.Stats().Prepared; got != 2 {
		t.Errorf("room for %d blocks was made ahead, want 2", got)
	}
	m.Prepare(page, 5) // for which the oldest leave, as for blocks
	prepared(t, m, 3*page, 3)
	for key := range 3 {
		m.Put(kvtest.KeyOf(10+key), kvtest.Payload(key, int(page)))
	}
	if got := m.Stats(); got.Prepared != 5 || got.Bytes != 3*page {
		t.Errorf("room for %d blocks was made ahead and %d bytes are held, want 5 and 3 pages", got.Prepared, got.Bytes)
	}
	if m.Close(t.Context()); m.Bytes() != 0 {
		t.Errorf("%d bytes are held after Close", m.Bytes())
	}
	m.Prepare(page, 1)
	if m.Close(t.Context()); m.Bytes() != 0 {
		t.Errorf("%d bytes were prepared after Close", m.Bytes())
	}
}

func TestPreparedMemoryIsFreedBeforeAnyBlock(t *testing.T) {
	for name, want := range map[string]func(t *testing.T, m *kv.Memory){
		"a block of another size": func(t *testing.T, m *kv.Memory) {
			if got := m.Put(kvtest.KeyOf(1), kvtest.Payload(1, int(2*page))); got != kv.Held || m.Bytes() != 3*page {
				t.Errorf("%v, and %d bytes are held, want 3 pages", got, m.Bytes())
			}
		},
		"a smaller budget": func(t *testing.T, m *kv.Memory) {
			if got := m.Resize(page); got != 2*page || m.Bytes() != page {
				t.Errorf("%d bytes came back and %d are held, want 2 pages and 1", got, m.Bytes())
			}
		},
		"bytes wanted elsewhere": func(t *testing.T, m *kv.Memory) {
			if got := m.Shed(1); got != page || m.Bytes() != 2*page {
				t.Errorf("%d bytes came back and %d are held, want 1 page and 2", got, m.Bytes())
			}
		},
		"no block needs it": func(t *testing.T, m *kv.Memory) {
			if m.Prepare(page, 0); m.Bytes() != page {
				t.Errorf("%d bytes are held, want 1 page", m.Bytes())
			}
		},
		"another size is wanted": func(t *testing.T, m *kv.Memory) {
			m.Prepare(2*page, 1)
			prepared(t, m, 3*page, 1)
			if got := m.Put(kvtest.KeyOf(1), kvtest.Payload(1, int(2*page))); got != kv.Held || m.Bytes() != 3*page {
				t.Errorf("%v, and %d bytes are held, want 3 pages", got, m.Bytes())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := kv.NewMemory(3*page, nil)
			defer m.Close(t.Context())
			m.Put(kvtest.KeyOf(0), kvtest.Payload(0, int(page)))
			m.Prepare(page, 2)
			prepared(t, m, 3*page, 2)
			want(t, m)
			if !m.Has(kvtest.KeyOf(0)) {
				t.Error("a block was evicted for a spare")
			}
		})
	}
	m := kv.NewMemory(3*page, nil)
	m.Prepare(page, 2)
	prepared(t, m, 2*page, 2)
	if got := m.Clear(); got != 2*page || m.Bytes() != 0 {
		t.Errorf("Clear gave %d bytes back and %d are held, want 2 pages and none", got, m.Bytes())
	}
}

// A full cache neither frees nor allocates for a block of the size of the
// evicted one.
func TestMemoryOfAnEvictedBlockIsReused(t *testing.T) {
	below := kvtest.NewFake()
	m := kv.NewMemory(2*page, below)
	defer m.Close(t.Context())
	at := map[*byte]bool{}
	for key := range 6 {
		if got := m.Put(kvtest.KeyOf(key), kvtest.Payload(key, int(page))); got != kv.Held || m.Bytes() > 2*page {
			t.Fatalf("block %d: %v, %d bytes are held", key, got, m.Bytes())
		}
		v, err := m.View(kvtest.KeyOf(key))
		if err != nil {
			t.Fatal(err)
		}
		if at[&v.Bytes()[0]] = true; !bytes.Equal(v.Bytes(), kvtest.Payload(key, int(page))) {
			t.Errorf("block %d is another", key)
		}
		v.Close()
	}
	if len(at) != 2 {
		t.Errorf("6 blocks lay in %d places, want 2", len(at))
	}
	for key := range 4 { // what left was offered first
		kvtest.Must(t, below, kvtest.KeyOf(key), kvtest.Payload(key, int(page)))
	}
}

// TestMemoryIsPinnedForAsLongAsItIsHeld: memory is page-locked once, regardless
// of which blocks use it; memory that cannot be page-locked is used all the
// same.
func TestMemoryIsPinnedForAsLongAsItIsHeld(t *testing.T) {
	var mu sync.Mutex
	pinned, times := map[*byte]int{}, 0
	m := kv.NewMemory(2*page, nil)
	m.PageLockBy(func(p []byte) func() {
		mu.Lock()
		defer mu.Unlock()
		if times++; times%3 == 0 {
			return nil
		}
		pinned[&p[0]] += len(p)
		return func() {
			mu.Lock()
			defer mu.Unlock()
			p[0] = 1 // it is there still
			delete(pinned, &p[0])
		}
	})
	for key := range 6 {
		m.Put(kvtest.KeyOf(key), kvtest.Payload(key, int(page)))
	}
	if times != 2 || len(pinned) != 2 {
		t.Errorf("6 blocks in the room of 2: %d times pinned, %d places are", times, len(pinned))
	}
	m.Clear()
	m.Prepare(page, 2)
	prepared(t, m, 2*page, 2)
	if len(pinned) != 1 {
		t.Errorf("%d places are pinned of 2, one of which cannot be", len(pinned))
	}
	if m.Close(t.Context()); len(pinned) != 0 {
		t.Errorf("%d places are pinned after Close", len(pinned))
	}
}

// Usage never exceeds the budget, reads return what was put, and nothing is
// left.
func TestConcurrentPreparation(t *testing.T) {
	m := kv.NewMemory(20*page, kvtest.NewFake())
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 500 {
				switch key := g*500 + i; i % 10 {
				case 0:
					m.Prepare(page*int64(1+i/10%2), i/10%4)
				case 5:
					m.Resize(int64(10+i%10) * page)
				case 7:
					m.Clear()
				default:
					m.Put(kvtest.KeyOf(key), kvtest.Payload(key, int(page)))
					if v, err := m.View(kvtest.KeyOf(key)); err == nil {
						if !bytes.Equal(v.Bytes(), kvtest.Payload(key, int(page))) {
							t.Errorf("block %d is another", key)
						}
						v.Close()
					}
				}
				if got := m.Bytes(); got > 20*page {
					t.Errorf("%d bytes are held, the budget never was more than %d", got, 20*page)
				}
			}
		})
	}
	all.Wait()
	if m.Close(t.Context()); m.Bytes() != 0 {
		t.Errorf("%d bytes are held after Close", m.Bytes())
	}
}
