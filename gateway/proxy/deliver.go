package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/upstream"
)

const (
	// wholeBytes of a non-streaming response are buffered before any is sent, so that
	// another replica can be tried if it breaks off.
	wholeBytes = 1 << 20
	// refusalBytes bounds how much of a refusal is read, and refusalTime how long.
	refusalBytes = 64 << 10
	refusalTime  = 2 * time.Second
)

// errCut means that a stream ended regularly, but without its last event.
var errCut = errors.New("the stream ended without its last event")

// errDelayed means that a Mac may have reset a stream because the client delayed it.
var errDelayed = errors.New("the client read so slowly that the Mac may have given up")

// isEvents reports whether a response is an event stream. The usual types are recognized
// without parsing.
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

// failureOf distinguishes the failure of a Mac from the end of the request itself.
func failureOf(ctx context.Context, err error) (*dispatch.Failure, error) {
	if ctx.Err() != nil {
		return nil, dispatch.Ended(ctx)
	}
	if errors.Is(err, errTooLong) {
		return nil, tooLong(err)
	}
	return &dispatch.Failure{Reason: reasonOf(err), Err: err}, nil
}

// tooLong is the error of a response with an event that is too long. That is no failure of the
// Mac, and another one would send the same: events repeat much of a request.
func tooLong(cause error) *openai.Error {
	return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeServer, Code: "event_too_long", Cause: cause,
		Message: fmt.Sprintf("The response has an event of more than %d bytes. Send less in the fields that it repeats, or request fewer log-probabilities.", eventBytes)}
}

// reasonOf distinguishes a stream that was reset or cut from a connection that failed:
// only the second concerns the Mac.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errTry):
		return dispatch.ReasonTimeout
	case errors.Is(err, errCut), errors.Is(err, errNoRoom), upstream.IsReset(err):
		return dispatch.ReasonStream
	}
	return dispatch.ReasonConnection
}

// refusal returns the error of an agent that refused the request without side effects. try is
// the context of the attempt.
func refusal(ctx, try context.Context, resp *http.Response) (*dispatch.Failure, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, refusalBytes))
	if err != nil && errors.Is(context.Cause(try), errTry) {
		err = errTry
	}
	if err != nil {
		return failureOf(ctx, fmt.Errorf("read an error response: %w", err))
	}
	e := dialect.ParseError(resp.StatusCode, resp.Header, body)
	return &dispatch.Failure{Reason: dispatch.ReasonRefused, Err: e, Refusal: e}, nil
}

// delivery is a Mac's response on its way to the client.
type delivery struct {
	w         *reply
	req       *request
	resp      *http.Response
	mac       string
	forwarder *forwarder
}

// memory is for what is held back of the response.
func (d delivery) memory(ctx context.Context) *held {
	return d.forwarder.held.hold(source{d.mac, scopeOf(ctx).share})
}

// invalid is the error of a response that no agent sends.
func (d delivery) invalid() *openai.Error {
	return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeServer, Code: agentapi.CodeEngineLost,
		Message: "The Mac sent a response that is not valid. Send the request again.", Cause: fmt.Errorf("response of Mac %s has status %d", d.mac, d.resp.StatusCode)}
}

// whole delivers a non-streaming response. What is held back of it is sent as soon
// as there is no room for more.
func (d delivery) whole(ctx context.Context) (*dispatch.Failure, error) {
	memory := d.memory(ctx)
	defer memory.free()
	first, complete, err := readFirst(d.resp.Body, memory)
	if err != nil {
		return failureOf(ctx, fmt.Errorf("read the response: %w", err))
	}
	if d.w.begun() { // the client has a stream that was kept open: the refusal becomes an event
		if d.resp.StatusCode < http.StatusBadRequest {
			return nil, d.invalid()
		}
		e := dialect.ParseError(d.resp.StatusCode, d.resp.Header, first)
		e.Cause = errOfMac
		return nil, e
	}
	d.w.countTokens(d.resp.Header)
	d.req.answered(d.w)
	d.w.begin(d.resp, d.mac)
	if _, err := d.w.Write(first); err != nil {
		return nil, front.Gone(err)
	}
	if complete {
		return nil, nil
	}
	memory.free()
	// A truncated response must not look complete: abort the connection to the client.
	if _, err := io.Copy(d.w, d.resp.Body); err != nil {
		d.forwarder.metrics.broken.Inc()
		d.w.failed = http.StatusBadGateway
		panic(http.ErrAbortHandler)
	}
	return nil, nil
}

