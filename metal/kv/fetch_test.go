package kv

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// slowTier has every block, of a MiB, and reads it when gate is closed.
type slowTier struct {
	Tier
	reads atomic.Int64
	gate  chan struct{}
	err   error
}

func (s *slowTier) Put(Key, []byte) Saved                               { return Queued }
func (s *slowTier) Offer(Key, int64, func([]byte) error) (Saved, error) { return Queued, nil }
func (s *slowTier) Size(Key) (int64, bool)                              { return 1 << 20, true }
func (s *slowTier) Read(ctx context.Context, _ Key, _ []byte) error {
	s.reads.Add(1)
	select {
	case <-s.gate:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Requests with the same prompt read its blocks once, and take the room of one: copies for each
// evicted every block of another tenant.
func TestRequestsThatFetchOneBlockShareIt(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		leave bool // the first request does before the block is read
		reads int64
	}{{"a whole block", nil, false, 1}, {"a damaged block", ErrCorrupt, false, 1}, {"a client that leaves", nil, true, 2}} {
		synctest.Test(t, func(t *testing.T) {
			const blocks, requests = 16, 16
			low := &slowTier{gate: make(chan struct{}), err: c.err}
			m := NewMemory(blocks<<20, low)
			defer m.Close(t.Context())
			var others []Key
			for k := Root(Origin{}, Salt{Tenant: "b"}); len(others) < blocks; others = append(others, k) {
				k = k.Next([]int32{1})
				m.Put(k, make([]byte, 1<<20))
			}
			key := Root(Origin{}, Salt{Tenant: "a"}).Next([]int32{1})
			first, leave := context.WithCancel(t.Context())
			defer leave()
			var all sync.WaitGroup
			var failed atomic.Int64
			for i := range requests {
				ctx := t.Context()
				if i == 0 {
					ctx = first
				}
				all.Go(func() {
					if err := m.Fetch(ctx, key, 1<<20); err != nil && errors.Is(err, c.err) {
						failed.Add(1)
					} else if err != nil && ctx != first {
						t.Errorf("%s: %v", c.name, err)
					}
				})
				synctest.Wait()
			}
			left := 0
			for _, k := range others {
				if m.Has(k) {
					left++
				}
			}
			if left < blocks-1 {
				t.Errorf("%s: %d of %d blocks of another tenant are left", c.name, left, blocks)
			}
			if c.leave {
				leave()
				synctest.Wait()
			}
			close(low.gate)
			all.Wait()
			if n := low.reads.Load(); n != c.reads || m.Has(key) != (c.err == nil) || c.err != nil && failed.Load() != requests {
				t.Errorf("%s: %d reads, %d requests failed; it is in memory: %t", c.name, n, failed.Load(), m.Has(key))
			}
		})
	}
}

// Without a lower tier a block that was evicted meanwhile is absent.
func TestABlockThatWasEvictedIsFetchedFromNowhere(t *testing.T) {
	m := NewMemory(1<<20, nil)
	defer m.Close(t.Context())
	key := Root(Origin{}, Salt{})
	if m.Put(key, []byte("x")) != Held || m.Fetch(t.Context(), key, 1) != nil {
		t.Fatal("the block is not there")
	}
	m.Clear()
	running, first := m.beginFetch(key) // as Fetch does once it has seen the block
	if err := m.fetch(t.Context(), key, 1, running); !first || !errors.Is(err, ErrAbsent) {
		t.Errorf("%v, want %v", err, ErrAbsent)
	}
	if err := m.Fetch(t.Context(), key, 1); !errors.Is(err, ErrAbsent) {
		t.Errorf("%v, want %v", err, ErrAbsent)
	}
}

// TestABlockOfAnotherSizeIsDamaged: it is neither read nor kept.
func TestABlockOfAnotherSizeIsDamaged(t *testing.T) {
	low := &slowTier{gate: make(chan struct{})}
	close(low.gate)
	m := NewMemory(4<<20, low)
	defer m.Close(t.Context())
	key := Root(Origin{}, Salt{}).Next([]int32{1})
	for _, n := range []int64{0, 1<<20 - 1, 1<<20 + 1} {
		if err := m.Fetch(t.Context(), key, n); !errors.Is(err, ErrCorrupt) || m.Has(key) {
			t.Errorf("a block of a MiB in place of %d bytes: %v", n, err)
		}
	}
	if s := m.Stats(); low.reads.Load() != 0 || s.Damaged != 3 {
		t.Errorf("%d blocks were read, %+v", low.reads.Load(), s)
	}
}
