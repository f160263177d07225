//go:build !race

package fairqueue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/gateway/fairqueue"
)

var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func newQueue(count int, bytes int64) *fairqueue.Queue {
	return fairqueue.New(fairqueue.Limits{Count: count, Bytes: bytes, Age: time.Minute})
}

func anyEntry(*fairqueue.Entry) bool { return true }

// none is the number of requests that run in most tests.
func none(*fairqueue.Entry) int { return 0 }

// enter queues a request that must be accepted.
func enter(t *testing.T, q *fairqueue.Queue, now time.Time, model, key string) *fairqueue.Entry {
	t.Helper()
	w := &fairqueue.Entry{Model: model, Key: key, Bytes: 1}
	if left, err := q.Enter(w, now); err != nil || len(left) > 0 {
		t.Fatalf("%s %s: %v, %d were displaced", model, key, err, len(left))
	}
	return w
}

func TestEachKeyHasItsTurnHoweverManyWait(t *testing.T) {
	q := newQueue(100, 100)
	var greedy, modest []*fairqueue.Entry
	for range 10 {
		greedy = append(greedy, enter(t, q, begin, "m", "greedy"))
	}
	for range 3 {
		modest = append(modest, enter(t, q, begin, "m", "modest"))
	}
	other := enter(t, q, begin, "other", "greedy")
	want := []*fairqueue.Entry{greedy[0], modest[0], greedy[1], modest[1], greedy[2], modest[2], greedy[3], greedy[4]}
	for i, w := range want {
		if got := q.Next("m", begin, none, anyEntry); got != w {
			t.Fatalf("turn %d is another's", i)
		}
	}
	late := enter(t, q, begin, "m", "late")
	for range 5 {
		enter(t, q, begin, "m", "late")
	}
	if first, second := q.Next("m", begin, none, anyEntry), q.Next("m", begin, none, anyEntry); first != greedy[5] && second != greedy[5] || first != late && second != late {
		t.Error("one that came late has turns that it did not use, or none")
	}
	if got := q.Next("other", begin, none, anyEntry); got != other || q.Len("other") != 0 || q.Len("m") != 9 {
		t.Errorf("another model: %v, %d wait", got == other, q.Len("m"))
	}
}

// A key whose requests take long does not get a slot for each that ends.
func TestTheKeyThatRunsTheFewestIsServedFirst(t *testing.T) {
	q := newQueue(100, 100)
	running := map[string]int{"long": 3, "short": 1}
	for range 5 {
		enter(t, q, begin, "m", "long")
		enter(t, q, begin, "m", "short")
	}
	var order []string
	for range 6 {
		w := q.Next("m", begin, func(e *fairqueue.Entry) int { return running[e.Key] }, anyEntry)
		running[w.Key]++
		order = append(order, w.Key)
	}
	if want := []string{"short", "short"}; !cmp.Equal(order[:2], want) || running["long"] != 5 || running["short"] != 5 {
		t.Errorf("served %v, %v run", order, running)
	}
}

// Between its requests such a key has none in the queue; its turns must be remembered
// anyway.
func TestAKeyWithOneRequestAtATimeIsNotStarved(t *testing.T) {
	q := newQueue(100, 100)
	for range 10 {
		enter(t, q, begin, "m", "patient")
	}
	served := map[string]int{}
	enter(t, q, begin, "m", "quick")
	for range 10 {
		w := q.Next("m", begin, none, anyEntry)
		if served[w.Key]++; w.Key == "quick" {
			enter(t, q, begin, "m", "quick")
		}
	}
	if served["patient"] != 5 || served["quick"] != 5 {
		t.Errorf("served %v, want 5 of each", served)
	}
}

