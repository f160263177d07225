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

// Acquire takes a hold on the engine of a replica and epoch. It ends with ctx
// at the latest. For a replica that is always resident it does not wait:
// ErrNotHere or ErrNotReady say why there is no engine. One that is OnDemand is
// loaded, once for all that wait, for Timing.LoadWait at most; ErrNoRoom and
// ErrLoadFailed say why it was not.
func (p *Pool) Acquire(ctx context.Context, uid string, epoch int64) (*Hold, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := &Hold{pool: p}
	h.ctx, h.cancel = context.WithCancel(ctx)
	if err := p.hold(h, memory.Key{UID: uid, Epoch: epoch}); err != nil {
		h.cancel()
		return nil, fmt.Errorf("acquire replica %s epoch %d: %w", uid, epoch, err)
	}
	context.AfterFunc(h.ctx, h.Release)
	p.stir()
	return h, nil
}

// hold takes the hold, at once or when the load is done: under the lock on both
// paths.
func (p *Pool) hold(h *Hold, k memory.Key) error {
	told, err := p.takeOrJoin(h, k)
	if err != nil || told == nil {
		return err
	}
	timer := time.NewTimer(p.Timing.LoadWait)
	defer timer.Stop()
	select {
	case err := <-told:
		return err
	case <-h.ctx.Done():
		err = h.ctx.Err()
	case <-timer.C:
		err = p.stillWaiting(k)
	case <-p.life.Done():
		err = &NotReadyError{State: Loading, RetryAfter: notReadyRetry}
	}
	return p.leave(h, k, told, err)
}

// takeOrJoin takes a hold on a ready engine, or joins those that wait for an
// OnDemand one, who are told on the channel.
func (p *Pool) takeOrJoin(h *Hold, k memory.Key) (<-chan error, error) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[k]
	switch {
	case e == nil || e.released:
		return nil, ErrNotHere
	case e.state == Ready && e.engine != nil && e.engine.ready && e.engine.stop == nil:
		h.engine = e.engine
		h.engine.holds[h] = struct{}{}
		return nil, nil
	case !e.onDemand():
		return nil, &NotReadyError{State: e.state, RetryAfter: notReadyRetry}
	}
	if err := p.unavailable(e, now); err != nil {
		return nil, err
	}
	told, began := e.join(h, now)
	if began {
		e.roomAgain = time.Time{}
		p.wake()
	}
	return told, nil
}

// stillWaiting is the error of a request that has waited for LoadWait: it names
// what the load waits for.
func (p *Pool) stillWaiting(k memory.Key) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[k]
	switch {
	case e == nil:
		return ErrNotHere
	case e.engine == nil && e.short != nil:
		return &RoomError{Cause: e.short, RetryAfter: p.Timing.RoomRetry}
	case e.engine == nil && !p.mayStart():
		return p.blockedError(e, "the memory of this Mac is still being checked after an engine ended uncleanly")
	}
	return &NotReadyError{State: Loading, RetryAfter: notReadyRetry}
}

// leave gives up waiting because of err; a hold that was granted in the same
// moment is given back. The load goes on.
func (p *Pool) leave(h *Hold, k memory.Key, told <-chan error, err error) error {
	p.mu.Lock()
	if e := p.entries[k]; e != nil && e.demand != nil {
		delete(e.demand.waiting, h)
	}
	p.mu.Unlock()
	select {
	case answer := <-told:
		if answer == nil {
			p.drop(h)
		}
	default:
	}
	return err
}

// drop takes a hold out of its engine's. The idle time begins.
func (p *Pool) drop(h *Hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := h.engine
	delete(g.holds, h)
	g.use(time.Now())
	g.checkIdle()
	if len(g.holds) > 0 {
		return
	}
	for _, e := range p.entries { // somebody may wait for an idle engine
		if e.short != nil && !e.roomAgain.IsZero() {
			e.roomAgain = time.Time{}
			p.wake()
		}
	}
}

// Epoch and load of the engine that is held.
func (h *Hold) Epoch() int64 { return h.engine.key.Epoch }

// Load counts the engines of that epoch, from 1.
func (h *Hold) Load() int64 { return h.engine.load }

// Release gives the hold back and ends its calls. It may be called at any time
// and more than once.
func (h *Hold) Release() {
	h.once.Do(func() {
		h.pool.drop(h)
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

// Embed runs one request for vectors under the hold, until ctx ends or the hold
// is released. Its errors are those of Stream.Recv.
func (h *Hold) Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	return once(ctx, h, func(ctx context.Context) (*wire.EmbedResponse, error) { return h.engine.client.Embed(ctx, r) })
}

// Rerank runs one request for scores, as Embed does.
func (h *Hold) Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	return once(ctx, h, func(ctx context.Context) (*wire.RerankResponse, error) { return h.engine.client.Rerank(ctx, r) })
}

// once runs a call that has one answer.
func once[T any](ctx context.Context, h *Hold, call func(context.Context) (*T, error)) (*T, error) {
	if h.ctx.Err() != nil {
		return nil, ErrReleased
	}
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	out, err := call(bounded)
	if err != nil {
		return nil, (&Stream{over: func() error { return cmp.Or(ctx.Err(), h.ctx.Err()) }}).explain(err)
	}
	return out, nil
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
