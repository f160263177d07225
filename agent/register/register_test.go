package register

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestTheLeaseIsRenewedEveryTenSecondsAndSoonerAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards times and fail
		var times []time.Time
		fail := true
		h := &Heartbeat{log: logr.Discard(), renew: func(_ context.Context, now time.Time) error {
			mu.Lock()
			defer mu.Unlock()
			times = append(times, now)
			if fail {
				return errors.New("the API is away")
			}
			return nil
		}}
		since := func() []time.Time {
			mu.Lock()
			defer mu.Unlock()
			seen := times
			times = nil
			return seen
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.Run(ctx) }()
		time.Sleep(60 * time.Second)
		if n := len(since()); n < 10 || n > 25 {
			t.Errorf("%d attempts in a minute without the API", n)
		}
		mu.Lock()
		fail = false
		mu.Unlock()
		time.Sleep(6 * time.Second)
		since()
		time.Sleep(10 * time.Minute)
		renewed := since()
		if n := len(renewed); n < 54 || n > 67 {
			t.Errorf("%d renewals in ten minutes", n)
		}
		for i := range renewed[1:] {
			if d := renewed[i+1].Sub(renewed[i]); d < 9*time.Second || d > 11*time.Second {
				t.Errorf("%v between two renewals", d)
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestAcceptingSaysWhy(t *testing.T) {
	at := time.Unix(7, 0)
	if c := Accepting(true, at); c.Status != "True" || c.Type != v1alpha1.ConditionAccepting || !c.LastTransitionTime.Time.Equal(at) {
		t.Errorf("%+v", c)
	}
	if c := Accepting(false, at); c.Status != "False" || c.Reason != v1alpha1.ReasonShuttingDown {
		t.Errorf("%+v", c)
	}
}
