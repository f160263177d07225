package register

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestTheLeaseIsRenewedEveryTenSecondsAndSoonerAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		fail := true
		h := &Heartbeat{log: logr.Discard(), renew: func(_ context.Context, now time.Time) error {
			times = append(times, now)
			if fail {
				return errors.New("the API is away")
			}
			return nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.Run(ctx) }()
		time.Sleep(60 * time.Second)
		if n := len(times); n < 10 || n > 25 {
			t.Errorf("%d attempts in a minute without the API", n)
		}
		fail = false
		time.Sleep(6 * time.Second)
		times = nil
		time.Sleep(10 * time.Minute)
		if n := len(times); n < 54 || n > 67 {
			t.Errorf("%d renewals in ten minutes", n)
		}
		for i := range times[1:] {
			if d := times[i+1].Sub(times[i]); d < 9*time.Second || d > 11*time.Second {
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
