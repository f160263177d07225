package share

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
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
		if turns.Free() != 2 || len(turns.taken) != 0 || len(turns.waiting) != 0 {
			t.Errorf("%v places are taken and %d free, %d tenants wait", turns.taken, turns.Free(), len(turns.waiting))
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
