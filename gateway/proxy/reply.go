package proxy

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
)

// minRate is how many bytes per second a client has to read: a slower one occupies its slot
// of a replica for longer than the Mac needs.
const minRate = intake.ReadRate

// reply is the response to the client. It implements dispatch.Client.
type reply struct {
	*front.Writer
	dialect *dialect.Dialect
	metrics *metrics
	meter   *meter // of the response
	tokens  agentapi.TokenCount
	// allowed is the most that the request can use.
	allowed agentapi.TokenCount
	// deployment that serves the request, or the one that it names; empty before it is known.
	deployment string
	// firstToken is when the first token of a stream was sent.
	firstToken time.Time
	// failed is the status of the error that ended the response; 0 without one.
	failed int
	// answered is set once the agent's response has begun.
	answered bool
	// keepAlives is nil unless the client requested a stream.
	keepAlives *keepAlives
	model      string // the serving model, if the response names it
}

// newReply returns the response to an HTTP/1.1 client.
func newReply(w http.ResponseWriter, timeout time.Duration, of *dialect.Dialect, m *metrics) *reply {
	return &reply{Writer: front.NewWriter(w, 1, timeout), dialect: of, metrics: m}
}

// refuse sends an error: as the response, or as the last event of a stream that has begun,
// so that no client takes it for complete.
func (w *reply) refuse(e *openai.Error) error {
	w.failed = e.Status
	id := w.Header().Get(agentapi.HeaderRequestID)
	if !w.begun() {
		return w.dialect.WriteError(w, e, id)
	}
	failed, err := w.keepAlives.failed(e)
	if err != nil {
		return err
	}
	if failed != "" {
		return w.Send([]byte(failed))
	}
	event, err := w.dialect.ErrorEvent(e, id)
	if err != nil {
		return err
	}
	return w.Send(event)
}

// headersOfMacs are the headers of a Mac's response that are sent to the client. A Mac sets
// no other one: a browser obeys many, and a Mac may have been stolen.
var headersOfMacs = []string{"Content-Type", "Content-Length", "Cache-Control", "X-Accel-Buffering", "Retry-After", "Allow",
	agentapi.HeaderIgnored, agentapi.HeaderCalls, dialect.HeaderCode}

// trimmed drops the rest of a Mac's header, and the names of the trailers that it announces: they
// would stay for as long as the response runs, and nothing counts them.
func trimmed(resp *http.Response) *http.Response {
	used := http.Header{}
	for _, name := range append([]string{agentapi.HeaderRetryable, agentapi.HeaderTokens}, headersOfMacs...) {
		if values := resp.Header[name]; len(values) > 0 {
			used[name] = slices.Clone(values) // net/http has the values of all fields in one list
		}
	}
	resp.Header, resp.Trailer = used, nil // trailers that come are added
	return resp
}

// trailer copies the trailers of an agent's stream.
func (w *reply) trailer(h http.Header) {
	if v := h.Get(agentapi.HeaderCalls); v != "" {
		w.Header().Set(http.TrailerPrefix+agentapi.HeaderCalls, v)
	}
}

// begun reports whether the head was sent: from then on errors are sent inside the stream.
func (w *reply) begun() bool { return w.Status() != 0 }

// begin sends the head of an agent's response, once. If keep-alive events have already
// begun the stream, the head was sent before, and the names of ignored fields become a
// trailer.
func (w *reply) begin(resp *http.Response, mac string) {
	if w.answered {
		return
	}
	w.answered = true
	w.metrics.countIgnored(resp.Header)
	if w.begun() {
		agentapi.SetIgnored(w.Header(), http.TrailerPrefix+agentapi.HeaderIgnored, agentapi.Ignored(resp.Header))
		return
	}
	for _, name := range headersOfMacs {
		if values := resp.Header[name]; len(values) > 0 && w.Header()[name] == nil && (name != "Content-Length" || isLength(values)) {
			w.Header()[name] = values // the values are not shared with another response
		}
	}
	if kind := w.Header().Get("Content-Type"); kind != "application/json" && !isEvents(kind) { // a browser would run a page
		w.Header().Set("Content-Type", "application/octet-stream")
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set(agentapi.HeaderMac, mac)
	if w.model != "" {
		w.Header().Set(agentapi.HeaderModel, w.model)
	}
	w.WriteHeader(resp.StatusCode)
}

// isLength reports whether a header is one plain number: clients and proxies would read
// another one in different ways. Without it the response is sent in chunks.
func isLength(values []string) bool {
	if len(values) != 1 {
		return false
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	return err == nil && n >= 0 && values[0] == strconv.FormatInt(n, 10)
}

// allow sets how many tokens the request can use, and what is seen of them.
func (w *reply) allow(most agentapi.TokenCount, of seen) {
	w.allowed = most
	if w.meter != nil {
		w.meter.allowed, w.meter.seen = most.Sum(), of
	}
}

// countTokens reads the agent's token count, from a header or, after a stream, a trailer.
func (w *reply) countTokens(h http.Header) {
	if n, ok := agentapi.Tokens(h); ok {
		n = atMost(n, w.allowed)
		w.tokens = n
		w.meter.reported(n.Sum())
	}
}

// finish counts the finished request for its key and its model.
func (w *reply) finish() {
	w.keepAlives.forget()
	w.meter.settle(w.Status())
	w.metrics.models.finished(w)
}

// Queued implements dispatch.Client: response headers contain the place.
func (w *reply) Queued(at dispatch.Place) {
	if w.begun() {
		return
	}
	w.Header().Set(agentapi.HeaderQueuePosition, strconv.Itoa(at.Position))
	if at.Known {
		w.Header().Set(agentapi.HeaderQueueETA, wholeSeconds(at.ETA))
	}
}

// Dequeued implements dispatch.Client.
func (w *reply) Dequeued(waited time.Duration) {
	if !w.begun() {
		w.Header().Set(agentapi.HeaderQueueSeconds, strconv.FormatFloat(waited.Seconds(), 'f', 3, 64))
	}
}

// KeepAlive implements dispatch.Client: it sends the place inside the stream. Nothing can
// be sent before a non-streaming response.
func (w *reply) KeepAlive(at dispatch.Place) error {
	if w.keepAlives == nil {
		return nil
	}
	w.Queued(at)
	text := fmt.Sprintf("%s, position %d", openai.KeepAlive, at.Position)
	if at.Known {
		text += ", about " + wholeSeconds(at.ETA) + " s"
	}
	return w.sendKeepAlive(text)
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// sendKeepAlive sends a keep-alive event with a human-readable comment. It begins a stream
// that has not begun.
func (w *reply) sendKeepAlive(comment string) error {
	if !w.begun() {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("X-Accel-Buffering", "no")
		w.WriteHeader(http.StatusOK)
	}
	event, err := w.keepAlives.next()
	if err != nil {
		return err
	}
	return w.Send([]byte(": " + comment + "\n" + event))
}
