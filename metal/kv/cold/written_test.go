package cold_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

// TestBlocksThatTheOwnerRemovedAreForgotten: an engine writes blocks for weeks, and its tier has to
// know which of them a fault of the back end concerns.
func TestBlocksThatTheOwnerRemovedAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, stay = 4000, 50
		f := faultfs.New(1 << 30)
		tier := open(t, f, 1<<20, 1<<30)
		for n := range many {
			if got := tier.Put(key(n), payload(n, 1)); got != kv.Queued {
				t.Fatalf("block %d: %v", n, got)
			}
			synctest.Wait()
			tier.Report()
			if n >= stay {
				if err := f.Remove(cold.Path(dir, tier.Namespace(), key(n))); err != nil {
					t.Fatal(err)
				}
			}
		}
		tier.Distrust()
		damaged := tier.Report().Damaged
		if n := len(damaged); n > 3*stay {
			t.Errorf("%d of %d blocks are known, %d are on the disk", n, many, stay)
		}
		for n := range stay {
			if !slices.Contains(damaged, key(n)) {
				t.Errorf("block %d is on the disk, and it is not reported", n)
			}
			if err := reads(t, tier, n, 1); !errors.Is(err, kv.ErrAbsent) {
				t.Errorf("block %d: %v", n, err)
			}
		}
		closeTier(t, tier)
	})
}

// TestDistrustedBlocksAreReportedInPartsAndAgain: a report is one message, and an agent that
// restarts may not have received it.
func TestDistrustedBlocksAreReportedInPartsAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 10_000
		f := faultfs.New(1 << 30)
		tier := open(t, f, 1<<30, 1<<30)
		for n := range many {
			tier.Put(key(n), payload(n, 1))
		}
		synctest.Wait()
		tier.Report()
		tier.Distrust()
		for _, epoch := range []string{"e1", "e2"} {
			if epoch != "e1" {
				tier.Detach()
				lay(t, f, tier.Namespace(), epoch)
				if err := tier.Attach(cold.Lease{Dir: dir, Epoch: epoch, GrantedBytes: 1 << 30}); err != nil {
					t.Fatal(err)
				}
			}
			reported := map[kv.Key]bool{}
			for more := true; more; {
				select {
				case <-tier.News():
					r := tier.Report()
					if len(r.Damaged) > many/2 {
						t.Errorf("a report has %d blocks", len(r.Damaged))
					}
					for _, k := range r.Damaged {
						reported[k] = true
					}
				default:
					more = false
				}
			}
			if len(reported) != many {
				t.Errorf("in epoch %s %d of %d blocks are reported", epoch, len(reported), many)
			}
		}
		closeTier(t, tier)
	})
}