func TestRequestsThatMayNotBeTriedYetArePassedOver(t *testing.T) {
	q := newQueue(10, 10)
	first, second, third := enter(t, q, begin, "m", ""), enter(t, q, begin, "m", ""), enter(t, q, begin, "m", "")
	first.NotBefore = begin.Add(time.Second)
	if got := q.Next("m", begin, none, func(w *fairqueue.Entry) bool { return w != second }); got != third {
		t.Error("the third is the only one who can be served")
	}
	if got := q.Next("m", begin, none, func(w *fairqueue.Entry) bool { return w != second }); got != nil {
		t.Error("none can be served")
	}
	if got := q.Next("m", begin.Add(time.Second), none, anyEntry); got != first {
		t.Error("the first waited long enough")
	}
	// It returns, and has its place again.
	if _, err := q.Enter(first, begin.Add(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	if q.Position(first) != 1 || q.Position(second) != 2 || q.Position(third) != 0 {
		t.Errorf("positions %d, %d, %d", q.Position(first), q.Position(second), q.Position(third))
	}
}

func TestTheQueueIsBoundedAndShared(t *testing.T) {
	q := newQueue(4, 1000)
	var greedy []*fairqueue.Entry
	for range 4 {
		greedy = append(greedy, enter(t, q, begin, "m", "greedy"))
	}
	if left, err := q.Enter(&fairqueue.Entry{Model: "m", Key: "greedy"}, begin); !errors.Is(err, fairqueue.ErrShare) || len(left) > 0 {
		t.Errorf("more of the greedy: %v", err)
	}
	for i, key := range []string{"a", "b"} { // also those of another model
		w := &fairqueue.Entry{Model: fmt.Sprint("m", i), Key: key, Bytes: 1}
		left, err := q.Enter(w, begin)
		if err != nil || !slices.Equal(left, []*fairqueue.Entry{greedy[3-i]}) || greedy[3-i].Waits() || !w.Waits() {
			t.Fatalf("%s: %v, %d were displaced, want the newest of the greedy", key, err, len(left))
		}
	}
	if left, err := q.Enter(&fairqueue.Entry{Model: "m0", Key: "a", Bytes: 1}, begin); !errors.Is(err, fairqueue.ErrFull) || len(left) > 0 {
		t.Errorf("a would have as much as the greedy: %v", err)
	}

	q = newQueue(100, 100)
	big := &fairqueue.Entry{Model: "m", Key: "big", Bytes: 60}
	small := &fairqueue.Entry{Model: "m", Key: "small", Bytes: 30}
	for _, w := range []*fairqueue.Entry{big, small} {
		if _, err := q.Enter(w, begin); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := q.Enter(&fairqueue.Entry{Model: "m", Key: "other", Bytes: 40}, begin); err != nil || !slices.Equal(left, []*fairqueue.Entry{big}) {
		t.Errorf("bytes: %v, %d were displaced", err, len(left))
	}
	if _, err := q.Enter(&fairqueue.Entry{Model: "m", Bytes: 101}, begin); !errors.Is(err, fairqueue.ErrFull) {
		t.Errorf("more bytes than the queue may hold: %v", err)
	}
	if _, err := newQueue(0, 100).Enter(&fairqueue.Entry{Model: "m"}, begin); !errors.Is(err, fairqueue.ErrFull) {
		t.Errorf("a queue without a count: %v", err)
	}
}

func TestNoRequestWaitsInVain(t *testing.T) {
	q := newQueue(100, 100)
	w := enter(t, q, begin, "m", "")
	if want := begin.Add(time.Minute); !w.Deadline.Equal(want) {
		t.Errorf("deadline %s, want %s", w.Deadline, want)
	}
	q.Leave(w)
	if _, err := q.Enter(w, begin.Add(time.Minute)); !errors.Is(err, fairqueue.ErrLate) {
		t.Errorf("it came again when its time was over: %v", err)
	}
	// A turn takes 2 s, which is known after three of them.
	now := begin
	var all []*fairqueue.Entry
	for range 12 {
		all = append(all, enter(t, q, now, "m", ""))
	}
	if _, known := q.ETA(all[5], now); known {
		t.Error("an ETA without a turn that came")
	}
	for range 3 {
		q.Next("m", now, none, anyEntry)
		now = now.Add(2 * time.Second)
	}
	if eta, known := q.ETA(all[5], now); !known || eta != 3*3*time.Second { // 6 s: two turns later, and none since
		t.Errorf("ETA %s, %v", eta, known)
	}
	if _, err := q.Enter(&fairqueue.Entry{Model: "m", Bytes: 1, Deadline: now.Add(25 * time.Second)}, now); !errors.Is(err, fairqueue.ErrLate) || q.Len("m") != 9 {
		t.Errorf("the tenth in 25 s: %v, %d wait", err, q.Len("m"))
	}
	if _, err := q.Enter(&fairqueue.Entry{Model: "m", Bytes: 1, Deadline: now.Add(35 * time.Second)}, now); err != nil {
		t.Errorf("the tenth in 35 s: %v", err)
	}
	// Much later, the old pace is dropped.
	for q.Next("m", now, none, anyEntry) != nil {
	}
	w = enter(t, q, now.Add(time.Minute), "m", "")
	if _, known := q.ETA(w, now.Add(time.Minute)); known {
		t.Error("an old pace is believed")
	}
}

// TestANewcomerIsNotLateBecauseOfThoseThatRunMore: they are served after it, however many wait.
func TestANewcomerIsNotLateBecauseOfThoseThatRunMore(t *testing.T) {
	running := map[string]int{"long": 80, "short": 1}
	runs := func(e *fairqueue.Entry) int { return running[e.Key] }
	q := newQueue(1000, 1000)
	q.Runs = runs
	for range 100 {
		enter(t, q, begin, "m", "long")
	}
	now := begin
	for range 20 { // a second each
		first := enter(t, q, now, "m", "short")
		if at := q.Position(first); at != 1 {
			t.Fatalf("place %d of the one that is served next", at)
		}
		if got := q.Next("m", now, runs, anyEntry); got != first {
			t.Fatal("another is served first")
		}
		now = now.Add(time.Second)
	}
	e := &fairqueue.Entry{Model: "m", Key: "short", Bytes: 1, Deadline: now.Add(10 * time.Second)}
	if _, err := q.Enter(e, now); err != nil {
		t.Errorf("the next is refused: %v", err)
	}
	running["short"] = 80
	if at := q.Position(e); at <= 20 {
		t.Errorf("place %d among those that run as many", at)
	}
}

func TestLengthsHaveTheOldestRequest(t *testing.T) {
	q := newQueue(10, 10)
	enter(t, q, begin.Add(time.Second), "b", "y")
	enter(t, q, begin, "b", "x")
	enter(t, q, begin, "a", "")
	want := []fairqueue.Length{{Model: "a", Count: 1, Oldest: begin}, {Model: "b", Count: 2, Oldest: begin}}
	got := q.Lengths()
	slices.SortFunc(got, func(a, b fairqueue.Length) int { return strings.Compare(a.Model, b.Model) })
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// history is a queue and a plain model of it: the entries that wait, and those that left.
type history struct {
	*fairqueue.Queue
	limits  fairqueue.Limits
	rng     *rand.Rand
	in, out []*fairqueue.Entry
}

func (h *history) drop(w *fairqueue.Entry) {
	h.in = slices.DeleteFunc(h.in, func(o *fairqueue.Entry) bool { return o == w })
	h.out = append(h.out, w)
}

// enter queues a new entry, or one that left.
func (h *history) enter() error {
	w := &fairqueue.Entry{Model: fmt.Sprint(h.rng.IntN(2)), Key: fmt.Sprint(h.rng.IntN(4)), Bytes: int64(h.rng.IntN(12))}
	if len(h.out) > 0 && h.rng.IntN(4) == 0 {
		at := h.rng.IntN(len(h.out))
		w = h.out[at]
		h.out = slices.Delete(h.out, at, at+1)
	}
	left, err := h.Enter(w, begin)
	if (err == nil) != w.Waits() || err != nil && len(left) > 0 {
		return fmt.Errorf("%v, and it waits: %v", err, w.Waits())
	}
	for _, v := range left {
		if v.Waits() || v == w {
			return errors.New("a displaced request waits")
		}
		h.drop(v)
	}
	if err == nil {
		h.in = append(h.in, w)
	}
	return nil
}

// next takes some entries of a model, which must leave in the order of their positions.
func (h *history) next() error {
	model := fmt.Sprint(h.rng.IntN(2))
	places := map[*fairqueue.Entry]int{}
	for _, w := range h.in {
		places[w] = h.Position(w)
	}
	for turn := 1; h.rng.IntN(3) > 0; turn++ {
		w := h.Next(model, begin, none, anyEntry)
		if w == nil {
			break
		}
		if places[w] != turn || w.Waits() {
			return fmt.Errorf("turn %d is of the one in place %d", turn, places[w])
		}
		h.drop(w)
	}
	return nil
}

// leave removes an entry twice.
func (h *history) leave() {
	if len(h.in) > 0 {
		w := h.in[h.rng.IntN(len(h.in))]
		h.Leave(w)
		h.Leave(w)
		h.drop(w)
	}
}

// check compares the queue with the model and its limits.
func (h *history) check() error {
	bytes := int64(0)
	for _, w := range h.in {
		bytes += w.Bytes
	}
	if n := h.Len("0") + h.Len("1"); len(h.in) > h.limits.Count || bytes > h.limits.Bytes || n != len(h.in) {
		return fmt.Errorf("%d wait with %d bytes, the queue counts %d, limits %+v", len(h.in), bytes, n, h.limits)
	}
	return nil
}

// TestRandomHistoriesKeepTheBounds compares with a plain list: no request is lost, bounds
// hold after every operation, and positions are right.
func TestRandomHistoriesKeepTheBounds(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		l := fairqueue.Limits{Count: 1 + rng.IntN(12), Bytes: int64(1 + rng.IntN(60)), Age: time.Hour}
		h := &history{Queue: fairqueue.New(l), limits: l, rng: rng}
		for step := range 300 {
			var err error
			switch rng.IntN(5) {
			case 0, 1, 2:
				err = h.enter()
			case 3:
				err = h.next()
			case 4:
				h.leave()
			}
			if err := errors.Join(err, h.check()); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
		}
	}
}

// A key that uses many models gets no more of the queue than one that uses a single model.
func TestAKeyHasOneShareAtAllModels(t *testing.T) {
	q := newQueue(12, 100)
	for i := range 10 {
		enter(t, q, begin, fmt.Sprint("m", i), "greedy")
	}
	enter(t, q, begin, "m0", "modest")
	enter(t, q, begin, "m0", "modest")
	for i := range 4 { // until both have six
		left, err := q.Enter(&fairqueue.Entry{Model: "m0", Key: "modest", Bytes: 1}, begin)
		if err != nil || len(left) != 1 || left[0].Key != "greedy" || left[0].Model != fmt.Sprint("m", 9-i) {
			t.Fatalf("%v, %d were displaced, want the newest of the greedy key", err, len(left))
		}
	}
	if _, err := q.Enter(&fairqueue.Entry{Model: "m0", Key: "modest", Bytes: 1}, begin); !errors.Is(err, fairqueue.ErrShare) && !errors.Is(err, fairqueue.ErrFull) {
		t.Errorf("beyond its share: %v", err)
	}
	if _, err := q.Enter(&fairqueue.Entry{Model: "new", Key: "greedy", Bytes: 1}, begin); err == nil {
		t.Error("the greedy key is accepted at another model")
	}
}

// If no keys are required, models share the queue: requests for a popular one do not keep
// out those for another.
func TestModelsShareTheQueueIfNoKeysAreRequired(t *testing.T) {
	q := newQueue(6, 100)
	for range 6 {
		enter(t, q, begin, "busy", "")
	}
	for range 3 {
		left, err := q.Enter(&fairqueue.Entry{Model: "quiet", Bytes: 1}, begin)
		if err != nil || len(left) != 1 || left[0].Model != "busy" {
			t.Fatalf("%v, %d were displaced, want one of the busy model", err, len(left))
		}
	}
	if _, err := q.Enter(&fairqueue.Entry{Model: "busy", Bytes: 1}, begin); err == nil {
		t.Error("the busy model has more than its share")
	}
}
