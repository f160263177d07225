//go:build !race

package fairqueue_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/gateway/fairqueue"
)

// full returns a queue that is filled by n keys.
func full(t testing.TB, n int) *fairqueue.Queue {
	q := newQueue(n, int64(n))
	for i := range n {
		if _, err := q.Enter(&fairqueue.Entry{Model: "m", Key: fmt.Sprint(i), Bytes: 1}, begin); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// TestAFullQueueRefusesCheaply: all models wait for the lock of the queue.
func TestAFullQueueRefusesCheaply(t *testing.T) {
	q, w := full(t, 1000), &fairqueue.Entry{Model: "m", Key: "other", Bytes: 1}
	if n := testing.AllocsPerRun(10, func() {
		if _, err := q.Enter(w, begin); !errors.Is(err, fairqueue.ErrFull) {
			t.Fatal(err)
		}
	}); n > 10 {
		t.Errorf("a refusal allocates %v objects, as if it looked at each of 1000 keys", n)
	}
}

func BenchmarkRefuse(b *testing.B) {
	q, w := full(b, 1000), &fairqueue.Entry{Model: "m", Key: "other", Bytes: 1}
	for b.Loop() {
		if _, err := q.Enter(w, begin); err == nil {
			b.Fatal("it was accepted")
		}
	}
}

// holderOf returns the key, across all models.
func holderOf(w *fairqueue.Entry) string { return w.Key }

// plain is a queue as a list in the order of arrival.
type plain struct {
	limits fairqueue.Limits
	list   []*fairqueue.Entry
}

// size returns the count and the bytes of a key, or of all if that is nil.
func (p *plain) size(key *string) (out [2]int64) {
	for _, w := range p.list {
		if key == nil || holderOf(w) == *key {
			out[0]++
			out[1] += w.Bytes
		}
	}
	return out
}

// enter returns the requests that a new one displaces.
func (p *plain) enter(w *fairqueue.Entry) (victims []*fairqueue.Entry, err error) {
	before := slices.Clone(p.list)
	p.list = append(p.list, w)
	key := holderOf(w)
	own := p.size(&key)
	for {
		by, all := 0, p.size(nil)
		if all[1] > p.limits.Bytes {
			by = 1
		} else if all[0] <= int64(p.limits.Count) {
			return victims, nil
		}
		var others []*fairqueue.Entry // the newest of each key, the newcomer left out
		for _, o := range slices.Backward(p.list[:len(p.list)-1]) {
			if !slices.ContainsFunc(others, func(x *fairqueue.Entry) bool { return holderOf(x) == holderOf(o) }) {
				others = append(others, o)
			}
		}
		if len(others) == 0 {
			p.list = before
			return nil, fairqueue.ErrFull
		}
		measure := func(o *fairqueue.Entry) int64 {
			k := holderOf(o)
			n := p.size(&k)[by]
			if k == key {
				n -= [2]int64{1, w.Bytes}[by]
			}
			return n
		}
		most := slices.MaxFunc(others, func(a, b *fairqueue.Entry) int { return cmp.Compare(measure(a), measure(b)) })
		switch {
		case holderOf(most) == key || measure(most) < own[by]:
			err = fairqueue.ErrShare
		case measure(most) == own[by]:
			err = fairqueue.ErrFull
		}
		if err != nil {
			p.list = before
			return nil, err
		}
		victims = append(victims, most)
		p.leave(most)
	}
}

func (p *plain) leave(w *fairqueue.Entry) {
	p.list = slices.DeleteFunc(p.list, func(o *fairqueue.Entry) bool { return o == w })
}

// TestDisplacedRequestsAreThoseOfAPlainList compares with a list that is read as a whole for
// each request.
func TestDisplacedRequestsAreThoseOfAPlainList(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		limits := fairqueue.Limits{Count: 1 + rng.IntN(12), Bytes: int64(1 + rng.IntN(60)), Age: 1 << 40}
		q, p := fairqueue.New(limits), &plain{limits: limits}
		for step := range 300 {
			if len(p.list) > 0 && rng.IntN(4) == 0 {
				w := p.list[rng.IntN(len(p.list))]
				q.Leave(w)
				p.leave(w)
				continue
			}
			w := &fairqueue.Entry{Model: fmt.Sprint(rng.IntN(2)), Key: fmt.Sprint(1 + rng.IntN(4)), Bytes: int64(1 + rng.IntN(11))}
			if w.Bytes > limits.Bytes {
				continue
			}
			got, err := q.Enter(w, begin)
			want, wantErr := p.enter(w)
			if !slices.Equal(got, want) || !errors.Is(err, wantErr) {
				t.Fatalf("seed %d step %d: %d displaced, %v; want %d, %v", seed, step, len(got), err, len(want), wantErr)
			}
		}
	}
}