// readFirst reads the beginning of a response, as far as there is memory for it.
func readFirst(from io.Reader, memory *held) (first []byte, complete bool, err error) {
	for n := 0; ; {
		if n == len(memory.bytes) && memory.grow(wholeBytes) != nil {
			return memory.bytes[:n], false, nil
		}
		more, err := from.Read(memory.bytes[n:])
		switch n += more; {
		case errors.Is(err, io.EOF):
			return memory.bytes[:n], true, nil
		case err != nil:
			return nil, false, err
		}
	}
}

// stream delivers whole events, with one flush per read. A stream that breaks off ends with
// an error event, so that no client takes it for complete; before the response has begun,
// another Mac takes over instead.
func (d delivery) stream(ctx context.Context) (*dispatch.Failure, error) {
	w, resp := d.w, d.resp
	events := newBlocks(resp.Body, w.dialect, d.memory(ctx))
	defer events.free()
	resp.Header.Del("Content-Length")
	begun, follow := false, w.keepAlives.follower()
	block, err := events.next()
	for ; len(block) > 0; block, err = events.next() {
		if !begun {
			if begun = w.keepAlives.beginsWith(block, w.dialect); begun {
				d.req.answered(w)
				w.firstToken = time.Now()
			}
		}
		w.begin(resp, d.mac)
		w.meter.events(block)
		if err := d.send(block, follow); err != nil {
			return nil, front.Gone(err)
		}
	}
	w.countTokens(resp.Trailer)
	w.trailer(resp.Trailer)
	switch {
	case events.ended() && (err == io.EOF || ctx.Err() != nil && errors.Is(dispatch.Ended(ctx), front.ErrClientGone)):
		d.req.sent = events.status()
		return nil, nil // many clients leave after the last event, whether the Mac ends the stream or not
	case err == io.EOF:
		err = errCut
	case upstream.IsReset(err) && w.Delayed():
		err = fmt.Errorf("%w: %w", errDelayed, err)
	}
	if !begun {
		return failureOf(ctx, fmt.Errorf("read the first event: %w", err))
	}
	return nil, d.forwarder.breakOff(ctx, d.mac, err)
}

// send sends a block, or what follow makes of it.
func (d delivery) send(block []byte, follow func([]byte) iter.Seq[[]byte]) error {
	if follow == nil {
		return d.w.Send(block)
	}
	for part := range follow(block) {
		if _, err := d.w.Write(part); err != nil {
			return err
		}
	}
	return d.w.FlushError()
}

// breakOff returns the error of a truncated response. A client that disconnected, as many
// do after the last event, is not the Mac's fault.
func (f *forwarder) breakOff(ctx context.Context, mac string, cause error) error {
	if ctx.Err() != nil {
		err := dispatch.Ended(ctx)
		if !errors.Is(err, front.ErrClientGone) {
			f.metrics.broken.Inc()
		}
		return err
	}
	f.metrics.broken.Inc()
	if errors.Is(cause, errTooLong) {
		return tooLong(fmt.Errorf("response of Mac %s: %w", mac, cause))
	}
	if errors.Is(cause, errNoRoom) { // which is no failure of the Mac
		e := openai.Overloaded(dispatch.RetryAfter)
		e.Cause = fmt.Errorf("response of Mac %s: %w", mac, cause)
		return e
	}
	if reasonOf(cause) == dispatch.ReasonConnection {
		f.dispatcher.Avoid(logOf(ctx), mac, cause)
	}
	return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeServer, Code: agentapi.CodeEngineLost,
		Cause:   fmt.Errorf("response of Mac %s: %w", mac, cause),
		Message: "The connection to the Mac was lost before the response was complete. Send the request again."}
}
