package unread

import (
	"context"
	"errors"
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
		r := &Room{Max: 100}
		first, gaveWay := within(t, r, "a", 60, time.Second)
		second, _ := within(t, r, "a", 40, time.Second)
		if first == nil || second == nil {
			t.Fatal("all of the memory is not for one tenant")
		}
		if h, _ := within(t, r, "a", 1, time.Hour); h != nil || *gaveWay {
			t.Fatalf("an answer gave way to another of its tenant: %v", h)
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
			t.Error("an answer is held that exceeds the memory")
		}
	})
}

func TestTheTenantWithTheMostGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Room{Max: 100}
		_, empty := within(t, r, "a", 0, time.Second)
		_, oldest := within(t, r, "a", 50, time.Second)
		_, next := within(t, r, "a", 30, time.Second)
		_, small := within(t, r, "c", 20, time.Second)
		began := time.Now()
		b, other := within(t, r, "b", 40, time.Hour)
		if b == nil || time.Since(began) != Grace {
			t.Fatalf("%v after %v", b, time.Since(began))
		}
		if !*oldest || *empty || *next || *small {
			t.Errorf("empty %v, oldest %v, next %v or that of another tenant %v gave way", *empty, *oldest, *next, *small)
		}
		// Those who have as much wait.
		if h, _ := within(t, r, "c", 25, time.Hour); h != nil || *other || *next {
			t.Errorf("a tenant gave way to one that has more: %v", h)
		}
	})
}

func TestAnAnswerGrowsAndShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Room{Max: 100}
		a, gaveWay := within(t, r, "a", 10, time.Second)
		if err := a.Set(100); err != nil {
			t.Fatal(err)
		}
		if err := a.Set(101); !errors.Is(err, ErrFull) {
			t.Fatalf("it grows beyond the memory: %v", err)
		}
		if err := a.Set(60); err != nil || r.held != 60 {
			t.Fatalf("%d bytes, %v", r.held, err)
		}
		b, _ := within(t, r, "b", 40, time.Second)
		if err := b.Set(41); !errors.Is(err, ErrFull) || *gaveWay {
			t.Fatalf("an answer gave way at once: %v", err)
		}
		time.Sleep(Grace)
		if err := b.Set(41); err != nil || !*gaveWay {
			t.Fatalf("the larger tenant does not give way: %v", err)
		}
		if err := a.Set(1); !errors.Is(err, ErrFull) {
			t.Errorf("an answer that gave way is counted again: %v", err)
		}
		if a.Release(); r.held != 41 {
			t.Errorf("%d bytes are held", r.held)
		}
	})
}
