package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
)

const (
	// unreadTime bounds how long an unread body may delay the error response of a request.
	unreadTime = 2 * time.Second
	// maxTimeout is the longest time limit that a client may set.
	maxTimeout = 24 * time.Hour
	// maxParameters bounds those of a query, each of which takes as long as a small request.
	maxParameters = 32
)

// limits bound the memory and the time of each request.
type limits struct {
	front.Limits
	bodies *intake.Bodies
	// total bounds the whole request; 0 means no limit.
	total    time.Duration
	decoding *decoding
}

// boundUnread sets a short read deadline for a body that may stay unread, because the
// server drains it after the response; readBody extends it. Without a body it sets none:
// the server is already reading to detect a disconnect, and a deadline would end this
// request and all later ones of the connection.
func (l *limits) boundUnread(w *reply, r *http.Request) error {
	if r.Body == http.NoBody {
		return nil
	}
	if err := w.SetReadDeadline(time.Now().Add(min(unreadTime, l.ReadTimeout))); err != nil {
		return fmt.Errorf("bound the time of an unread body: %w", err)
	}
	return nil
}

// readBody reads a request body; its memory counts until it is released.
func (l *limits) readBody(c caller, w *reply, r *http.Request) (body []byte, kept intake.Kept, err error) {
	intake.Arriving(r.Context(), r.ContentLength)
	body, err = l.ReadBody(w, r, func(interrupt func()) (body []byte, err error) {
		body, kept, err = l.bodies.Read(r.Body, c.share(), r.ContentLength, l.MaxBodyBytes, interrupt)
		if err == nil {
			intake.Arrived(r.Context())
		}
		return body, err
	})
	if err != nil {
		kept.Release()
		// Otherwise the server waits for the rest of the body before it responds, and a
		// client that sends no more gets no response.
		w.Header().Set("Connection", "close")
		return nil, kept, err
	}
	return body, kept, nil
}

// bound applies the gateway's and the client's time limits to the whole request. Without a
// limit there is no deadline.
func (l *limits) bound(ctx context.Context, r *http.Request) (bounded context.Context, cancel context.CancelFunc, deadline time.Time, err error) {
	total := l.total
	if text := r.Header.Get(agentapi.HeaderTimeout); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds > 0 && seconds <= maxTimeout.Seconds()) {
			return nil, nil, time.Time{}, &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: openai.CodeInvalidValue,
				Message: fmt.Sprintf("The header %s must be a number of seconds above 0 and at most %d, not %q.", agentapi.HeaderTimeout, int(maxTimeout.Seconds()), openai.Shorten(text))}
		}
		// At least a nanosecond: 0 would mean no limit.
		if asked := max(1, time.Duration(seconds*float64(time.Second))); total == 0 || asked < total {
			total = asked
		}
	}
	if total == 0 {
		return ctx, func() {}, time.Time{}, nil
	}
	deadline = time.Now().Add(total)
	bounded, cancel = context.WithDeadlineCause(ctx, deadline, dispatch.ErrTimeout)
	return bounded, cancel, deadline, nil
}
