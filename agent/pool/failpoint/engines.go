package failpoint

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/metal/wire"
)

// watchedEngines passes the points that no journal sees: an engine's first
// report of readiness, its answer to Shutdown, and its end.
type watchedEngines struct {
	process.Engines
	at func(point string)
}

func (w *watchedEngines) Start(ctx context.Context, s process.Spec) (process.Handle, error) {
	h, err := w.Engines.Start(ctx, s)
	if err != nil {
		return nil, err
	}
	return watch(ctx, h, w.at), nil
}

func (w *watchedEngines) Adopt(ctx context.Context, pid int, startTime string) (process.Handle, error) {
	h, err := w.Engines.Adopt(ctx, pid, startTime)
	if err != nil {
		return nil, err
	}
	return watch(ctx, h, w.at), nil
}

func (w *watchedEngines) Dial(socket string, pid func() int) (process.Conn, error) {
	c, err := w.Engines.Dial(socket, pid)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, at: w.at}, nil
}

// handle reports the end of a process after at has returned.
type handle struct {
	process.Handle
	done, unwatched chan struct{}
}

func watch(ctx context.Context, inner process.Handle, at func(string)) *handle {
	h := &handle{Handle: inner, done: make(chan struct{}), unwatched: make(chan struct{})}
	go func() {
		defer close(h.unwatched)
		select {
		case <-inner.Done():
			at(ExitSeen)
			close(h.done)
		case <-ctx.Done():
		}
	}()
	return h
}

func (h *handle) Done() <-chan struct{} { return h.done }

func (h *handle) Forget() {
	h.Handle.Forget()
	<-h.unwatched
}

type conn struct {
	process.Conn
	at    func(point string)
	ready sync.Once
}

func (c *conn) Watch(ctx context.Context, r *wire.WatchRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[wire.Status], error) {
	s, err := c.Conn.Watch(ctx, r, opts...)
	if err != nil {
		return nil, err
	}
	return &statusStream{ServerStreamingClient: s, conn: c}, nil
}

func (c *conn) Shutdown(ctx context.Context, r *wire.ShutdownRequest, opts ...grpc.CallOption) (*wire.ShutdownResponse, error) {
	out, err := c.Conn.Shutdown(ctx, r, opts...)
	c.at(UnloadAsked)
	return out, err
}

type statusStream struct {
	grpc.ServerStreamingClient[wire.Status]
	conn *conn
}

func (s *statusStream) Recv() (*wire.Status, error) {
	m, err := s.ServerStreamingClient.Recv()
	if err == nil && m.GetState() == wire.State_STATE_READY {
		s.conn.ready.Do(func() { s.conn.at(LoadReady) })
	}
	return m, err
}
