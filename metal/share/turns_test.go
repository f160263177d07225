package share

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// A place that is given back passes to the tenant that has the fewest, in turn.
func TestTurnsPassToTheTenantWithTheFewestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		var got []string
		wait := func(ctx context.Context, tenant string) {
			go func() {
				if turns.Take(ctx, tenant) == nil {
					got = append(got, tenant)
				}
			}()
			synctest.Wait()
		}
		for range 5 {
			wait(t.Context(), "a")
		}
		gone, leave := context.WithCancel(t.Context())
		wait(gone, "left")
		wait(t.Context(), "b")
		wait(t.Context(), "c")
		wait(t.Context(), "b")
		leave()
		synctest.Wait()
		for given := 0; given < len(got); given++ { // who has a place longest gives it back
			turns.Give(got[given])
			synctest.Wait()
		}
		if want := []string{"a", "a", "b", "a", "c", "b", "a", "a"}; !slices.Equal(got, want) {
			t.Errorf("places went to %v, want %v", got, want)
		}
		if turns.Free() != 2 || turns.Taken("a") != 0 || len(turns.waiting) != 0 {
			t.Errorf("%d places are taken and %d free, %d tenants wait", turns.Taken("a"), turns.Free(), len(turns.waiting))
		}
	})
}

// A request whose client has left gets no place, though one is free.
func TestAnEndedRequestGetsNoPlace(t *testing.T) {
	turns := NewTurns(1)
	gone, leave := context.WithCancel(t.Context())
	leave()
	if err := turns.Take(gone, "a"); err != context.Canceled || turns.Free() != 1 {
		t.Errorf("%v; %d places are free", err, turns.Free())
	}
}

// work takes a place again and again, for as long each time, and gives it back in between.
func work(ctx context.Context, turns *Turns, tenant string, times int, each time.Duration) time.Duration {
	begun := time.Now()
	for range times {
		if turns.Take(ctx, tenant) != nil {
			break
		}
		time.Sleep(each)
		turns.Give(tenant)
	}
	return time.Since(begun)
}

// TestTurnsAreEqualInTimeNotInNumber: a list of short texts does not wait for a long one of another
// tenant before each of its own.
func TestTurnsAreEqualInTimeNotInNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		ctx, end := context.WithCancel(t.Context())
		for range 2 { // so that one always waits
			go work(ctx, turns, "hog", 1<<20, 4*time.Second)
		}
		synctest.Wait()
		if err := turns.Take(ctx, "list"); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range 512 {
			time.Sleep(time.Millisecond)
			if err := turns.Yield(ctx, "list"); err != nil {
				t.Fatal(err)
			}
		}
		turns.Give("list")
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("512 ms of work take %s", took)
		}
		end()
		time.Sleep(time.Minute)
	})
}

// TestATenantThatWasAloneIsServedAsOthersAre, and not only once they had as much as it.
func TestATenantThatWasAloneIsServedAsOthersAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		work(t.Context(), turns, "early", 3600, time.Second)
		ctx, end := context.WithCancel(t.Context())
		for range 2 {
			go work(ctx, turns, "late", 1<<20, time.Second)
		}
		synctest.Wait()
		if took := work(ctx, turns, "early", 10, time.Second); took > 22*time.Second {
			t.Errorf("10 s of work take %s next to one other tenant", took)
		}
		end()
		time.Sleep(time.Minute)
	})
}

func TestTenantsThatLeftAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		for i := range 10000 {
			work(t.Context(), turns, strconv.Itoa(i), 1, time.Millisecond)
			work(t.Context(), turns, "always", 1, time.Millisecond)
		}
		if n := len(turns.tenants); n > 2*leastSweep {
			t.Errorf("%d tenants are kept", n)
		}
	})
}
