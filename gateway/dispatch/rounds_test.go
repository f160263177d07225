package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestManySmallRequestsThatAreRefusedForNow: those of one tenant are not all sent to Macs each
// second, and each is sent again all the same.
func TestManySmallRequestsThatAreRefusedForNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests, seconds = 300, 60
		d := New(Config{Queue: fairqueue.Limits{Count: requests, Bytes: 1 << 30, Age: 5 * time.Minute}, KeepAlive: time.Minute, Registry: prometheus.NewRegistry()})
		ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
		defer cancel()
		model, all, least := newModel("r"), atomic.Int64{}, atomic.Int64{}
		least.Store(requests * seconds)
		var clients sync.WaitGroup
		for range requests {
			clients.Go(func() {
				r := &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Owner: "mallory", Bytes: 300, Client: patient{}}
				sent := int64(0)
				for {
					lease, err := d.Acquire(ctx, r)
					if err != nil {
						break
					}
					sent++
					lease.Release()
					lease.Failed(&Failure{Reason: ReasonRefused, Err: errModelGone, Refusal: openai.RateLimited(time.Second)})
				}
				all.Add(sent)
				least.Store(min(least.Load(), sent))
			})
		}
		clients.Wait()
		if most := int64(requests + roundsBurst + roundsPerSecond*seconds); all.Load() > most || least.Load() < 5 {
			t.Errorf("%d attempts in %d seconds, want %d at most, and of one request %d", all.Load(), seconds, most, least.Load())
		}
	})
}

// TestLargeBodiesThatAreSentAgainHoldUpNoSmallOne of the same address.
func TestLargeBodiesThatAreSentAgainHoldUpNoSmallOne(t *testing.T) {
	d, now := New(Config{Registry: prometheus.NewRegistry()}), time.Now()
	d.queue.now = func() time.Time { return now }
	model := newModel("r")
	for range 32 { // each leaves then
		d.queue.resend(&Request{model: model, Owner: "192.0.2.1", Bytes: 16 << 20}, now)
	}
	small := &Request{model: model, Owner: "192.0.2.1", Bytes: 300}
	if after := d.queue.resend(small, now); after > 0 || !d.queue.mayRetry(small) {
		t.Errorf("a small request waits %s", after)
	}
	for range 100_000 {
		d.queue.resend(small, now)
	}
	if after := d.queue.resend(small, now); after == 0 || after > 15*time.Second {
		t.Errorf("after 100,000 small ones the next waits %s", after)
	}
}
