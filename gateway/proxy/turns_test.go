package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/route"
)

// A key that requests many nonexistent responses must not make another one wait for all of
// its searches.
func TestSearchesOfOneTenantHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurns(2, 16)
		var order []string
		ends := make(chan func(), 100)
		search := func(ctx context.Context, tenant string) {
			go func() {
				if end, err := s.begin(ctx, tenant); err == nil {
					order = append(order, tenant)
					ends <- end
				}
			}()
			synctest.Wait()
		}
		for range 10 {
			search(t.Context(), "hog")
		}
		if len(order) != 2 {
			t.Errorf("a tenant alone has %d searches, want 2", len(order))
		}
		gone, leave := context.WithCancel(t.Context())
		search(gone, "gone")
		search(t.Context(), "victim")
		leave()
		synctest.Wait()
		(<-ends)()
		synctest.Wait()
		if len(order) != 3 || order[2] != "victim" {
			t.Errorf("after one search of the other tenant ended, %v began", order[2:])
		}
		for range 10 {
			(<-ends)()
			synctest.Wait()
		}
		if len(order) != 11 || s.running != 0 || len(s.tenants) != 0 {
			t.Errorf("%d searches began, %d run and %d tenants are known", len(order), s.running, len(s.tenants))
		}
	})
}

// The queue of a key's searches is bounded: each waiting one holds its request.
func TestSearchesOfOneTenantThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurns(2, 16)
		ctx, stop := context.WithCancel(t.Context())
		refused := 0
		for range 100 {
			go func() {
				if _, err := s.begin(ctx, "hog"); errors.Is(err, errTurns) {
					refused++
				}
			}()
			synctest.Wait()
		}
		if refused != 100-16 {
			t.Errorf("%d of 100 searches were refused, want all but 16", refused)
		}
		victim, leave := context.WithCancel(t.Context())
		leave()
		if _, err := s.begin(victim, "victim"); errors.Is(err, errTurns) {
			t.Error("searches of one tenant have one of another refused")
		}
		stop()
		synctest.Wait()
	})
}

// Some requests end when their clients like. Many tenants that have many of these leave slots to
// those that have none, and to one with many clients as many as before.
func TestTurnsOfManyTenantsLeaveSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newReads(64, 16)
		ctx, stop := context.WithCancel(t.Context())
		runs, ends := map[string]int{}, make(chan func(), 100)
		begin := func(tenant string, n int) {
			for range n {
				go func() {
					if end, err := s.begin(ctx, tenant); err == nil {
						runs[tenant]++
						ends <- end
					}
				}()
				synctest.Wait()
			}
		}
		begin("proxy", 16)
		for n := range 16 {
			begin(fmt.Sprint("hog", n), 16)
		}
		begin("victim", 1)
		begin("another", 1)
		if runs["proxy"] != 16 || runs["victim"] != 1 || runs["another"] != 1 {
			t.Errorf("running: %v", runs)
		}
		(<-ends)() // of the proxy
		synctest.Wait()
		if begin("proxy", 1); len(ends) != s.running {
			t.Errorf("%d run and %d are counted", len(ends), s.running)
		}
		stop()
		for synctest.Wait(); len(ends) > 0; synctest.Wait() {
			(<-ends)()
		}
		if s.running != 0 || s.waiting.Len() != 0 || len(s.tenants) != 0 {
			t.Errorf("%d run, %d wait and %d tenants are known", s.running, s.waiting.Len(), len(s.tenants))
		}
	})
}

// A tunnel has a thousand streams for all requests to its Mac.
func TestReadsOfOneMacLeaveItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s macTurns
		ctx, stop := context.WithCancel(t.Context())
		runs := map[string]int{}
		begin := func(mac, tenant string, n int) {
			for range n {
				go func() {
					if end, err := s.begin(ctx, mac, tenant); err == nil {
						defer end()
						runs[mac]++
						runs[tenant]++
						<-ctx.Done()
					}
				}()
				synctest.Wait()
			}
		}
		for n := range 16 {
			begin("mac-a", fmt.Sprint("hog", n), readsEach)
		}
		begin("mac-a", "victim", 1)
		begin("mac-b", "victim", 1)
		if runs["mac-a"] > 1000/3 || runs["victim"] != 2 {
			t.Errorf("running: %v", runs)
		}
		stop()
		synctest.Wait()
		if len(s.macs) != 0 {
			t.Errorf("%d Macs are known", len(s.macs))
		}
	})
}

