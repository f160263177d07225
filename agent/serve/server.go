package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/intake"
)

// Within bounds the running requests by a time.
func Within(most time.Duration) func() (context.Context, context.CancelFunc) {
	return func() (context.Context, context.CancelFunc) { return context.WithTimeout(context.Background(), most) }
}

// Serve serves on listener until ctx ends. Then it accepts no more requests and
// lets the running ones finish until the context of drain ends; the rest are
// canceled with an error that says so. It returns after the last request. The
// listener is closed.
func Serve(ctx context.Context, listener net.Listener, config *tls.Config, c Config, drain func() (context.Context, context.CancelFunc)) error {
	requests, cancelRequests := context.WithCancelCause(context.Background())
	defer cancelRequests(nil)
	s := &http.Server{
		Handler:           NewHandler(c),
		TLSConfig:         config,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    agentapi.MaxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(logr.ToSlogHandler(c.Log.WithName("http")), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			// A gateway that disappeared must not hold engines for long.
			SendPingTimeout: 5 * time.Second,
			PingTimeout:     5 * time.Second,
			// One that sends, and reads nothing, would hold them too.
			WriteByteTimeout: 10 * time.Second,
			// IDs and dates differ in each response: see gateway/upstream.
			MaxEncoderHeaderTableSize: 1,
		},
	}
	served := make(chan error, 1)
	authenticated := intake.Authenticate(listener, config, s.ErrorLog)
	authenticated.Counted = agentapi.MacOf // gateways need as many as they have requests
	go func() { served <- s.Serve(authenticated) }()
	select {
	case err := <-served:
		return errors.Join(fmt.Errorf("serve on %s: %w", listener.Addr(), err), s.Close())
	case <-ctx.Done():
	}
	err := shutDown(s, drain, cancelRequests)
	<-served // http.ErrServerClosed
	return err
}

// TellTime is how long canceled requests may take to send their clients an error,
// after the drain of Serve.
const TellTime = 2 * time.Second

func shutDown(s *http.Server, drain func() (context.Context, context.CancelFunc), cancelRequests context.CancelCauseFunc) error {
	draining, done := drain()
	defer done()
	if err := s.Shutdown(draining); err == nil {
		return nil
	}
	cancelRequests(front.ErrShuttingDown)
	telling, done := context.WithTimeout(context.Background(), TellTime)
	defer done()
	if err := s.Shutdown(telling); err == nil {
		return nil
	}
	if err := s.Close(); err != nil {
		return fmt.Errorf("close connections: %w", err)
	}
	return nil
}
