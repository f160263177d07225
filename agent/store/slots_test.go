//go:build !race

package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

// Sources of several namespaces that send a byte now and then hold all slots only while no
// other download waits, and continue later.
func TestAttackSlowSourcesOfSeveralNamespaces(t *testing.T) {
	s := newSlots(3)
	now := time.Unix(1_800_000_000, 0)
	s.now = func() time.Time { return now }
	begin := func(namespace string) (context.Context, *turn) {
		ctx, w, err := s.acquire(t.Context(), namespace)
		if err != nil {
			t.Fatal(err)
		}
		return ctx, w
	}
	var contexts []context.Context
	var turns []*turn
	for _, namespace := range []string{"evil-a", "evil-a", "evil-b"} {
		ctx, w := begin(namespace)
		contexts, turns = append(contexts, ctx), append(turns, w)
	}
	drip := func(bytes int) {
		for range 5 {
			now = now.Add(29 * time.Second)
			for _, w := range turns {
				w.gained(bytes)
			}
		}
	}
	ended := func() (n int) {
		for i, ctx := range contexts {
			if errors.Is(context.Cause(ctx), errYielded) {
				n++
				turns[i].end()
			}
		}
		return n
	}
	drip(1)
	if n := ended(); n != 0 {
		t.Fatalf("%d downloads made room although none waits", n)
	}
	waited := make(chan *turn)
	go func() {
		_, w, _ := s.acquire(t.Context(), "team")
		waited <- w
	}()
	for end := time.Now().Add(patience.Of(t)); ended() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no download made room for the one that waits")
		}
	}
	team := <-waited
	if n := ended(); n != 1 {
		t.Errorf("%d downloads made room for one", n)
	}
	team.end()
}

func TestADownloadWithAPaceKeepsItsSlot(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes int
		gap   time.Duration
	}{
		"a slow line":                  {bytes: 80 << 10, gap: time.Second},
		"a file that is verified long": {bytes: 8 << 20, gap: 20 * time.Minute},
	} {
		s := newSlots(1)
		now := time.Unix(1_800_000_000, 0)
		s.now = func() time.Time { return now }
		ctx, w, err := s.acquire(t.Context(), "team")
		if err != nil {
			t.Fatal(err)
		}
		s.change(func() {
			s.waiting = append(s.waiting, &turn{slots: s, namespace: "other", begun: make(chan struct{}), yield: func(error) {}})
		})
		for range 200 {
			now = now.Add(tc.gap)
			w.gained(tc.bytes)
		}
		if ctx.Err() != nil {
			t.Errorf("%s: it lost its slot", name)
		}
	}
}
