//go:build !race

package store

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

// of is one namespace that wants a download.
func of(namespace string) func() []string { return func() []string { return []string{namespace} } }

// Sources of several namespaces that send a byte now and then hold all slots only while no
// other download waits, and continue later.
func TestAttackSlowSourcesOfSeveralNamespaces(t *testing.T) {
	s := newSlots(3)
	now := time.Unix(1_800_000_000, 0)
	s.now = func() time.Time { return now }
	begin := func(namespace string) (context.Context, *turn) {
		ctx, w, err := s.acquire(t.Context(), of(namespace))
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
		_, w, _ := s.acquire(t.Context(), of("team"))
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

func TestADownloadWithAPaceIsNotSlow(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes, times int
		gap          time.Duration
	}{
		"a slow line":                  {bytes: 80 << 10, times: 200, gap: time.Second},
		"a file that is verified long": {bytes: 8 << 20, times: 50, gap: 20 * time.Minute},
	} {
		s := newSlots(1)
		now := time.Unix(1_800_000_000, 0)
		s.now = func() time.Time { return now }
		_, w, err := s.acquire(t.Context(), of("team"))
		if err != nil {
			t.Fatal(err)
		}
		for range tc.times {
			now = now.Add(tc.gap)
			w.gained(tc.bytes)
		}
		if w.slow {
			t.Errorf("%s: it makes room for any other", name)
		}
	}
}

// TestAttackSourcesThatAskForLongWaits: each attempt brings nothing, and the next one may
// begin only minutes later.
func TestAttackSourcesThatAskForLongWaits(t *testing.T) {
	s := newSlots(1)
	now := time.Unix(1_800_000_000, 0)
	s.now = func() time.Time { return now }
	ctx, w, err := s.acquire(t.Context(), of("evil"))
	if err != nil {
		t.Fatal(err)
	}
	s.change(func() {
		s.waiting = append(s.waiting, &turn{slots: s, wanted: of("team"), begun: make(chan struct{}), yield: func(error) {}})
	})
	for range 13 {
		now = now.Add(5 * time.Second)
		w.gained(0)
	}
	if !errors.Is(context.Cause(ctx), errYielded) {
		t.Error("it keeps its slot while it waits")
	}
}

// TestAttackSourcesThatAreJustFastEnough: two namespaces have large models whose servers keep
// the least pace, for days.
func TestAttackSourcesThatAreJustFastEnough(t *testing.T) {
	s := newSlots(3)
	now := time.Unix(1_800_000_000, 0)
	s.now = func() time.Time { return now }
	var contexts []context.Context
	var turns []*turn
	for _, namespace := range []string{"evil-a", "evil-b", "evil-a"} {
		ctx, w, err := s.acquire(t.Context(), of(namespace))
		if err != nil {
			t.Fatal(err)
		}
		contexts, turns = append(contexts, ctx), append(turns, w)
	}
	wait := func(namespace string) *turn {
		w := &turn{slots: s, wanted: of(namespace), begun: make(chan struct{}), yield: func(error) {}}
		s.change(func() { s.waiting = append(s.waiting, w) })
		return w
	}
	pass := func(d time.Duration) (yielded []int) {
		for range int(d / time.Second) {
			now = now.Add(time.Second)
			for _, w := range turns {
				w.gained(2 * minPace)
			}
		}
		for i, ctx := range contexts {
			if errors.Is(context.Cause(ctx), errYielded) {
				yielded = append(yielded, i)
			}
		}
		return yielded
	}
	own := wait("evil-a")
	if got := pass(2 * fullTurn); len(got) != 0 {
		t.Errorf("%v made room for a download of a namespace with as many slots", got)
	}
	own.end()
	team := wait("team")
	got := pass(time.Second)
	if len(got) != 1 || got[0] == 1 {
		t.Fatalf("%v made room, want one of the namespace with two slots", got)
	}
	turns[got[0]].end()
	select {
	case <-team.begun:
	default:
		t.Error("the download that waited has no slot")
	}
}

// TestAttackManyNamespacesThatKeepThePace: another namespace gets a slot within the time of a turn,
// however many others wait with it, and those that made room continue.
func TestAttackManyNamespacesThatKeepThePace(t *testing.T) {
	s := newSlots(3)
	now := time.Unix(1_800_000_000, 0)
	s.now = func() time.Time { return now }
	wait := func(namespace string) *turn {
		w := &turn{slots: s, wanted: of(namespace), begun: make(chan struct{}), last: now}
		w.yield = func(error) {}
		s.change(func() { s.waiting = append(s.waiting, w) })
		return w
	}
	for n := range 40 {
		wait(string(rune('a' + n%10)))
	}
	turns := map[string]int{}
	step := func() {
		now = now.Add(time.Second)
		for w := range maps.Clone(s.running) {
			w.gained(2 * minPace)
			if w.yielded {
				turns[w.namespace]++
				w.end()
				wait(w.namespace)
			}
		}
	}
	for range 600 {
		step()
	}
	for n := range 5 {
		team := wait("team" + string(rune('a'+n)))
		began := now
		for running := false; !running; {
			if step(); now.Sub(began) > fullTurn+2*time.Second {
				t.Fatalf("team %d waits for %s", n, now.Sub(began))
			}
			select {
			case <-team.begun:
				running = true
			default:
			}
		}
		team.end()
	}
	for namespace, n := range turns {
		if n < 2 {
			t.Errorf("%s had %d turns", namespace, n)
		}
	}
	if len(turns) != 10 {
		t.Errorf("%d namespaces had a turn", len(turns))
	}
}
