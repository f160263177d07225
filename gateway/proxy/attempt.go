package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// Reasons of a failed attempt, which are labels too.
const (
	reasonConnection = "connection" // the Mac cannot be reached, or was lost
	reasonStream     = "stream"     // the Mac broke off this request alone
	reasonRefused    = "refused"    // the agent says that another may be tried
	reasonTimeout    = "timeout"    // it took longer than one try may
)

// failure is an attempt of which nothing reached the client.
type failure struct {
	reason  string
	err     error
	refusal *openai.Error // what the agent said, if it said something
}

const (
	// wholeBytes of an answer that is no stream are read before any is sent,
	// so that another replica can be tried while it is incomplete.
	wholeBytes = 1 << 20
	// refusalBytes of a refusal are kept.
	refusalBytes = 64 << 10
)

type bodyCloser = io.ReadCloser

func bodyReader(b []byte) bodyCloser { return io.NopCloser(bytes.NewReader(b)) }

var (
	// errTry says that a replica took longer to begin than one try may.
	errTry = errors.New("the replica did not begin its response within the try timeout")
	// errTotal is the cause with which a request is cancelled that took too long.
	errTotal = errors.New("the response was not complete within the request timeout")
)

// attempt sends the request to one replica and delivers its answer. A failure
// means that nothing was sent to the client. Without one the request has
// ended, with an error if nobody was there to be told. It releases the endpoint.
func (p *Proxy) attempt(ctx context.Context, w *reply, r *http.Request, g grant, q *query) (*failure, error) {
	defer g.release() // also where an answer is aborted by a panic
	e := g.Endpoint
	upstream, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // whatever happens: the agent hears of the end
	ask := request(upstream, r, e, w.Header().Get(agentapi.HeaderRequestID), q)
	if w.model = q.answers(); w.keepAlives != nil {
		w.keepAlives.model = q.shown()
		if id := w.keepAlives.place(e.Mac); id != "" {
			ask.Header[agentapi.HeaderResponseID] = []string{id}
		}
	}
	begun, silent := p.bounded(cancel), w.keepOpen(p.KeepAlive, cancel)
	resp, err := p.macs.way(e).RoundTrip(ask)
	begun()
	if gone := silent.end(); gone != nil && err == nil {
		err = errors.Join(gone, resp.Body.Close())
	}
	if gone := context.Cause(upstream); errors.Is(gone, errClientGone) {
		return nil, gone
	}
	if err != nil {
		if errors.Is(context.Cause(upstream), errTry) {
			err = errTry
		}
		return p.failed(ctx, fmt.Errorf("request to %s: %w", e.Mac, err))
	}
	defer resp.Body.Close() //nolint:errcheck // cancelled above, read to its end or broken
	p.book.trust(e.Mac)
	if resp.Header.Get(agentapi.HeaderRetryable) == "true" {
		return refused(resp), nil
	}
	if isEvents(resp.Header.Get("Content-Type")) {
		return p.stream(ctx, w, resp, e.Mac)
	}
	return p.whole(ctx, w, resp, e.Mac)
}

// bounded ends a try whose answer does not begin in time.
func (p *Proxy) bounded(cancel context.CancelCauseFunc) (begun func() bool) {
	if p.TryTimeout <= 0 {
		return func() bool { return true }
	}
	return time.AfterFunc(p.TryTimeout, func() { cancel(errTry) }).Stop
}

// isEvents says that an answer is a stream. The usual types are known without
// being parsed.
func isEvents(contentType string) bool {
	switch contentType {
	case "text/event-stream":
		return true
	case "application/json":
		return false
	}
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == "text/event-stream"
}

// failed tells a Mac's failure from the end of the request itself.
func (p *Proxy) failed(ctx context.Context, err error) (*failure, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	return &failure{reason: reasonOf(err), err: err}, nil
}

// ended is why a request was cancelled.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errTotal) {
		return &openai.Error{Status: http.StatusGatewayTimeout, Type: openai.TypeUnavailable, Code: openai.CodeTimeout,
			Message: "The response was not complete within the time limit of the request. Ask for a shorter response, or allow more time.", Cause: errTotal}
	}
	if errors.Is(context.Cause(ctx), ErrShuttingDown) {
		return shuttingDown(ErrShuttingDown)
	}
	return fmt.Errorf("%w: %w", errClientGone, context.Cause(ctx))
}

// shuttingDown returns the error for a request that another gateway should serve.
func shuttingDown(cause error) *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: "shutting_down",
		RetryAfter: noEndpointRetry, Message: "The gateway is shutting down. Send the request again.", Cause: cause}
}

