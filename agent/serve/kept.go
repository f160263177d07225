package serve

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"

	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/agent/serve/internal/unread"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Sizes of what an answer keeps in memory.
const (
	// logprobBytes is what a log-probability takes: the value, and its JSON without the
	// token. logprobTextBytes is what each byte of the token adds: the JSON has a number
	// for it.
	logprobBytes     = 160
	logprobTextBytes = 8
	// logprobStep is how many bytes are counted at once.
	logprobStep = 64 << 10
	// eventCopies is what each byte of text of an event takes until the event is written: its
	// JSON may have six for it, in a buffer that doubles. Events from largeEvent bytes on
	// count until then; others are many, and take little.
	eventCopies = 8
	largeEvent  = 1 << 20
	// callBytes is what a tool call takes by itself, and an item of a response.
	callBytes = 512
	// vectorBytes is assumed for the vector of an input, whose length is not known yet: 4096
	// dimensions.
	vectorBytes = 4 * 4096
	// textCopies is how often a text is in memory until it is sent.
	textCopies = 3
	// echoCopies is how often a response is in memory while a client reads it: its JSON is
	// in a buffer that doubles. Of a page of its items it is the items, and the JSON of one.
	echoCopies = 2
)

// keepTime is how long a read of a stored response waits for memory: each has a stream, and a turn
// and a connection of the gateway. Answers of others give way earlier.
const keepTime = 2 * unread.Grace

// errUnread ends an answer that has to give way to that of another tenant.
var errUnread = errors.New("the answer gave way to that of another tenant")

// breakUnread breaks the write of an answer off that has to give way meanwhile: what it writes is in
// memory until then. What is written after it gave way is the error.
func breakUnread(ctx context.Context, w http.ResponseWriter) (stop func()) {
	if ctx.Err() != nil {
		return func() {}
	}
	gave, give := context.WithCancel(context.WithoutCancel(ctx))
	unless := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errUnread) {
			give()
		}
	})
	finish := front.BreakAfter(gave, w)
	return func() {
		unless()
		finish()
		give()
	}
}

// kept counts what one answer keeps in memory until the client has read it.
type kept struct {
	*unread.Hold
	room *unread.Room
	mu   sync.Mutex // guards the fields after it
	// bytes are what the answer keeps, and counted those that Hold has; events are those of
	// large events, which Hold has too.
	bytes, counted, events int64
}

// ownerOf returns whose memory and turns a request takes: its tenant's, or those of its client
// without API keys.
func ownerOf(h http.Header) string {
	return cmp.Or(h.Get(agentapi.HeaderTenant), h.Get(agentapi.HeaderClient))
}

// keep counts n bytes of the answer to a request, after other answers of its tenant, or of its
// client without API keys, were read if there is no memory now. end is called if the answer has to
// give way.
func (h *handler) keep(ctx context.Context, r *http.Request, n int64, end context.CancelCauseFunc) (*kept, error) {
	return h.keepWhile(ctx, ctx, r, n, end)
}

// keepSoon is keep for a short request that can be repeated: it waits for at most keepTime.
func (h *handler) keepSoon(ctx context.Context, r *http.Request, n int64, end context.CancelCauseFunc) (*kept, error) {
	waiting, stop := context.WithTimeout(ctx, keepTime)
	defer stop()
	return h.keepWhile(ctx, waiting, r, n, end)
}

// keepWhile is keep that waits until a context ends.
func (h *handler) keepWhile(ctx, waiting context.Context, r *http.Request, n int64, end context.CancelCauseFunc) (*kept, error) {
	hold, err := h.answers.Hold(waiting, ownerOf(r.Header), n, func() { end(errUnread) })
	if err != nil {
		return nil, ended(ctx, tooMany(err))
	}
	return &kept{Hold: hold, room: h.answers, bytes: n, counted: n}, nil
}

// tooMany is the error of an answer for which there is no memory.
func tooMany(cause error) *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: openai.CodeOverloaded, RetryAfter: retrySoon, Cause: cause,
		Message: "Answers that clients have not read use all of the memory for them. Read answers sooner, ask for fewer at once, or try again later."}
}

// add counts more bytes, and the log-probabilities of tokens, which are many times as large. Its
// error refuses the answer.
func (k *kept) add(bytes int64, tokens []*wire.TokenLogprobs) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bytes += bytes + logprobsBytes(tokens)
	if k.bytes-k.counted < logprobStep {
		return nil
	}
	switch err := k.Set(k.bytes + k.events); {
	case err != nil && k.bytes <= k.room.Most():
		return tooMany(err)
	case err != nil:
		return openai.Invalid("", "This answer, with its log-probabilities and an echoed prompt, needs more memory than there is for an answer that is not sent in parts. "+
			"Set stream, request fewer log-probabilities, or send a shorter prompt with echo.")
	}
	k.counted = k.bytes
	return nil
}

// logprobsBytes is what the log-probabilities of tokens take.
func logprobsBytes(tokens []*wire.TokenLogprobs) (n int64) {
	for _, t := range tokens {
		n += logprobBytes + logprobTextBytes*int64(len(t.GetChosen().GetText()))
		for _, l := range t.GetTop() {
			n += logprobBytes + logprobTextBytes*int64(len(l.GetText()))
		}
	}
	return n
}

// texts is the length of what a client gets of an event as text, in bytes.
func texts(d *wire.Delta) int {
	n := len(d.GetText()) + len(d.GetReasoning())
	for _, c := range d.GetCalls() {
		n += len(c.GetName()) + len(c.GetArguments()) + len(c.GetWritten())
	}
	return n
}

// writing counts a large event until written is called. A client that does not read holds it, and
// the next one of each choice, for as long as a write may take, and so do all streams of its
// tenant. The error refuses the rest of the answer.
func (k *kept) writing(d *wire.Delta) (written func(), err error) {
	n := eventCopies*int64(texts(d)) + callBytes*int64(len(d.GetCalls())) + logprobsBytes(d.GetLogprobs())
	n = max(n, 2*int64(proto.Size(d)+4*len(d.GetTokens()))) // what is not written takes memory until then
	if n < largeEvent {
		return func() {}, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.Set(k.counted + k.events + n); err != nil {
		return nil, tooMany(err)
	}
	k.events += n
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.events -= n
		_ = k.Set(k.counted + k.events) // an answer that gave way has none
	}, nil
}

// count counts what of an event stays in memory: an echoed prompt, and the rest if the whole
// answer is sent, or stored, at its end.
func (a answer) count(d *wire.Delta, whole bool) error {
	echo := eventCopies * int64(len(d.GetPrompt().GetText())) // all of it is in one event
	if err := a.kept.add(echo, d.GetPrompt().GetLogprobs()); err != nil {
		return err
	}
	f, stored := a.form.(*responseForm)
	if !whole && !stored {
		return nil
	}
	items := 0
	for _, c := range d.GetCalls() {
		if c.GetName() != "" { // else it continues one
			items++
		}
	}
	if stored {
		items += f.turns(d)
	}
	return a.kept.add(textCopies*int64(texts(d))+callBytes*int64(items), d.GetLogprobs())
}
