// Package kvtest is the conformance suite of kv.Tier, and a fake tier for the
// tests of other packages.
//
// The suite uses only the interface. It stores at most Room bytes, which a tier
// must be able to hold.
//
// Start reading at Run.
package kvtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
)

// Room is the maximum number of payload bytes the suite stores in one tier, in
// fewer than 64 payloads. Pages and headers come on top.
const Room = 1 << 20

// Run runs the suite. open returns an empty tier with room for Room bytes and
// closes it with t.Cleanup.
func Run(t *testing.T, open func(*testing.T) kv.Tier) {
	t.Run("a value that was put can be read", func(t *testing.T) { readBack(t, open(t)) })
	t.Run("a value that was offered can be read", func(t *testing.T) { offered(t, open(t)) })
	t.Run("a distrusted value is absent until it is put again", func(t *testing.T) { distrusted(t, open(t)) })
	t.Run("a value that was not put is absent", func(t *testing.T) { absent(t, open(t)) })
	t.Run("putting a value again changes nothing", func(t *testing.T) { again(t, open(t)) })
	t.Run("a read with a cancelled context ends", func(t *testing.T) { ended(t, open(t)) })
	t.Run("histories", func(t *testing.T) { histories(t, open(t)) })
	t.Run("concurrent access", func(t *testing.T) { together(t, open(t)) })
}

// KeyOf returns the i-th key of a test.
func KeyOf(i int) kv.Key {
	return kv.Root(kv.Origin{Model: "kvtest"}, kv.Salt{Extra: strconv.Itoa(i)})
}

// Payload returns n bytes that depend on seed.
func Payload(seed, n int) []byte {
	p := make([]byte, n)
	var s [32]byte
	binary.LittleEndian.PutUint64(s[:], uint64(seed))
	_, _ = rand.NewChaCha8(s).Read(p) // it never fails
	return p
}

// Must fails the test unless the key has these bytes.
func Must(t *testing.T, tier kv.Tier, key kv.Key, want []byte) {
	t.Helper()
	if n, ok := tier.Size(key); !ok || n != int64(len(want)) {
		t.Errorf("Size(%s) = %d, %v, want %d", key, n, ok, len(want))
		return
	}
	got := make([]byte, len(want))
	if err := tier.Read(t.Context(), key, got); err != nil {
		t.Errorf("Read(%s): %v", key, err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("Read(%s) gives other bytes than were put", key)
	}
}

// lacks fails the test if a key is present.
func lacks(t *testing.T, tier kv.Tier, key kv.Key) {
	t.Helper()
	if n, ok := tier.Size(key); ok {
		t.Errorf("Size(%s) = %d, want none", key, n)
	}
	if err := tier.Read(t.Context(), key, make([]byte, 1)); !errors.Is(err, kv.ErrAbsent) {
		t.Errorf("Read(%s) = %v, want %v", key, err, kv.ErrAbsent)
	}
}

// readBack reads a payload before it can be persisted, and after the caller has
// overwritten its copy.
func readBack(t *testing.T, tier kv.Tier) {
	for i, n := range []int{1, 3, 4096, 65_537} {
		p := Payload(i, n)
		if got := tier.Put(KeyOf(i), p); got == kv.Dropped {
			t.Fatalf("%d bytes were dropped by an empty tier", n)
		}
		clear(p)
		Must(t, tier, KeyOf(i), Payload(i, n))
	}
	for i, n := range []int{1, 3, 4096, 65_537} {
		Must(t, tier, KeyOf(i), Payload(i, n))
	}
}

func distrusted(t *testing.T, tier kv.Tier) {
	want := Payload(1, 1000)
	for range 2 {
		if tier.Put(KeyOf(1), want) == kv.Dropped {
			t.Fatal("it was dropped")
		}
		Must(t, tier, KeyOf(1), want)
		tier.Distrust()
		lacks(t, tier, KeyOf(1))
	}
	if tier.Put(KeyOf(1), want) == kv.Dropped {
		t.Fatal("it was dropped")
	}
	Must(t, tier, KeyOf(1), want)
}

func offered(t *testing.T, tier kv.Tier) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tier.Await(ctx); err != nil {
		t.Fatal(err)
	}
	want := Payload(1, 1000)
	if saved, err := tier.Offer(KeyOf(1), 1000, func(dst []byte) error { copy(dst, want); return nil }); err != nil || saved == kv.Dropped {
		t.Fatalf("Offer: %v, %v", saved, err)
	}
	Must(t, tier, KeyOf(1), want)
	failed := errors.New("the bytes are not available")
	if saved, err := tier.Offer(KeyOf(2), 1000, func([]byte) error { return failed }); !errors.Is(err, failed) || saved != kv.Dropped {
		t.Errorf("Offer without bytes: %v, %v", saved, err)
	}
	lacks(t, tier, KeyOf(2))
}

func absent(t *testing.T, tier kv.Tier) {
	lacks(t, tier, KeyOf(1))
	tier.Put(KeyOf(2), Payload(2, 100))
	lacks(t, tier, KeyOf(1))
}

func again(t *testing.T, tier kv.Tier) {
	for range 3 {
		if tier.Put(KeyOf(1), Payload(1, 5000)) == kv.Dropped {
			t.Error("an existing value was dropped")
		}
		Must(t, tier, KeyOf(1), Payload(1, 5000))
	}
}

// ended: with a canceled context, a tier returns the bytes or an error.
func ended(t *testing.T, tier kv.Tier) {
	tier.Put(KeyOf(1), Payload(1, 5000))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := make([]byte, 5000)
	if err := tier.Read(ctx, KeyOf(1), got); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Read with a context that is over: %v", err)
	} else if err == nil && !bytes.Equal(got, Payload(1, 5000)) {
		t.Error("other bytes than were put")
	}
	Must(t, tier, KeyOf(1), Payload(1, 5000))
}

// histories compares random puts and reads with a map. A tier may forget, but
// must not return wrong bytes or sizes, or keys that were never put.
func histories(t *testing.T, tier kv.Tier) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const keys, most = 40, Room / 64
	put := map[int]int{} // sizes by key; the payload depends on the key alone
	for range 400 {
		i := r.IntN(keys)
		if r.IntN(3) == 0 {
			if put[i] == 0 {
				put[i] = 1 + r.IntN(most)
			}
			tier.Put(KeyOf(i), Payload(i, put[i]))
		}
		n, ok := tier.Size(KeyOf(i))
		if ok && n != int64(put[i]) {
			t.Fatalf("key %d has %d bytes, %d were put", i, n, put[i])
		}
		got := make([]byte, max(1, put[i]))
		err := tier.Read(t.Context(), KeyOf(i), got)
		switch {
		case err == nil && (put[i] == 0 || !bytes.Equal(got, Payload(i, put[i]))):
			t.Fatalf("key %d: other bytes than were put", i)
		case err != nil && !errors.Is(err, kv.ErrAbsent):
			t.Fatalf("key %d: %v", i, err)
		}
	}
}

// together puts and reads the same keys from several goroutines.
func together(t *testing.T, tier kv.Tier) {
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 20 {
				at := (g + i) % 10
				want := Payload(at, 4000+at)
				tier.Put(KeyOf(at), want)
				got := make([]byte, len(want))
				if err := tier.Read(t.Context(), KeyOf(at), got); err == nil && !bytes.Equal(got, want) {
					t.Errorf("key %d: other bytes than were put", at)
				} else if err != nil && !errors.Is(err, kv.ErrAbsent) {
					t.Errorf("key %d: %v", at, err)
				}
			}
		})
	}
	all.Wait()
}
