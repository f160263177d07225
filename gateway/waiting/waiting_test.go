//go:build !race

package waiting_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/gateway/waiting"
)

var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func room(count int, bytes int64) *waiting.Room {
	return waiting.New(waiting.Limits{Count: count, Bytes: bytes, Age: time.Minute})
}

func anybody(*waiting.Waiter) bool { return true }

// enter lets one in, who must get in.
func enter(t *testing.T, r *waiting.Room, now time.Time, model, key string) *waiting.Waiter {
	t.Helper()
	w := &waiting.Waiter{Model: model, Key: key, Bytes: 1}
	if left, err := r.Enter(w, now); err != nil || len(left) > 0 {
		t.Fatalf("%s %s: %v, %d had to leave", model, key, err, len(left))
	}
	return w
}

func TestEachKeyHasItsTurnHoweverManyWait(t *testing.T) {
	r := room(100, 100)
	var greedy, modest []*waiting.Waiter
	for range 10 {
		greedy = append(greedy, enter(t, r, begin, "m", "greedy"))
	}
	for range 3 {
		modest = append(modest, enter(t, r, begin, "m", "modest"))
	}
	other := enter(t, r, begin, "other", "greedy")
	want := []*waiting.Waiter{greedy[0], modest[0], greedy[1], modest[1], greedy[2], modest[2], greedy[3], greedy[4]}
	for i, w := range want {
		if got := r.Next("m", begin, anybody); got != w {
			t.Fatalf("turn %d is another's", i)
		}
	}
	late := enter(t, r, begin, "m", "late")
	for range 5 {
		enter(t, r, begin, "m", "late")
	}
	if first, second := r.Next("m", begin, anybody), r.Next("m", begin, anybody); first != greedy[5] && second != greedy[5] || first != late && second != late {
		t.Error("one that came late has turns that it did not use, or none")
	}
	if got := r.Next("other", begin, anybody); got != other || r.Len("other") != 0 || r.Len("m") != 9 {
		t.Errorf("another model: %v, %d wait", got == other, r.Len("m"))
	}
}

// TestAKeyThatAsksOneByOneStarvesNobody: it is done each time before it asks
// again, and remembered all the same.
func TestAKeyThatAsksOneByOneStarvesNobody(t *testing.T) {
	r := room(100, 100)
	for range 10 {
		enter(t, r, begin, "m", "patient")
	}
	served := map[string]int{}
	enter(t, r, begin, "m", "quick")
	for range 10 {
		w := r.Next("m", begin, anybody)
		if served[w.Key]++; w.Key == "quick" {
			enter(t, r, begin, "m", "quick")
		}
	}
	if served["patient"] != 5 || served["quick"] != 5 {
		t.Errorf("served %v, want 5 of each", served)
	}
}

