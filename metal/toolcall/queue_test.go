//go:build !race

package toolcall

import (
	"slices"
	"testing"
	"time"
)

// TestAttackSymbolsThatAreReadAgain: a body that fails may contain many tags. What begins at
// each of them is put back without copying all that follows.
func TestAttackSymbolsThatAreReadAgain(t *testing.T) {
	const times = 20_000
	var q queue
	q.append(make([]symbol, 1<<20)...)
	began := time.Now()
	for range times {
		q.pop()
		q.prepend([]symbol{1, 2})
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("%d symbols were put back in %s", 2*times, took)
	}
	if n := q.len(); n != 1<<20+times {
		t.Errorf("%d symbols are left", n)
	}
}

// What is put back comes first, in its order.
func TestWhatIsPutBackIsReadNext(t *testing.T) {
	var q queue
	var want, got []symbol
	for i := range symbol(100) {
		q.append(i, i+1000)
		want = append(want, i, i+1000)
		if i%3 == 0 {
			got = append(got, q.pop())
		}
		if i%7 == 0 {
			again := []symbol{i + 2000, i + 3000, i + 4000}
			q.prepend(again)
			want = slices.Insert(want, len(got), again...)
		}
	}
	for q.len() > 0 {
		got = append(got, q.pop())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
