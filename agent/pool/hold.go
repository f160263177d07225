package pool

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Hold is a request's claim on an engine: no hold, no call. As long as it is
// held, the engine is not unloaded before its drain deadline.
type Hold struct {
	pool   *Pool
	engine *engine
	// ctx ends with the request or with Release; calls are made under it.
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
}

// notReadyRetry is what a client is told to wait for an engine that loads.
const notReadyRetry = time.Second

// Acquire takes a hold on the ready engine of a replica and epoch. It ends
// with ctx at the latest. It does not wait: ErrNotHere or ErrNotReady say why not.
func (p *Pool) Acquire(ctx context.Context, uid string, epoch int64) (*Hold, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := &Hold{pool: p}
	h.ctx, h.cancel = context.WithCancel(ctx)
	if err := p.admit(h, memory.Key{UID: uid, Epoch: epoch}); err != nil {
		h.cancel()
		return nil, fmt.Errorf("acquire replica %s epoch %d: %w", uid, epoch, err)
	}
	context.AfterFunc(h.ctx, h.Release)
	return h, nil
}

func (p *Pool) admit(h *Hold, k memory.Key) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[k]
	switch {
	case e == nil || e.released:
		return ErrNotHere
	case e.state != Ready || e.engine == nil || !e.engine.ready || e.engine.stop != nil:
		return &NotReadyError{State: e.state, RetryAfter: notReadyRetry}
	}
	h.engine = e.engine
	h.engine.holds[h] = struct{}{}
	return nil
}

// Epoch and load of the engine that is held.
func (h *Hold) Epoch() int64 { return h.engine.key.Epoch }

// Load counts the engines of that epoch, from 1.
func (h *Hold) Load() int64 { return h.engine.load }

// Release gives the hold back and ends its calls. It may be called at any time
// and more than once.
func (h *Hold) Release() {
	h.once.Do(func() {
		p := h.pool
		p.mu.Lock()
		delete(h.engine.holds, h)
		h.engine.checkIdle()
		p.mu.Unlock()
		h.cancel()
	})
}

// checkIdle tells a drain that waits for the last hold; the caller holds Pool.mu.
func (g *engine) checkIdle() {
	if g.idle != nil && len(g.holds) == 0 {
		close(g.idle)
		g.idle = nil
	}
}

// Stream are the events of one request.
type Stream struct {
	grpc interface {
		Recv() (*wire.GenerateEvent, error)
	}
	// over says why the call was ended from our side; nil if it was not.
	over     func() error
	stop     func()
	finished bool
}

// Generate runs one request under the hold, until ctx ends or the hold is
// released. It returns once the engine took the call; refusals come from Recv.
func (h *Hold) Generate(ctx context.Context, r *wire.GenerateRequest) (*Stream, error) {
	if h.ctx.Err() != nil {
		return nil, ErrReleased
	}
	call, cancel := context.WithCancel(ctx)
	unwatch := context.AfterFunc(h.ctx, cancel)
	stream := &Stream{
		over: func() error { return cmp.Or(ctx.Err(), h.ctx.Err()) },
		stop: func() { unwatch(); cancel() },
	}
	s, err := h.engine.client.Generate(call, r)
	if err != nil {
		stream.stop()
		return nil, stream.explain(err)
	}
	stream.grpc = s
	return stream, nil
}

// Recv returns the next event, io.EOF behind Finished, a gRPC status with a
// wire.Refusal where the engine refused, the context's error where the client
// went, or ErrEngineLost.
func (s *Stream) Recv() (*wire.GenerateEvent, error) {
	ev, err := s.grpc.Recv()
	switch {
	case err == nil:
		s.finished = s.finished || ev.GetFinished() != nil
		return ev, nil
	case err == io.EOF && s.finished:
		s.stop()
		return nil, io.EOF
	}
	err = s.explain(err)
	s.stop()
	return nil, err
}

// Close ends the request if it still runs.
func (s *Stream) Close() { s.stop() }

// explain turns the error of a call into one that callers branch on.
func (s *Stream) explain(err error) error {
	if wire.RefusalOf(err) != nil {
		return err
	}
	if over := s.over(); over != nil {
		return over
	}
	return fmt.Errorf("%w: %w", ErrEngineLost, err)
}