// A request for a stored response does not wait for as long as others like to.
func TestReadsWaitAShortTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stored{reads: newReads(1, 1), table: route.NewTable()}
		for _, other := range []string{"a", "b"} {
			end, err := s.reads.begin(t.Context(), other)
			if err != nil {
				t.Fatal(err)
			}
			defer end()
		}
		began := time.Now()
		_, _, err := s.turn(t.Context(), caller{address: "10.0.0.2:1"}, responses.NewID("mac"))
		var e *openai.Error
		if !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable || e.RetryAfter <= 0 || time.Since(began) > time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		for _, limit := range []time.Duration{0, time.Hour} { // of all requests
			ctx, cancel := context.WithCancelCause(t.Context())
			(&forwarder{tryTimeout: limit}).boundTry(&request{within: beginTime}, cancel)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), errTry) {
				t.Errorf("a response that does not begin: %v", context.Cause(ctx))
			}
		}
		if time.Since(began) > 3*beginTime {
			t.Errorf("responses that do not begin end after %s", time.Since(began))
		}
	})
}

// Without keys, each address has turns of its own: else one client that searches has all others
// refused.
func TestSearchesOfOneAddressHoldUpNoOther(t *testing.T) {
	s := &stored{searches: newTurns(2, 1), table: route.NewTable()}
	hog, victim := caller{address: "10.0.0.1:1"}, caller{address: "10.0.0.2:1"}
	end, err := s.searches.begin(t.Context(), hog.share())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	id := responses.NewAnywhere().ID()
	if _, _, err := s.find(t.Context(), hog, id); err == nil {
		t.Error("an address has more searches than it may")
	}
	if _, _, err := s.find(t.Context(), victim, id); err != nil {
		t.Errorf("another one: %v", err)
	}
}

// TestAttackSearchesForInventedResponses: each asks every Mac.
func TestAttackSearchesForInventedResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stored{searches: newTurns(2, 16), table: route.NewTable()}
		find := func(address string) error {
			_, _, err := s.find(t.Context(), caller{address: address}, responses.NewAnywhere().ID())
			return err
		}
		for range missedBurst {
			if err := find("10.0.0.1:1"); err != nil {
				t.Fatal(err)
			}
		}
		var e *openai.Error
		if err := find("10.0.0.1:1"); !errors.As(err, &e) || e.RetryAfter <= 0 {
			t.Errorf("one more search: %v", err)
		}
		if err := find("10.0.0.2:1"); err != nil {
			t.Errorf("a search of another client: %v", err)
		}
		time.Sleep(time.Second)
		if err := find("10.0.0.1:1"); err != nil {
			t.Errorf("a second later: %v", err)
		}
	})
}

// TestSearchesThatFindAResponse also ask every Mac: one client has a few thousand Macs asked in
// each second, and in a small fleet it notices no limit.
func TestSearchesThatFindAResponse(t *testing.T) {
	for _, c := range []struct{ macs, most int }{{macs: 10, most: 10_000}, {macs: 1000, most: 400}} {
		var s searched
		now, searches := time.Now(), 0
		for range c.most {
			if s.wait("a", now) == 0 {
				searches++
				s.add("a", true, c.macs, now)
			}
			now = now.Add(10 * time.Millisecond)
		}
		if asked := searches * c.macs; c.macs == 10 && searches < c.most || asked > askedPerMiss*(missedBurst+c.most/100+1) {
			t.Errorf("of %d searches, %d asked %d Macs", c.most, searches, asked)
		}
		if s.wait("b", now) > 0 {
			t.Error("another client has to wait")
		}
	}
}
