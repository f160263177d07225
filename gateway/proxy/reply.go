package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// reply is the way to the client. Every write has a deadline: a client that
// never reads must not hold an engine.
type reply struct {
	http.ResponseWriter
	rc        *http.ResponseController
	timeout   time.Duration
	status    int
	firstByte time.Time
	dialect   *dialect.Dialect
	began     time.Time // when the request came
	last      time.Time // when something was written last
	meter     *meter    // of the answer
	tokens    int64     // that the agent counted
	metrics   *metrics
	answered  bool // by an agent
	// keepAlives is nil unless the request asks for a stream.
	keepAlives *keepAlives
	model      string // that answers, where its client is told
}

func newReply(w http.ResponseWriter, timeout time.Duration) *reply {
	return &reply{ResponseWriter: w, rc: http.NewResponseController(w), timeout: timeout, began: time.Now()}
}

// WriteHeader notes the status.
func (w *reply) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *reply) Write(p []byte) (int, error) {
	now := time.Now()
	if err := w.rc.SetWriteDeadline(now.Add(w.timeout)); err != nil {
		return 0, fmt.Errorf("bound a write: %w", err)
	}
	if w.last = now; w.firstByte.IsZero() {
		w.firstByte = now
	}
	return w.ResponseWriter.Write(p)
}

// send writes and flushes. The front is HTTP/1.1, where a deadline that passes
// between two writes does no harm.
func (w *reply) send(p []byte) error {
	if _, err := w.Write(p); err != nil {
		return err
	}
	return w.rc.Flush()
}

// refuse tells the client of an error: as the answer, or where a stream has
// begun as its last event, after which nobody takes the answer for whole.
func (w *reply) refuse(e *openai.Error) error {
	id := w.Header().Get(agentapi.HeaderRequestID)
	if !w.begun() {
		return w.dialect.WriteError(w, e, id)
	}
	failed, err := w.keepAlives.failed(e)
	if err != nil {
		return err
	}
	if failed != "" {
		return w.send([]byte(failed))
	}
	event, err := w.dialect.ErrorEvent(e, id)
	if err != nil {
		return err
	}
	return w.send(event)
}

func (w *reply) json(v any) error {
	body, err := openai.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(body); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// ours are headers that the gateway sets itself, and those that concern one
// connection only.
var ours = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Date",
	agentapi.HeaderRetryable, agentapi.HeaderMac, agentapi.HeaderModel, agentapi.HeaderRequestID, agentapi.HeaderTokens,
	agentapi.HeaderQueuePosition, agentapi.HeaderQueueETA, agentapi.HeaderQueueSeconds}

// trailer passes on what an agent reports after a stream.
func (w *reply) trailer(h http.Header) {
	if v := h.Get(agentapi.HeaderCalls); v != "" {
		w.Header().Set(http.TrailerPrefix+agentapi.HeaderCalls, v)
	}
}

// begun says that the head is out: from here errors are told inside the stream.
func (w *reply) begun() bool { return w.status != 0 }

// begin sends the head of an agent's response, once. If the gateway has begun the
// stream to keep it open, the head is sent already, and the names of ignored fields
// become a trailer.
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
	for name, values := range resp.Header {
		if !slices.Contains(ours, name) {
			w.Header()[name] = values // nobody else has the answer
		}
	}
	w.Header().Set(agentapi.HeaderMac, mac)
	if w.model != "" {
		w.Header().Set(agentapi.HeaderModel, w.model)
	}
	w.WriteHeader(resp.StatusCode)
}
