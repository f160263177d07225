package fairqueue

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// slowRefusal is how long a refused pass takes that others notice.
	slowRefusal = time.Second
	// refusedShare: of a worker's time, the refused passes of a namespace take at most a twentieth.
	refusedShare = 20
	// longestRefused is how long a request waits at most. A change of its object does not wait.
	longestRefused = 30 * time.Minute
	// refusedTimeout is the time of a pass whose predecessor was slowly refused.
	refusedTimeout = 10 * time.Second
)

// refusals is a reconciler, and the rate limiter of its controller. Policies decide about an object
// in as much time as it takes them, and a tenant may have any number of objects that they refuse.
type refusals struct {
	reconcile.Reconciler
	workqueue.TypedRateLimiter[reconcile.Request]
	mu    sync.Mutex
	until map[string]time.Time // by namespace: when its refused passes so far have taken their share
	waits map[reconcile.Request]time.Duration
}

// AfterRefusals returns a reconciler whose requests wait longer if the API server refuses a write of
// theirs and takes its time: in proportion to it, for all of a namespace together.
func AfterRefusals(of reconcile.Reconciler, o *controller.Options) reconcile.Reconciler {
	r := &refusals{Reconciler: of, TypedRateLimiter: o.RateLimiter, until: map[string]time.Time{}, waits: map[reconcile.Request]time.Duration{}}
	o.RateLimiter = r
	return r
}

func (r *refusals) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	r.mu.Lock()
	_, again := r.waits[req]
	r.mu.Unlock()
	if again {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, refusedTimeout)
		defer cancel()
	}
	began := time.Now()
	result, err := r.Reconciler.Reconcile(ctx, req)
	r.note(req, time.Since(began), apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || again && errors.Is(err, context.DeadlineExceeded))
	return result, err
}

// note remembers how long a request is to wait after a pass.
func (r *refusals) note(req reconcile.Request, took time.Duration, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !refused || took < slowRefusal {
		delete(r.waits, req)
		return
	}
	now := time.Now()
	maps.DeleteFunc(r.until, func(_ string, until time.Time) bool { return until.Before(now) })
	wait := min(max(0, r.until[req.Namespace].Sub(now))+refusedShare*took, longestRefused)
	r.until[req.Namespace], r.waits[req] = now.Add(wait), wait
}

// When is that of the other limiter, or later.
func (r *refusals) When(req reconcile.Request) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.waits[req], r.TypedRateLimiter.When(req))
}
