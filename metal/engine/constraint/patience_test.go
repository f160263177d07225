package constraint

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer/tokenizertest"
)

// waitsFor returns how long other requests wait for the masks of a tenant, of which each is late and of
// the first token of a request.
func waitsFor(t *testing.T, c *Compiler, tenant string, requests int) time.Duration {
	t.Helper()
	began := time.Now()
	for range requests {
		s, err := c.Compile(t.Context(), tenant, grammar.Spec{Kind: grammar.JSONObject}, text.Thinking{})
		if err != nil {
			t.Fatal(err)
		}
		s.mask = &mask{done: make(chan struct{})}
		s.Await(time.Now().Add(MaxWait))
		s.Release()
	}
	return time.Since(began)
}

// However many short requests of a tenant come, others wait for their masks for a tenth of the time.
func TestOthersWaitForATenantAndNotForEachOfItsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tok := tokenizertest.New(t, false)
		c := NewCompiler(tok, tok.Size(), map[int32]bool{tokenizertest.End: true}, 1<<20)
		if waited := waitsFor(t, c, "hog", 100); waited < MaxWait || waited > MaxWait*refill/(refill-MaxWait) {
			t.Errorf("others wait %v for 100 requests of one tenant, want %v", waited, MaxWait)
		}
		if waited := waitsFor(t, c, "other", 1); waited != MaxWait {
			t.Errorf("others wait %v for a request of another tenant, want %v", waited, MaxWait)
		}
		time.Sleep(refill)
		began := time.Now()
		var waited time.Duration
		for range 100 { // steps without their waits
			time.Sleep(MaxWait)
			waited += waitsFor(t, c, "hog", 3)
		}
		if most := MaxWait + time.Since(began)*MaxWait/refill; waited > most {
			t.Errorf("others wait %v within %v, want at most %v", waited, time.Since(began), most)
		}
		time.Sleep(refill)
		if waited := waitsFor(t, c, "hog", 1); waited != MaxWait {
			t.Errorf("others wait %v for a tenant that rested, want %v", waited, MaxWait)
		}
	})
}

// What others waited in addition to what was left, for tokens that take long to follow, is paid back.
func TestWaitsThatAreLongerThanWhatWasLeftCount(t *testing.T) {
	const long = 2 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		var p patience
		var waited time.Duration
		began := time.Now()
		for range 1000 {
			time.Sleep(quickTry)
			if p.left("hog") > 0 {
				time.Sleep(long)
				waited += long
				p.spend("hog", long)
			}
		}
		if most := MaxWait + long + time.Since(began)*MaxWait/refill; waited > most {
			t.Errorf("others wait %v within %v, want at most %v", waited, time.Since(began), most)
		}
	})
}

// A tenant that has all patience again is forgotten.
func TestTenantsForWhichNoneWaitedLatelyAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p patience
		for i := range 100 * leastSweep {
			p.spend(fmt.Sprint(i), MaxWait)
			time.Sleep(refill)
		}
		if n := len(p.full); n > leastSweep {
			t.Errorf("%d tenants are remembered, want at most %d", n, leastSweep)
		}
	})
}
