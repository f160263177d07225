//go:build !race

package pick

import "testing"

func TestRecentKeepsTheLastOnesAndIsBounded(t *testing.T) {
	var r Recent
	if r.Has(0) {
		t.Error("nothing was added")
	}
	for n := range uint64(10 * recentMax) {
		r.Add(n)
		if !r.Has(n) || n >= recentMax && !r.Has(n-recentMax+1) {
			t.Fatalf("after %d: one of the last %d is forgotten", n, recentMax)
		}
		if len(r.young)+len(r.old) > 2*recentMax {
			t.Fatalf("after %d: %d are kept", n, len(r.young)+len(r.old))
		}
		r.Add(1 << 40) // a hash that is looked up again and again
	}
	if r.Has(0) || !r.Has(1<<40) {
		t.Error("the first is known, or what was added all the time is not")
	}
}
