package share

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestATenantThatReturnsIsServedBetweenNewOnes: some requests always wait, each of a tenant that
// comes for the first time or has left long ago.
func TestATenantThatReturnsIsServedBetweenNewOnes(t *testing.T) {
	for _, names := range []int{3, 64, 256, 1 << 20} {
		t.Run(strconv.Itoa(names), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if most := othersBetween(t, names); most > 12 {
					t.Errorf("%d others are served before one that returns", most)
				}
			})
		})
	}
}

// othersBetween is how many others are served before a request of a tenant that returns, at most.
func othersBetween(t *testing.T, names int) (most int) {
	turns := NewTurns(1)
	work(t.Context(), turns, "regular", 10, 2*time.Second)
	ctx, end := context.WithTimeout(t.Context(), time.Hour)
	var served atomic.Int64
	for first := range 4 {
		go func() {
			for i := first; ctx.Err() == nil; i += 4 {
				work(ctx, turns, strconv.Itoa(i%names), 1, time.Second)
				served.Add(1)
			}
		}()
	}
	synctest.Wait()
	for range 20 {
		before := served.Load()
		work(ctx, turns, "regular", 1, 2*time.Second)
		most = max(most, int(served.Load()-before))
	}
	end()
	time.Sleep(time.Minute)
	return most
}

// TestAPlaceThatIsYieldedCostsNoMoreThanItsTime: one that yields is no new tenant.
func TestAPlaceThatIsYieldedCostsNoMoreThanItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		ctx, end := context.WithCancel(t.Context())
		for range 2 {
			go work(ctx, turns, "hog", 1<<20, 4*time.Second)
		}
		synctest.Wait()
		if err := turns.Take(ctx, "list"); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range 60_000 {
			time.Sleep(time.Millisecond)
			if err := turns.Yield(ctx, "list"); err != nil {
				t.Fatal(err)
			}
		}
		turns.Give("list")
		if took := time.Since(begun); took > 130*time.Second {
			t.Errorf("60 s of work take %s next to one other tenant", took)
		}
		end()
		time.Sleep(time.Minute)
	})
}

// TestTenantsThatComeOnceAreForgotten, though none returns.
func TestTenantsThatComeOnceAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		for i := range 10000 {
			work(t.Context(), turns, strconv.Itoa(i), 1, time.Millisecond)
		}
		if n := len(turns.tenants); n > 2*leastSweep {
			t.Errorf("%d tenants are kept", n)
		}
	})
}
