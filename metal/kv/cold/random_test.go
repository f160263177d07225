package cold_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
	"metalfleet.dev/metalfleet/test/seed"
)

// Random histories on a disk that fails, is slow and corrupts data, under an
// owner that grants and ends epochs. The counters always add up, no byte is
// written without a grant, and no read returns what was not put.
func TestEveryAcceptedBlockIsAccountedFor(t *testing.T) {
	seed := seed.Of(t)
	var sum cold.Counters
	for round := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			c := history(t, rand.New(rand.NewPCG(seed, round)))
			sum.Persisted, sum.Failed, sum.FullDisk, sum.Damaged = sum.Persisted+c.Persisted, sum.Failed+c.Failed, sum.FullDisk+c.FullDisk, sum.Damaged+c.Damaged
			for s, n := range c.Dropped {
				sum.Dropped[s] += n
			}
		})
	}
	for _, s := range cold.Sites() {
		if sum.Dropped[s] == 0 {
			t.Errorf("nothing was ever dropped at %s", s)
		}
	}
	if sum.Persisted == 0 || sum.Failed == 0 || sum.FullDisk == 0 || sum.Damaged == 0 {
		t.Errorf("never seen: %+v", sum)
	}
}

func history(t *testing.T, r *rand.Rand) cold.Counters {
	f := faultfs.New(60_000)
	tier := open(t, f, 9000, 0)
	var mu sync.Mutex // r is asked by the disk too
	chance := func(of int) bool { mu.Lock(); defer mu.Unlock(); return r.IntN(of) == 0 }
	number := func(below int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(below) }
	f.Inject(func(op faultfs.Op) faultfs.Fault {
		fault := faultfs.Fault{Delay: time.Duration(number(40)) * time.Millisecond}
		if op.Path != "" && chance(40) && within(op.Path, cold.NamespaceOf(origin()).String()) {
			fault.Err = []error{syscall.ENOSPC, syscall.EIO, fs.ErrPermission}[number(3)]
			fault.Keep = number(100)
			fault.Torn = chance(2)
		}
		return fault
	})
	o := owner{f: f, epoch: 1}
	var users sync.WaitGroup
	for range 3 {
		users.Go(func() {
			for range 60 {
				n := number(12)
				if chance(3) {
					if err := reads(t, tier, n, 500*n); err != nil && !errors.Is(err, kv.ErrAbsent) && !errors.Is(err, kv.ErrCorrupt) {
						t.Errorf("read: %v", err)
					}
				} else if chance(3) {
					if _, err := tier.Offer(key(n), int64(500*n), filling(n, 500*n)); err != nil {
						t.Error(err)
					}
				} else {
					tier.Put(key(n), payload(n, 500*n))
				}
				if chance(15) {
					tier.Put(key(100), payload(100, 9001))
				}
				balanced(t, tier)
				time.Sleep(time.Duration(number(100)) * time.Millisecond)
			}
		})
	}
	users.Go(func() {
		for range 60 {
			o.act(t, tier, number)
			balanced(t, tier)
			time.Sleep(time.Duration(number(200)) * time.Millisecond)
		}
	})
	users.Wait()
	closeTier(t, tier)
	tier.Put(key(50), nil)
	c := balanced(t, tier)
	if c.Queued != 0 || c.QueuedBytes != 0 {
		t.Errorf("something waits after the end: %+v", c)
	}
	return c
}

// owner grants, ends epochs and lets files rot.
type owner struct {
	f       *faultfs.FS
	epoch   int
	granted int64
}

func (o *owner) name() string { return fmt.Sprintf("e%d", o.epoch) }

func (o *owner) act(t *testing.T, tier *cold.Tier, number func(int) int) {
	switch number(8) {
	case 0: // another epoch
		if _, err := cold.Fence(o.f, dir, tier.Namespace(), o.name()); err != nil && !faulty(err) {
			t.Error(err)
			return
		}
		o.epoch++
		o.granted = 0
		if err := o.f.MkdirAll(cold.EpochFolder(dir, tier.Namespace(), o.name())); err != nil {
			tier.Detach()
			o.epoch++
			return
		}
	case 1:
		tier.Detach()
		o.epoch++
		o.granted = 0
		_ = o.f.MkdirAll(cold.EpochFolder(dir, tier.Namespace(), o.name())) // without it everything is dropped at the fence
		return
	case 2, 3:
		if files := o.f.Files(cold.Folder(dir, tier.Namespace())); len(files) > 0 {
			_ = o.f.Rot(files[number(len(files))], int64(number(4000))) // some files are shorter
		}
		return
	case 4:
		for _, k := range tier.Report().Damaged {
			_ = o.f.Remove(cold.Path(dir, tier.Namespace(), k))
		}
		return
	default:
		o.granted += int64(number(5)) * 4096
	}
	if err := tier.Attach(cold.Lease{Dir: dir, Epoch: o.name(), GrantedBytes: o.granted, Final: number(4) == 0}); err != nil {
		t.Error(err)
	}
	if r := tier.Report(); r.Epoch == o.name() && r.SpentBytes > o.granted {
		t.Errorf("%d bytes spent of %d", r.SpentBytes, o.granted)
	}
}

func faulty(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EIO) || errors.Is(err, fs.ErrPermission)
}

// TestAnEngineNeverTakesMoreOfTheDiskThanItWasGranted, regardless of failures:
// a file that could not be removed counts.
func TestAnEngineNeverTakesMoreOfTheDiskThanItWasGranted(t *testing.T) {
	seed := seed.Of(t)
	for round := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, round))
			f := faultfs.New(1 << 20)
			granted := int64(1+r.IntN(20)) * 4096
			tier := open(t, f, 50_000, granted)
			f.Inject(func(op faultfs.Op) faultfs.Fault {
				// A torn rename has made bytes of its own; they are there until they
				// are removed, so that only one of both fails.
				if torn := round%2 == 0; r.IntN(6) == 0 && !(torn && op.Kind == faultfs.Remove) {
					return faultfs.Fault{Err: syscall.EIO, Keep: r.IntN(5000), Torn: torn}
				}
				if op.Kind == faultfs.Remove {
					return faultfs.Fault{}
				}
				var taken int64
				for _, at := range f.Files(dir) {
					taken += cold.Takes(f.Length(at))
				}
				if taken > granted {
					t.Errorf("%d bytes taken of %d", taken, granted)
				}
				return faultfs.Fault{}
			})
			for n := range 30 {
				tier.Put(key(n), payload(n, r.IntN(12_000)))
				synctest.Wait()
			}
			closeTier(t, tier)
		})
	}
}