func TestWhoMayNotBeTriedYetIsPassedOver(t *testing.T) {
	r := room(10, 10)
	first, second, third := enter(t, r, begin, "m", ""), enter(t, r, begin, "m", ""), enter(t, r, begin, "m", "")
	first.NotBefore = begin.Add(time.Second)
	if got := r.Next("m", begin, func(w *waiting.Waiter) bool { return w != second }); got != third {
		t.Error("the third is the only one who can be served")
	}
	if got := r.Next("m", begin, func(w *waiting.Waiter) bool { return w != second }); got != nil {
		t.Error("nobody can be served")
	}
	if got := r.Next("m", begin.Add(time.Second), anybody); got != first {
		t.Error("the first waited long enough")
	}
	// It comes back, and has its place again.
	if _, err := r.Enter(first, begin.Add(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	if r.Position(first) != 1 || r.Position(second) != 2 || r.Position(third) != 0 {
		t.Errorf("positions %d, %d, %d", r.Position(first), r.Position(second), r.Position(third))
	}
}

func TestTheRoomIsBoundedAndShared(t *testing.T) {
	r := room(4, 1000)
	var greedy []*waiting.Waiter
	for range 4 {
		greedy = append(greedy, enter(t, r, begin, "m", "greedy"))
	}
	if left, err := r.Enter(&waiting.Waiter{Model: "m", Key: "greedy"}, begin); !errors.Is(err, waiting.ErrShare) || len(left) > 0 {
		t.Errorf("more of the greedy: %v", err)
	}
	for i, key := range []string{"a", "b"} { // another's model too
		w := &waiting.Waiter{Model: fmt.Sprint("m", i), Key: key, Bytes: 1}
		left, err := r.Enter(w, begin)
		if err != nil || !slices.Equal(left, []*waiting.Waiter{greedy[3-i]}) || greedy[3-i].Waits() || !w.Waits() {
			t.Fatalf("%s: %v, %d had to leave, want the newest of the greedy", key, err, len(left))
		}
	}
	if left, err := r.Enter(&waiting.Waiter{Model: "m0", Key: "a", Bytes: 1}, begin); !errors.Is(err, waiting.ErrFull) || len(left) > 0 {
		t.Errorf("a would have as much as the greedy: %v", err)
	}

	r = room(100, 100)
	big := &waiting.Waiter{Model: "m", Key: "big", Bytes: 60}
	small := &waiting.Waiter{Model: "m", Key: "small", Bytes: 30}
	for _, w := range []*waiting.Waiter{big, small} {
		if _, err := r.Enter(w, begin); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := r.Enter(&waiting.Waiter{Model: "m", Key: "other", Bytes: 40}, begin); err != nil || !slices.Equal(left, []*waiting.Waiter{big}) {
		t.Errorf("bytes: %v, %d had to leave", err, len(left))
	}
	if _, err := r.Enter(&waiting.Waiter{Model: "m", Bytes: 101}, begin); !errors.Is(err, waiting.ErrFull) {
		t.Errorf("more than the room has: %v", err)
	}
	if _, err := room(0, 100).Enter(&waiting.Waiter{Model: "m"}, begin); !errors.Is(err, waiting.ErrFull) {
		t.Errorf("a room for nobody: %v", err)
	}
}

func TestNobodyWaitsInVain(t *testing.T) {
	r := room(100, 100)
	w := enter(t, r, begin, "m", "")
	if want := begin.Add(time.Minute); !w.Deadline.Equal(want) {
		t.Errorf("deadline %s, want %s", w.Deadline, want)
	}
	r.Leave(w)
	if _, err := r.Enter(w, begin.Add(time.Minute)); !errors.Is(err, waiting.ErrLate) {
		t.Errorf("it came again when its time was over: %v", err)
	}
	// A turn takes 2 s, which is known once three have come.
	now := begin
	var all []*waiting.Waiter
	for range 12 {
		all = append(all, enter(t, r, now, "m", ""))
	}
	if _, known := r.ETA(all[5], now); known {
		t.Error("an ETA without a turn that came")
	}
	for range 3 {
		r.Next("m", now, anybody)
		now = now.Add(2 * time.Second)
	}
	if eta, known := r.ETA(all[5], now); !known || eta != 3*3*time.Second { // 6 s, two turns later and none since
		t.Errorf("ETA %s, %v", eta, known)
	}
	if _, err := r.Enter(&waiting.Waiter{Model: "m", Bytes: 1, Deadline: now.Add(25 * time.Second)}, now); !errors.Is(err, waiting.ErrLate) || r.Len("m") != 9 {
		t.Errorf("the tenth in 25 s: %v, %d wait", err, r.Len("m"))
	}
	if _, err := r.Enter(&waiting.Waiter{Model: "m", Bytes: 1, Deadline: now.Add(35 * time.Second)}, now); err != nil {
		t.Errorf("the tenth in 35 s: %v", err)
	}
	// Long after, the pace of then says nothing.
	for r.Next("m", now, anybody) != nil {
	}
	w = enter(t, r, now.Add(time.Minute), "m", "")
	if _, known := r.ETA(w, now.Add(time.Minute)); known {
		t.Error("an old pace is believed")
	}
}

func TestQueuesSayWhoWaitsLongest(t *testing.T) {
	r := room(10, 10)
	enter(t, r, begin.Add(time.Second), "b", "y")
	enter(t, r, begin, "b", "x")
	enter(t, r, begin, "a", "")
	want := []waiting.Queue{{Model: "a", Count: 1, Oldest: begin}, {Model: "b", Count: 2, Oldest: begin}}
	if d := cmp.Diff(want, r.Queues()); d != "" {
		t.Error(d)
	}
}

// TestRandomHistoriesKeepTheBounds against a plain list: nobody is lost, bounds
// hold after every operation, and positions come true.
func TestRandomHistoriesKeepTheBounds(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		l := waiting.Limits{Count: 1 + rng.IntN(12), Bytes: int64(1 + rng.IntN(60)), Age: time.Hour}
		r := waiting.New(l)
		var in, out []*waiting.Waiter
		drop := func(w *waiting.Waiter) {
			in = slices.DeleteFunc(in, func(o *waiting.Waiter) bool { return o == w })
			out = append(out, w)
		}
		for step := range 300 {
			switch rng.IntN(5) {
			case 0, 1, 2:
				w := &waiting.Waiter{Model: fmt.Sprint(rng.IntN(2)), Key: fmt.Sprint(rng.IntN(4)), Bytes: int64(rng.IntN(12))}
				if len(out) > 0 && rng.IntN(4) == 0 {
					at := rng.IntN(len(out))
					w = out[at]
					out = slices.Delete(out, at, at+1)
				}
				left, err := r.Enter(w, begin)
				if (err == nil) != w.Waits() || err != nil && len(left) > 0 {
					t.Fatalf("seed %d step %d: %v, and it waits: %v", seed, step, err, w.Waits())
				}
				for _, v := range left {
					if v.Waits() || v == w {
						t.Fatalf("seed %d step %d: who had to leave waits", seed, step)
					}
					drop(v)
				}
				if err == nil {
					in = append(in, w)
				}
			case 3:
				model := fmt.Sprint(rng.IntN(2))
				places := map[*waiting.Waiter]int{}
				for _, w := range in {
					places[w] = r.Position(w)
				}
				for turn := 1; rng.IntN(3) > 0; turn++ {
					w := r.Next(model, begin, anybody)
					if w == nil {
						break
					}
					if places[w] != turn || w.Waits() {
						t.Fatalf("seed %d step %d: turn %d is of the one in place %d", seed, step, turn, places[w])
					}
					drop(w)
				}
			case 4:
				if len(in) > 0 {
					w := in[rng.IntN(len(in))]
					r.Leave(w)
					r.Leave(w)
					drop(w)
				}
			}
			bytes := int64(0)
			for _, w := range in {
				bytes += w.Bytes
			}
			if len(in) > l.Count || bytes > l.Bytes || r.Len("0")+r.Len("1") != len(in) {
				t.Fatalf("seed %d step %d: %d wait with %d bytes, the room says %d, limits %+v", seed, step, len(in), bytes, r.Len("0")+r.Len("1"), l)
			}
		}
	}
}

// A key that asks many models takes no more of the room than one that asks one.
func TestAKeyHasOneShareAtAllModels(t *testing.T) {
	r := room(12, 100)
	for i := range 10 {
		enter(t, r, begin, fmt.Sprint("m", i), "greedy")
	}
	enter(t, r, begin, "m0", "modest")
	enter(t, r, begin, "m0", "modest")
	for i := range 4 { // until both have six
		left, err := r.Enter(&waiting.Waiter{Model: "m0", Key: "modest", Bytes: 1}, begin)
		if err != nil || len(left) != 1 || left[0].Key != "greedy" || left[0].Model != fmt.Sprint("m", 9-i) {
			t.Fatalf("%v, %d had to leave, want the newest of the greedy key", err, len(left))
		}
	}
	if _, err := r.Enter(&waiting.Waiter{Model: "m0", Key: "modest", Bytes: 1}, begin); !errors.Is(err, waiting.ErrShare) && !errors.Is(err, waiting.ErrFull) {
		t.Errorf("beyond its share: %v", err)
	}
	if _, err := r.Enter(&waiting.Waiter{Model: "new", Key: "greedy", Bytes: 1}, begin); err == nil {
		t.Error("the greedy key has room at another model")
	}
}

// Where no keys are asked, models share the room: one that many ask does not keep out
// the requests for another.
func TestModelsShareTheRoomWhereNoKeysAreAsked(t *testing.T) {
	r := room(6, 100)
	for range 6 {
		enter(t, r, begin, "busy", "")
	}
	for range 3 {
		left, err := r.Enter(&waiting.Waiter{Model: "quiet", Bytes: 1}, begin)
		if err != nil || len(left) != 1 || left[0].Model != "busy" {
			t.Fatalf("%v, %d had to leave, want one of the busy model", err, len(left))
		}
	}
	if _, err := r.Enter(&waiting.Waiter{Model: "busy", Bytes: 1}, begin); err == nil {
		t.Error("the busy model has more than its share")
	}
}
