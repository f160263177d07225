package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/route"
)

// eventCreated is the first event of a response stream.
const eventCreated = "response.created"

// backgroundBytes is about what a response in the background takes of the gateway's memory.
const backgroundBytes = 32 << 10

// openBackgrounds is how many responses in the background a client without a key may have at a time:
// they last when it has left, and no rate limit bounds them.
const openBackgrounds = 4

// openAtModel is how many of them a model has at a time at least; it has one for each sequence that its
// replicas run at once, if those are more. Many addresses would otherwise take all places of its engines and leave.
const openAtModel = 2 * openBackgrounds

// background runs responses that continue when their clients disconnect. Agents and limits
// treat them like other requests: the gateway reads each one to its end.
type background struct {
	writeTimeout time.Duration
	metrics      *metrics
	bodies       *intake.Bodies
	open         *turns // those of clients without a key, of which only the places count

	mu     sync.Mutex
	models map[route.Key]int // guarded by mu: how many of those each model has

	ctx  context.Context // cancels all of them
	end  context.CancelCauseFunc
	runs sync.WaitGroup
}

func newBackground(writeTimeout time.Duration, m *metrics, bodies *intake.Bodies) *background {
	ctx, end := context.WithCancelCause(context.Background())
	return &background{writeTimeout: writeTimeout, metrics: m, bodies: bodies, open: newTurns(0, openBackgrounds), models: map[route.Key]int{}, ctx: ctx, end: end}
}

// begin counts a response of a client, and its memory, until end is called.
func (b *background) begin(c caller) (end func(), err error) {
	share, leave := c.share(), func() {}
	if c.key == nil {
		if _, err := b.open.enter(share); err != nil {
			return nil, tooManyInBackground("a client", openBackgrounds)
		}
		leave = func() { b.open.leave(share) }
	}
	kept, err := b.bodies.Hold(share, backgroundBytes)
	if err != nil {
		leave()
		return nil, err
	}
	return func() { leave(); kept.Release() }, nil
}

// beginAt counts a response of a client without a key at its model until end is called.
func (b *background) beginAt(m *route.Model) (end func(), err error) {
	model, most := m.Key, 0
	for _, r := range m.Endpoints() {
		most += int(r.Sequences)
	}
	most = max(most, openAtModel)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.models[model] >= most {
		return nil, tooManyInBackground("the clients of a model", most)
	}
	b.models[model]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.models[model]--; b.models[model] == 0 {
			delete(b.models, model)
		}
	}, nil
}

func tooManyInBackground(whose string, most int) error {
	e := openai.RateLimited(dispatch.RetryAfter)
	e.Message = fmt.Sprintf("Without an API key, %s may have %d responses in the background at a time. Wait until one ends, cancel one, or send the request without 'background'.", whose, most)
	return e
}

// drain waits until no background response runs. Those that still run when ctx ends are
// cancelled.
func (b *background) drain(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { b.end(front.ErrShuttingDown) })
	defer stop()
	b.runs.Wait()
}

// detached is a response whose client may disconnect: the client's handler receives the
// parts until then, and later ones are dropped.
type detached struct {
	head   http.Header
	status int
	begun  bool
	parts  chan part
	left   chan struct{} // closed when the handler returns
	// events is set by the handler if the response is an event stream.
	events bool
}

// part is the output of one write to a response. The first part includes the head. The write
// ends when done is closed: data is the writer's memory, which counts as held until then.
type part struct {
	head   http.Header
	status int
	data   []byte
	done   chan struct{}
}

func (d *detached) Header() http.Header { return d.head }

func (d *detached) WriteHeader(status int) { d.status = status }

func (d *detached) Write(b []byte) (int, error) {
	next := part{data: b, done: make(chan struct{})}
	if !d.begun {
		d.begun, next.head, next.status = true, d.head.Clone(), d.status
	}
	select {
	case d.parts <- next:
	case <-d.left:
		return len(b), nil
	}
	select {
	case <-next.done:
	case <-d.left:
	}
	return len(b), nil
}

// SetWriteDeadline does nothing: the handler bounds its writes to the client.
func (d *detached) SetWriteDeadline(time.Time) error { return nil }

func (d *detached) FlushError() error { return nil }