// streamError has the shape into which net/http's own error of a reset stream
// can be read.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return fmt.Sprintf("stream reset with code %d", e.Code) }

// errCut is an orderly end where the answer had none.
var errCut = errors.New("the stream ended without its last event")

// reasonOf tells a stream that was reset or cut from a connection that failed:
// only the second says something of the Mac.
func reasonOf(err error) string {
	if errors.Is(err, errTry) {
		return reasonTimeout
	}
	var reset streamError
	if errors.As(err, &reset) || errors.Is(err, errCut) {
		return reasonStream
	}
	return reasonConnection
}

// refused keeps what an agent said before anything was done.
func refused(resp *http.Response) *failure {
	body, err := io.ReadAll(io.LimitReader(resp.Body, refusalBytes))
	if err != nil {
		return &failure{reason: reasonOf(err), err: fmt.Errorf("read an error response: %w", err)}
	}
	e := dialect.ParseError(resp.StatusCode, resp.Header, body)
	return &failure{reason: reasonRefused, err: e, refusal: e}
}

// whole delivers an answer that is one body.
func (p *Proxy) whole(ctx context.Context, w *reply, resp *http.Response, mac string) (*failure, error) {
	block := buffers.Get().(*[]byte)
	defer buffers.Put(block)
	b := bytes.NewBuffer((*block)[:0])
	_, err := b.ReadFrom(io.LimitReader(resp.Body, wholeBytes))
	first := b.Bytes()
	if err != nil {
		return p.failed(ctx, fmt.Errorf("read the response: %w", err))
	}
	if w.begun() { // a stream that was kept open: the refusal becomes an event
		return nil, dialect.ParseError(resp.StatusCode, resp.Header, first)
	}
	w.hear(resp.Header)
	w.begin(resp, mac)
	if _, err := w.Write(first); err != nil {
		return nil, fmt.Errorf("%w: %w", errClientGone, err)
	}
	if len(first) < wholeBytes {
		return nil, nil
	}
	// Half an answer must not look whole: the connection to the client breaks.
	if _, err := io.Copy(w, resp.Body); err != nil {
		p.metrics.broken.Inc()
		panic(http.ErrAbortHandler)
	}
	return nil, nil
}

// stream delivers whole events, with one flush for each read. A stream that
// breaks off ends with an error event, which no client takes for the end; until
// the answer has begun, another Mac can take over instead.
func (p *Proxy) stream(ctx context.Context, w *reply, resp *http.Response, mac string) (*failure, error) {
	events := newBlocks(resp.Body, w.dialect)
	defer events.free()
	resp.Header.Del("Content-Length")
	answered, follow := false, w.keepAlives.follower()
	block, err := events.next()
	for ; len(block) > 0; block, err = events.next() {
		if !answered {
			answered = w.begins(block)
		}
		if follow != nil {
			block = follow(block)
		}
		w.begin(resp, mac)
		w.meter.events(block)
		if err := w.send(block); err != nil {
			return nil, fmt.Errorf("%w: %w", errClientGone, err)
		}
	}
	w.hear(resp.Trailer)
	w.trailer(resp.Trailer)
	switch {
	case err == io.EOF && events.ended():
		return nil, nil
	case err == io.EOF:
		err = errCut
	}
	if !answered {
		return p.failed(ctx, fmt.Errorf("read the first event: %w", err))
	}
	return nil, p.breakOff(ctx, mac, err)
}

// begins reports whether the answer begins with a block of an agent's stream.
func (w *reply) begins(block []byte) bool {
	if w.dialect.Idle(block) {
		w.keepAlives.passed(block)
		return false
	}
	if w.keepAlives != nil {
		w.keepAlives.answered = true
	}
	return true
}

// breakOff is what the client is told of an answer that is not whole. A client
// that left, as many do with the last event in hand, broke nothing of ours.
func (p *Proxy) breakOff(ctx context.Context, mac string, cause error) error {
	if ctx.Err() != nil {
		err := ended(ctx)
		if !errors.Is(err, errClientGone) {
			p.metrics.broken.Inc()
		}
		return err
	}
	p.metrics.broken.Inc()
	if reasonOf(cause) == reasonConnection {
		p.distrust(logOf(ctx), mac, cause)
	}
	return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeServer, Code: agentapi.CodeEngineLost,
		Cause:   fmt.Errorf("response of Mac %s: %w", mac, cause),
		Message: "The connection to the Mac was lost before the response was complete. Send the request again."}
}
