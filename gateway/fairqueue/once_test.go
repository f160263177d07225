package fairqueue

import (
	"fmt"
	"testing"
	"time"
)

// TestTenantsThatComeOnceTakeOneTurnEach: one that comes again waits for a turn of those that wait, not of
// all that come meanwhile, and of those that were served nothing is kept.
func TestTenantsThatComeOnceTakeOneTurnEach(t *testing.T) {
	const waiting = 10
	q := New(Limits{Count: 1000, Bytes: 64 << 20, Age: time.Hour})
	now, once := time.Unix(1000, 0), 0
	enter := func(tenant string) *Entry {
		e := &Entry{Model: "m", Tenant: tenant}
		if _, err := q.Enter(e, now); err != nil {
			t.Fatal(err)
		}
		return e
	}
	next := func() *Entry {
		return q.Next("m", now, func(*Entry) int { return 0 }, func(*Entry) bool { return true })
	}
	for range waiting {
		once++
		enter(fmt.Sprint("once ", once))
	}
	for range 5 {
		again, turns := enter("again"), 0
		for next() != again {
			if turns++; turns > waiting+1 {
				t.Fatalf("it waits for more than %d turns", waiting)
			}
			once++
			enter(fmt.Sprint("once ", once))
		}
	}
	if n := len(q.queues["m"].flows); n > 2*waiting {
		t.Errorf("%d tenants are kept, of which %d wait", n, waiting)
	}
}