// detach starts a response that continues without its client. The client receives the
// response in progress, with the id it needs to retrieve the rest, or the stream for as
// long as it stays connected. share is the owner of its memory.
func (b *background) detach(ctx context.Context, share string, w *reply, stream bool, run func(context.Context, *reply) error) error {
	about := *scopeOf(ctx) // of its own: the client's request may end while the response begins
	running, cancel := context.WithCancelCause(about.in(context.WithoutCancel(ctx)))
	stop := context.AfterFunc(b.ctx, func() { cancel(context.Cause(b.ctx)) })
	d := &detached{head: w.Header().Clone(), parts: make(chan part), left: make(chan struct{})}
	defer close(d.left)
	over := make(chan error, 1)
	// From here the response counts as in flight instead of the request, which may end
	// earlier.
	b.metrics.inFlight.Dec()
	defer b.metrics.inFlight.Inc()
	b.runs.Go(func() {
		b.metrics.inFlight.Inc()
		defer b.metrics.inFlight.Dec()
		defer cancel(nil)
		defer stop()
		inner := newReply(d, b.writeTimeout, w.dialect, w.metrics)
		err := runDetached(running, inner, run)
		if err != nil {
			inner.failed = openai.AsError(err).Status
			logOf(ctx).V(1).Info("Response in the background failed", "reason", err.Error())
		}
		inner.finish()
		over <- err
	})
	for {
		select {
		case next := <-d.parts:
			scopeOf(ctx).model = about.model // which is known by now
			done, err := d.relay(w, next, stream, func(n int64) (intake.Kept, error) { return b.bodies.Hold(share, n) })
			if done || err != nil {
				return err
			}
			close(next.done)
		case err := <-over:
			scopeOf(ctx).model = about.model
			if !w.begun() {
				maps.Copy(w.Header(), d.head)
			}
			return err
		case <-ctx.Done():
			if !w.begun() { // the client has no id to retrieve the response with
				cancel(context.Cause(ctx))
			}
			return dispatch.Ended(ctx)
		}
	}
}

// errIncomplete is the error of a truncated response, and errPanicked of one whose handler
// panicked.
var (
	errIncomplete = errors.New("the response broke off")
	errPanicked   = errors.New("the gateway failed; this is a defect of it")
)

// runDetached converts a panic into an error: the one that aborts a client's connection, and
// any other, which would end the gateway with all its requests. The server does the same for
// handlers.
func runDetached(ctx context.Context, w *reply, run func(context.Context, *reply) error) (err error) {
	defer func() {
		v := recover()
		if e, aborts := v.(error); aborts && errors.Is(e, http.ErrAbortHandler) {
			err = errIncomplete
		} else if v != nil {
			logOf(ctx).Error(errPanicked, "Work outside of a handler panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	return run(ctx, w)
}

// relay writes a part of a detached response to the client. It returns true when the client
// needs no more: without stream, the client receives only the response object of the first
// event. Its copies are held in memory until the client has it.
func (d *detached) relay(w *reply, next part, stream bool, hold func(int64) (intake.Kept, error)) (done bool, err error) {
	if next.head != nil {
		maps.Copy(w.Header(), next.head)
		d.events = isEvents(next.head.Get("Content-Type"))
	}
	if d.events && !stream {
		kept, err := hold(createdCopies * int64(len(next.data)))
		if err != nil {
			return false, err
		}
		defer kept.Release()
		response, ok := createdIn(next.data)
		if !ok {
			return false, nil
		}
		for _, name := range []string{"Cache-Control", "X-Accel-Buffering"} {
			w.Header().Del(name)
		}
		return true, front.WriteJSON(w, response)
	}
	if next.head != nil {
		w.WriteHeader(next.status)
	}
	if err := w.Send(next.data); err != nil {
		return false, front.Gone(err)
	}
	return false, nil
}

// createdCopies is how many copies of an event createdIn and the encoding of the response
// object make.
const createdCopies = 4

// createdIn returns the response object of the first event of a stream; comments may
// precede it.
func createdIn(block []byte) (json.RawMessage, bool) {
	for line := range bytes.SplitSeq(block, []byte("\n")) {
		data, is := bytes.CutPrefix(line, []byte("data: "))
		if !is {
			continue
		}
		var event struct {
			Type     string
			Response json.RawMessage
		}
		if json.Unmarshal(data, &event) == nil && event.Type == eventCreated {
			return event.Response, true
		}
	}
	return nil, false
}
