package enginetest

import (
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/metal/wire"
)

// twinConn plays gRPC between the pool and one engine.
type twinConn struct {
	twin   *Twin
	socket string
	closed context.Context
	close  context.CancelFunc
}

// Close ends its calls.
func (c *twinConn) Close() error {
	c.close()
	return nil
}

var errUnavailable = status.Error(codes.Unavailable, "connection error: the engine is gone")

// find returns the engine of the socket; with grpc.WaitForReady it waits for one.
func (c *twinConn) find(ctx context.Context, opts []grpc.CallOption) (*TwinEngine, error) {
	wait := slices.ContainsFunc(opts, func(o grpc.CallOption) bool {
		fast, ok := o.(grpc.FailFastCallOption)
		return ok && !fast.FailFast
	})
	for {
		c.twin.mu.Lock()
		e, changed := c.twin.living[c.socket], c.twin.changed
		c.twin.mu.Unlock()
		switch {
		case e != nil:
			return e, nil
		case !wait:
			return nil, errUnavailable
		}
		select {
		case <-changed:
		case <-c.closed.Done():
			return nil, status.Error(codes.Canceled, "connection is closed")
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// call is one call's context: it ends with the caller's, the connection and
// the engine.
func (c *twinConn) call(ctx context.Context, e *TwinEngine) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop1 := context.AfterFunc(c.closed, cancel)
	stop2 := context.AfterFunc(e.fake.life, cancel)
	return ctx, func() { stop1(); stop2(); cancel() }
}

// gate waits while the process is stopped. It reports false when the call ended.
func (e *TwinEngine) gate(ctx context.Context) bool {
	for {
		e.mu.Lock()
		awake := e.awake
		e.mu.Unlock()
		select {
		case <-awake:
		case <-ctx.Done():
			return false
		}
		e.mu.Lock()
		same := awake == e.awake
		e.mu.Unlock()
		if same {
			return true
		}
	}
}

// enter and leave count calls: the last one after a Shutdown ends the process.
func (e *TwinEngine) enter() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
}

func (e *TwinEngine) leave() {
	e.mu.Lock()
	e.calls--
	quiet := e.calls == 0
	e.mu.Unlock()
	select {
	case <-e.fake.over:
		if quiet {
			e.end(process.Exit{Known: true})
		}
	default:
	}
}

// over is the error of a call whose context ended: the caller's own, or that
// the engine or the connection went.
func over(caller context.Context) error {
	if err := caller.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return errUnavailable
}

// unary plays one call with one answer.
func unary[R any](ctx context.Context, c *twinConn, opts []grpc.CallOption, f func(context.Context, *fake) (R, error)) (R, error) {
	var none R
	e, err := c.find(ctx, opts)
	if err != nil {
		return none, err
	}
	call, cancel := c.call(ctx, e)
	defer cancel()
	type result struct {
		answer R
		err    error
	}
	answered := make(chan result, 1)
	e.enter()
	go func() {
		defer e.leave()
		if !e.gate(call) {
			return
		}
		r, err := f(call, e.fake)
		if e.gate(call) {
			answered <- result{r, err}
		}
	}()
	select {
	case r := <-answered:
		return r.answer, typed(r.err)
	case <-call.Done():
	}
	select {
	case r := <-answered: // it was out before the engine went
		return r.answer, typed(r.err)
	default:
		return none, over(ctx)
	}
}

// typed is an error as gRPC carries it.
func typed(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unknown, err.Error())
}

// inFlight is how many unread messages a stream buffers.
const inFlight = 64

// pipe is both ends of a stream.
type pipe[M any] struct {
	grpc.ServerStream
	engine   *TwinEngine
	call     context.Context
	messages chan *M
	end      chan struct{} // closed when the handler returned err
	err      error
}

// Context of the handler.
func (p *pipe[M]) Context() context.Context { return p.call }

// Send delivers a message; it waits for a slow reader.
func (p *pipe[M]) Send(m *M) error {
	if !p.engine.gate(p.call) {
		return over(p.call)
	}
	select {
	case p.messages <- m:
		return nil
	case <-p.call.Done():
		return over(p.call)
	}
}

// clientPipe is the reading end.
type clientPipe[M any] struct {
	grpc.ClientStream
	*pipe[M]
	caller context.Context
}

// Context, SendMsg and RecvMsg are ambiguous otherwise; only Recv is used.
func (p clientPipe[M]) Context() context.Context { return p.caller }
func (p clientPipe[M]) SendMsg(any) error        { return errors.ErrUnsupported }
func (p clientPipe[M]) RecvMsg(any) error        { return errors.ErrUnsupported }

