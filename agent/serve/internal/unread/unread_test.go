package unread

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// within holds n bytes, and waits at most for a time.
func within(t *testing.T, r *Room, tenant string, n int64, patience time.Duration) (*Hold, *bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	interrupted := false
	h, err := r.Hold(ctx, tenant, n, func() { interrupted = true })
	if (h == nil) != errors.Is(err, ErrFull) {
		t.Fatalf("%v, %v", h, err)
	}
	return h, &interrupted
}

func TestATenantAloneWaitsForItsOwnAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Room{Max: 200}
		first, gaveWay := within(t, r, "a", 60, time.Second)
		second, _ := within(t, r, "a", 40, time.Second)
		if first == nil || second == nil {
			t.Fatal("a tenant alone has less than half of the memory")
		}
		if h, _ := within(t, r, "a", 1, time.Hour); h != nil || *gaveWay {
			t.Fatalf("an answer gave way to another of its tenant, or nothing is left for others: %v", h)
		}
		time.AfterFunc(time.Minute, first.Release)
		began := time.Now()
		third, _ := within(t, r, "a", 60, time.Hour)
		if third == nil || time.Since(began) != time.Minute {
			t.Fatalf("the next answer is held after %v", time.Since(began))
		}
		first.Release()
		for _, h := range []*Hold{second, third} {
			h.Release()
		}
		if r.held != 0 || len(r.owners) != 0 {
			t.Errorf("%d bytes of %d tenants stay held", r.held, len(r.owners))
		}
		if h, _ := within(t, r, "a", 101, time.Hour); h != nil {
			t.Error("an answer is held that exceeds half of the memory")
		}
	})
}

// A tenant whose answers end before they would have to give way leaves others their part.
func TestAttackATenantThatFillsTheRoomAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Room{Max: 200}
		ctx, stop := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		for range 20 { // which wait for each other's room
			readers.Go(func() {
				for ctx.Err() == nil {
					if h, err := r.Hold(ctx, "a", 10, func() {}); err == nil {
						time.Sleep(Grace - time.Millisecond)
						h.Release()
					}
				}
			})
		}
		for range 100 {
			time.Sleep(701 * time.Millisecond)
			synctest.Wait()
			h, _ := within(t, r, "b", 0, time.Millisecond)
			if err := h.Set(40); err != nil || r.of("a") != 100 {
				t.Errorf("next to %d bytes of a, b has %d: %v", r.of("a"), r.of("b"), err)
			}
			h.Release()
		}
		stop()
		readers.Wait()
	})
}

func TestTheTenantWithTheMostGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Room{Max: 200}
		_, empty := within(t, r, "a", 0, time.Second)
		_, oldest := within(t, r, "a", 60, time.Second)
		_, next := within(t, r, "a", 40, time.Second)
		_, small := within(t, r, "c", 40, time.Second)
		began := time.Now()
		b, other := within(t, r, "b", 35, time.Hour)
		if b == nil || time.Since(began) != Grace {
			t.Fatalf("%v after %v", b, time.Since(began))
		}
		if !*oldest || *empty || *next || *small {
			t.Errorf("empty %v, oldest %v, next %v or that of another tenant %v gave way", *empty, *oldest, *next, *small)
		}
		// A tenant that has half as much, or more, waits.
		if h, _ := within(t, r, "d", 45, time.Hour); h != nil || *other || *next {
			t.Errorf("a tenant gave way to one that would have as much: %v", h)
		}
	})
}

func TestAnAnswerGrowsAndShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Room{Max: 200}
		a, gaveWay := within(t, r, "a", 10, time.Second)
		if err := a.Set(100); err != nil {
			t.Fatal(err)
		}
		if err := a.Set(101); !errors.Is(err, ErrFull) {
			t.Fatalf("it grows beyond half of the memory: %v", err)
		}
		b, _ := within(t, r, "b", 40, time.Second)
		time.Sleep(Grace)
		if err := b.Set(51); !errors.Is(err, ErrFull) || *gaveWay {
			t.Fatalf("an answer that is not twice as large gave way: %v", err)
		}
		c, _ := within(t, r, "c", 10, time.Second)
		if err := c.Set(31); err != nil || !*gaveWay {
			t.Fatalf("the larger tenant does not give way: %v", err)
		}
		if err := a.Set(1); !errors.Is(err, ErrFull) {
			t.Errorf("an answer that gave way is counted again: %v", err)
		}
		if err := b.Set(20); err != nil || r.held != 51 {
			t.Fatalf("%d bytes, %v", r.held, err)
		}
		if a.Release(); r.held != 51 {
			t.Errorf("%d bytes are held", r.held)
		}
	})
}

// TestAnAnswerWithoutMemoryWaitsForNone: most answers are read as they are made, also those of a
// tenant that has more than is free because others came.
func TestAnAnswerWithoutMemoryWaitsForNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Room{Max: 200}
		large, _ := within(t, r, "a", 90, time.Second)
		other, _ := within(t, r, "b", 40, time.Second)
		if large == nil || other == nil {
			t.Fatal("there is no memory")
		}
		small, _ := within(t, r, "a", 0, time.Hour)
		if small == nil {
			t.Fatal("an answer without memory is not admitted for an hour")
		}
		if err := small.Set(1); !errors.Is(err, ErrFull) {
			t.Errorf("it gets memory that is not free: %v", err)
		}
		for _, h := range []*Hold{large, other, small} {
			h.Release()
		}
		if r.held != 0 || len(r.owners) != 0 {
			t.Errorf("%d bytes of %d tenants stay held", r.held, len(r.owners))
		}
	})
}
