package fairqueue

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestSlowRefusalsOfANamespaceTakeASmallShareOfTheWorkers: four workers, 35 objects of a namespace that
// are refused after some time, and one of another namespace that changes each minute.
func TestSlowRefusalsOfANamespaceTakeASmallShareOfTheWorkers(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "modeldeployments"}, "d", errors.New("cost budget exceeded"))
	for name, tc := range map[string]struct {
		takes time.Duration
		err   error
		most  time.Duration // of four workers, in an hour and with the first passes
	}{
		"slow":                  {4 * time.Second, refused, 7 * time.Minute},
		"until its time is out": {time.Minute, refused, 45 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var spent atomic.Int64 // of all workers
				wait := play(t, tc.takes, func(took time.Duration) error { spent.Add(int64(took)); return tc.err })
				if time.Duration(spent.Load()) > tc.most || wait > 10*time.Second {
					t.Errorf("refused passes take %v of an hour, want at most %v; others wait for %v", time.Duration(spent.Load()), tc.most, wait)
				}
			})
		})
	}
}

// TestAnObjectThatIsRefusedAtOnceIsTriedAgainSoon, as is one that is no longer refused.
func TestAnObjectThatIsRefusedAtOnceIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := error(apierrors.NewForbidden(schema.GroupResource{}, "d", errors.New("exceeded quota")))
		o := controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, 30*time.Second)}
		takes := 3 * time.Second
		r := AfterRefusals(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			time.Sleep(takes)
			return reconcile.Result{}, err
		}), &o)
		pass := func() time.Duration {
			_, _ = r.Reconcile(t.Context(), of("a", 1))
			return o.RateLimiter.When(of("a", 1))
		}
		if got := pass(); got != refusedShare*takes {
			t.Errorf("it waits for %v after a slow refusal", got)
		}
		if takes = 0; pass() > time.Second {
			t.Error("it waits after a refusal that took no time")
		}
		if takes, err = 3*time.Second, errors.New("the API server is away"); pass() > time.Second {
			t.Error("it waits after a failure that is no refusal")
		}
	})
}

// play runs four workers for an hour and returns the longest wait of the other namespace.
func play(t *testing.T, takes time.Duration, end func(time.Duration) error) (longest time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	o := controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](10*time.Millisecond, 30*time.Second)}
	ends, asked, served := make(chan time.Duration, 1), time.Time{}, of("other", 1)
	r := AfterRefusals(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		if req == served {
			ends <- time.Since(asked)
			return reconcile.Result{}, nil
		}
		began := time.Now()
		select {
		case <-ctx.Done():
		case <-time.After(takes):
		}
		return reconcile.Result{}, fmt.Errorf("write: %w", end(time.Since(began)))
	}), &o)
	q := New("", o.RateLimiter)
	for range 4 {
		go func() {
			for {
				req, shutdown := q.Get()
				if shutdown {
					return
				}
				if _, err := r.Reconcile(ctx, req); err != nil {
					q.AddRateLimited(req)
				} else {
					q.Forget(req)
				}
				q.Done(req)
			}
		}()
	}
	for i := range 35 {
		q.Add(of("refused", i))
	}
	time.Sleep(10 * time.Minute) // each was tried once
	for ctx.Err() == nil {
		asked = time.Now()
		q.Add(served)
		longest = max(longest, <-ends)
		time.Sleep(time.Minute)
	}
	q.ShutDown()
	return longest
}
