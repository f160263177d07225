package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/front"
)

const (
	// quietPeriod is how long no request may have run before connections are closed: many
	// times the pause of a client between a response and its next request.
	quietPeriod = time.Second
	// quietChecks is how often that is checked within quietPeriod.
	quietChecks = 20
	// abortTime is how long cancelled responses have to deliver their error to the client.
	abortTime = 2 * time.Second
)

// drainHandler serves requests while the gateway may be shutting down. A client that reuses
// a connection only notices that it was closed after it has sent the next request on it,
// and that request is lost. So a gateway that shuts down keeps serving and adds
// "Connection: close" to each response: the client opens its next connection to another
// gateway.
type drainHandler struct {
	next   http.Handler
	ending atomic.Bool
	// running and begun count the requests that were admitted: those of strangers keep no gateway from ending.
	running, begun atomic.Int64
}

// begin counts a request until end is called.
func (l *drainHandler) begin() (end func()) {
	l.begun.Add(1)
	l.running.Add(1)
	return func() { l.running.Add(-1) }
}

func (l *drainHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.ending.Load() {
		w.Header().Set("Connection", "close")
	}
	l.next.ServeHTTP(w, r)
}

// waitIdle returns nil once no admitted request has run for a whole period, or the error of ctx.
func (l *drainHandler) waitIdle(ctx context.Context, period time.Duration) error {
	tick := time.NewTicker(period / quietChecks)
	defer tick.Stop()
	for still, seen := 0, l.begun.Load(); still < quietChecks; still++ {
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

// drain lets running responses finish within Drain, then aborts them with an error that
// names the reason.
func (s *servers) drain() {
	draining, done := context.WithTimeout(context.Background(), s.Drain)
	defer done()
	defer s.background(draining)
	if s.requests.waitIdle(draining, quietPeriod) == nil && s.front.Shutdown(draining) == nil {
		return
	}
	s.Log.Info("Drain timeout is over; aborting the responses that still run")
	s.cancelRequests(front.ErrShuttingDown)
	aborting, done := context.WithTimeout(context.Background(), abortTime)
	defer done()
	if s.front.Shutdown(aborting) == nil {
		return
	}
	if err := s.front.Close(); err != nil {
		s.Log.Error(err, "close connections")
	}
}
