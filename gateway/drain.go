package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/front"
)

const (
	// lull is how long no request may have run before connections are closed:
	// many times what a client takes from one answer to its next request.
	lull = time.Second
	// lullTicks is how often that is looked at within a lull.
	lullTicks = 20
	// tellTime is how long cancelled answers have to tell their clients.
	tellTime = 2 * time.Second
)

// lastRequests is the front's handler while it may be ending. A client that
// keeps its connections learns that one was closed when it has sent the next
// request there, and that request is lost. So a gateway that ends goes on to
// answer, and says with each answer that it is the connection's last one: the
// client opens the next one elsewhere.
type lastRequests struct {
	next           http.Handler
	ending         atomic.Bool
	running, begun atomic.Int64
}

func (l *lastRequests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.begun.Add(1)
	l.running.Add(1)
	defer l.running.Add(-1)
	if l.ending.Load() {
		w.Header().Set("Connection", "close")
	}
	l.next.ServeHTTP(w, r)
}

// quiet returns nil when no request ran for a lull, or the error of ctx.
func (l *lastRequests) quiet(ctx context.Context, lull time.Duration) error {
	tick := time.NewTicker(lull / lullTicks)
	defer tick.Stop()
	for still, seen := 0, l.begun.Load(); still < lullTicks; still++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if begun := l.begun.Load(); begun != seen || l.running.Load() > 0 {
			still, seen = -1, begun
		}
	}
	return nil
}

// drain lets answers end by themselves for Drain, then ends them with an error
// that says why.
func (s *servers) drain() {
	draining, done := context.WithTimeout(context.Background(), s.Drain)
	defer done()
	s.requests.ending.Store(true)
	defer s.background(draining)
	if s.requests.quiet(draining, lull) == nil && s.front.Shutdown(draining) == nil {
		return
	}
	s.Log.Info("Drain timeout is over; aborting the responses that still run")
	s.cancelRequests(front.ErrShuttingDown)
	telling, done := context.WithTimeout(context.Background(), tellTime)
	defer done()
	if s.front.Shutdown(telling) == nil {
		return
	}
	if err := s.front.Close(); err != nil {
		s.Log.Error(err, "close connections")
	}
}