// Recv returns what was sent, in order, before it returns how the call ended.
func (p clientPipe[M]) Recv() (*M, error) {
	select {
	case m := <-p.messages:
		return m, nil
	default:
	}
	select {
	case m := <-p.messages:
		return m, nil
	case <-p.end:
	case <-p.call.Done():
	}
	select {
	case m := <-p.messages:
		return m, nil
	default:
	}
	select {
	case <-p.end:
		return nil, p.err
	default:
		return nil, over(p.caller)
	}
}

// stream plays one call with many answers.
func stream[M any](ctx context.Context, c *twinConn, opts []grpc.CallOption, counts bool, f func(*fake, *pipe[M]) error) (grpc.ServerStreamingClient[M], error) {
	e, err := c.find(ctx, opts)
	if err != nil {
		return nil, err
	}
	call, cancel := c.call(ctx, e)
	p := &pipe[M]{engine: e, call: call, messages: make(chan *M, inFlight), end: make(chan struct{})}
	if counts {
		e.enter()
	}
	go func() {
		err := io.EOF
		if e.gate(call) {
			if failed := f(e.fake, p); failed != nil {
				err = typed(failed)
			}
		}
		if e.gate(call) {
			p.err = err
			close(p.end)
		}
		if counts {
			e.leave()
		}
		if call.Err() == nil { // the reader learns of the end first
			context.AfterFunc(ctx, cancel)
			return
		}
		cancel()
	}()
	return clientPipe[M]{pipe: p, caller: ctx}, nil
}

func (c *twinConn) Hello(ctx context.Context, r *wire.HelloRequest, opts ...grpc.CallOption) (*wire.HelloResponse, error) {
	return unary(ctx, c, opts, func(ctx context.Context, e *fake) (*wire.HelloResponse, error) { return e.Hello(ctx, r) })
}

func (c *twinConn) SetLimits(ctx context.Context, r *wire.Limits, opts ...grpc.CallOption) (*wire.SetLimitsResponse, error) {
	return unary(ctx, c, opts, func(ctx context.Context, e *fake) (*wire.SetLimitsResponse, error) { return e.SetLimits(ctx, r) })
}

func (c *twinConn) Trim(ctx context.Context, r *wire.TrimRequest, opts ...grpc.CallOption) (*wire.TrimResponse, error) {
	return unary(ctx, c, opts, func(ctx context.Context, e *fake) (*wire.TrimResponse, error) { return e.Trim(ctx, r) })
}

func (c *twinConn) Abort(ctx context.Context, r *wire.AbortRequest, opts ...grpc.CallOption) (*wire.AbortResponse, error) {
	return unary(ctx, c, opts, func(ctx context.Context, e *fake) (*wire.AbortResponse, error) { return e.Abort(ctx, r) })
}

func (c *twinConn) Shutdown(ctx context.Context, r *wire.ShutdownRequest, opts ...grpc.CallOption) (*wire.ShutdownResponse, error) {
	return unary(ctx, c, opts, func(ctx context.Context, e *fake) (*wire.ShutdownResponse, error) { return e.Shutdown(ctx, r) })
}

func (c *twinConn) Watch(ctx context.Context, r *wire.WatchRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[wire.Status], error) {
	return stream(ctx, c, opts, false, func(e *fake, p *pipe[wire.Status]) error { return e.Watch(r, p) })
}

func (c *twinConn) Generate(ctx context.Context, r *wire.GenerateRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[wire.GenerateEvent], error) {
	return stream(ctx, c, opts, true, func(e *fake, p *pipe[wire.GenerateEvent]) error { return e.Generate(r, p) })
}

func (c *twinConn) Embed(ctx context.Context, r *wire.EmbedRequest, opts ...grpc.CallOption) (*wire.EmbedResponse, error) {
	return unary(ctx, c, opts, func(ctx context.Context, e *fake) (*wire.EmbedResponse, error) { return e.Embed(ctx, r) })
}

func (c *twinConn) Rerank(ctx context.Context, r *wire.RerankRequest, opts ...grpc.CallOption) (*wire.RerankResponse, error) {
	return unary(ctx, c, opts, func(ctx context.Context, e *fake) (*wire.RerankResponse, error) { return e.Rerank(ctx, r) })
}

// Cache of an engine without one on disk.
func (c *twinConn) Cache(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[wire.CacheLease, wire.CacheReport], error) {
	return nil, status.Error(codes.Unimplemented, "this engine has no disk cache")
}
