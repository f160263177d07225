package cold_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

// filling writes the payload of a key.
func filling(n, size int) func([]byte) error {
	return func(dst []byte) error { copy(dst, payload(n, size)); return nil }
}

// Neither on the writer, nor on a grant, nor on a hanging disk; a dropped block
// is counted by where it was lost.
func TestOfferNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 250, 2*4096)
		stuck := make(chan struct{})
		f.Inject(func(faultfs.Op) faultfs.Fault { <-stuck; return faultfs.Fault{} })
		began := time.Now()
		offer := func(n int, want kv.Saved) {
			t.Helper()
			if got, err := tier.Offer(key(n), 100, filling(n, 100)); got != want || err != nil {
				t.Errorf("block %d: %v, %v, want %v", n, got, err, want)
			}
		}
		offer(0, kv.Queued)
		offer(1, kv.Queued)
		offer(1, kv.Held)
		offer(2, kv.Dropped) // no grant
		if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e1", GrantedBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		offer(3, kv.Dropped) // no room in the queue
		if took := time.Since(began); took != 0 {
			t.Errorf("they took %s", took)
		}
		if c := balanced(t, tier); c.Dropped[cold.AtGrant] != 1 || c.Dropped[cold.AtQueue] != 1 || c.Queued != 2 {
			t.Errorf("%+v", c)
		}
		close(stuck)
		closeTier(t, tier)
		offer(4, kv.Dropped)
		if c := balanced(t, tier); c.Persisted != 2 || c.Dropped[cold.AtShutdown] != 1 {
			t.Errorf("%+v", c)
		}
	})
}

// TestAnOfferOfWhatTheDiskHasIsNotWrittenAgain: the writer looks, not who offers.
func TestAnOfferOfWhatTheDiskHasIsNotWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := open(t, faultfs.New(1<<20), 1000, 1<<20)
		tier.Put(key(0), payload(0, 100))
		synctest.Wait()
		before := tier.Counters()
		if got, err := tier.Offer(key(0), 100, filling(0, 100)); got != kv.Queued || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		synctest.Wait()
		c := balanced(t, tier)
		if c.WrittenBytes != before.WrittenBytes || c.Persisted != 1 || c.Known != before.Known+1 || c.Accepted != 1 {
			t.Errorf("%+v", c)
		}
		if r := tier.Report(); len(r.Touched) != 1 || r.SpentBytes != 4096 {
			t.Errorf("%+v", r)
		}
		closeTier(t, tier)
	})
}

// An offer whose bytes could not be read leaves nothing.
func TestOfferFilledAfterItsEpochIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1000, 1<<20)
		for name, end := range map[string]func(){
			"detached": tier.Detach,
			"another one": func() {
				lay(t, f, tier.Namespace(), "e2")
				_ = tier.Attach(cold.Lease{Dir: dir, Epoch: "e2", GrantedBytes: 1 << 20})
			},
		} {
			before := tier.Counters().Dropped[cold.AtFence]
			if tier.Counters().Accepted > 0 { // the first of the two ended e1
				lay(t, f, tier.Namespace(), "e3")
				if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e3", GrantedBytes: 1 << 20}); err != nil {
					t.Fatal(err)
				}
			}
			got, err := tier.Offer(key(1), 100, func(dst []byte) error { end(); return filling(1, 100)(dst) })
			if got != kv.Dropped || err != nil || tier.Counters().Dropped[cold.AtFence] != before+1 {
				t.Errorf("%s: %v, %v, %+v", name, got, err, tier.Counters())
			}
		}
		lay(t, f, tier.Namespace(), "e4")
		if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e4", GrantedBytes: 8192}); err != nil {
			t.Fatal(err)
		}
		before, failed := tier.Counters(), errors.New("no bytes")
		if got, err := tier.Offer(key(1), 100, func([]byte) error { return failed }); got != kv.Dropped || !errors.Is(err, failed) || tier.Counters() != before {
			t.Errorf("%v, %v, %+v", got, err, tier.Counters())
		}
		synctest.Wait()
		if err := reads(t, tier, 1, 100); !errors.Is(err, kv.ErrAbsent) {
			t.Errorf("read: %v", err)
		}
		balanced(t, tier)
		tier.Put(key(2), payload(2, 100)) // the room of the others was given back
		tier.Put(key(3), payload(3, 100))
		closeTier(t, tier)
		if c := balanced(t, tier); c.Persisted != 2 {
			t.Errorf("%+v", c)
		}
	})
}

// TestWhoAwaitsATierGoesOnWithItsLease, or when it closes.
func TestWhoAwaitsATierGoesOnWithItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := cold.Open(cold.Options{FS: f, Origin: origin(), QueueBytes: 1000})
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := tier.Await(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no lease: %v", err)
		}
		came := make(chan error, 1)
		await := func() { came <- tier.Await(t.Context()) }
		go await()
		synctest.Wait()
		lay(t, f, tier.Namespace(), "e1")
		if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e1"}); err != nil {
			t.Fatal(err)
		}
		if err := <-came; err != nil {
			t.Error(err)
		}
		tier.Detach()
		go await()
		synctest.Wait()
		closeTier(t, tier)
		if err := <-came; err != nil {
			t.Error(err)
		}
	})
}

// The queue is dropped, the owner learns of blocks written before, and the same
// blocks can be written again.
func TestDistrustedBlockBeingWrittenIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1000, 1<<20)
		tier.Put(key(0), payload(0, 100))
		synctest.Wait()
		tier.Report()
		g := gate{ch: make(chan struct{}), kind: faultfs.Create}
		f.Inject(g.fault)
		tier.Put(key(1), payload(1, 100))
		tier.Put(key(2), payload(2, 100))
		synctest.Wait()
		tier.Distrust()
		close(g.ch)
		synctest.Wait()
		for n := range 3 {
			if err := reads(t, tier, n, 100); !errors.Is(err, kv.ErrAbsent) {
				t.Errorf("block %d: %v", n, err)
			}
		}
		if _, err := f.Stat(cold.Path(dir, tier.Namespace(), key(1))); err == nil {
			t.Error("what was being written has a name")
		}
		if r := tier.Report(); len(r.Damaged) != 1 || r.Damaged[0] != key(0) {
			t.Errorf("the owner hears %+v", r)
		}
		if c := balanced(t, tier); c.Dropped[cold.AtFence] != 2 || c.Persisted != 1 {
			t.Errorf("%+v", c)
		}
		for n := range 3 {
			tier.Put(key(n), payload(n, 100))
		}
		synctest.Wait()
		for n := range 3 {
			if err := reads(t, tier, n, 100); err != nil {
				t.Errorf("block %d, written again: %v", n, err)
			}
		}
		closeTier(t, tier)
	})
}
