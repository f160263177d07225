package serve

import (
	"context"
	"errors"
	"net/http"

	"metalfleet.dev/metalfleet/agent/serve/internal/unread"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Sizes of what is in memory of an answer.
const (
	// logprobBytes is what a log-probability takes: the value, and its JSON without the
	// token, which has a number for each of the token's bytes, logprobTextBytes.
	logprobBytes     = 160
	logprobTextBytes = 8
	// logprobStep is how many bytes are counted at once.
	logprobStep = 64 << 10
	// vectorBytes is what the vector of an input takes, of which the length is not known
	// before: 4096 dimensions.
	vectorBytes = 4 * 4096
	// echoCopies is how often a response is in memory while a client reads it: its JSON is
	// in a buffer that doubles.
	echoCopies = 2
)

// errUnread is why an answer ends that had to give way to that of another tenant.
var errUnread = errors.New("the answer gave way to that of another tenant")

// kept counts what one answer keeps in memory until the client has read it.
type kept struct {
	*unread.Hold
	// bytes are what the answer keeps, and counted those that Hold has.
	bytes, counted int64
}

// keep counts n bytes of the answer to a request, after other answers of its tenant were
// read if there is no memory now. end is called if the answer has to give way.
func (h *handler) keep(ctx context.Context, r *http.Request, n int64, end context.CancelCauseFunc) (*kept, error) {
	hold, err := h.answers.Hold(ctx, r.Header.Get(agentapi.HeaderTenant), n, func() { end(errUnread) })
	if err != nil {
		return nil, ended(ctx, tooMany(err))
	}
	return &kept{Hold: hold, bytes: n, counted: n}, nil
}

// tooMany is the error of an answer for which there is no memory.
func tooMany(cause error) *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: openai.CodeOverloaded, RetryAfter: retrySoon, Cause: cause,
		Message: "Answers that clients have not read use all of the memory for them. Read answers sooner, ask for fewer at once, or try again later."}
}

// add counts the log-probabilities of more tokens. They are many times as large as the
// text. Its error refuses the answer.
func (k *kept) add(tokens []*wire.TokenLogprobs) error {
	for _, t := range tokens {
		for _, l := range append(t.GetTop(), t.GetChosen()) {
			k.bytes += logprobBytes + logprobTextBytes*int64(len(l.GetText()))
		}
	}
	if k.bytes-k.counted < logprobStep {
		return nil
	}
	if k.Set(k.bytes) != nil {
		return openai.Invalid("logprobs", "the log-probabilities of this answer, or of its prompt, need more memory than is left for answers that are not sent in parts; "+
			"request fewer, set stream, or send a shorter prompt with echo")
	}
	k.counted = k.bytes
	return nil
}

// count counts what of an event stays in memory: the log-probabilities of an echoed prompt,
// and those of the text if the whole answer is sent, or stored, at its end.
func (a answer) count(d *wire.Delta, whole bool) error {
	if err := a.kept.add(d.GetPrompt().GetLogprobs()); err != nil {
		return err
	}
	if _, stored := a.form.(*responseForm); whole || stored {
		return a.kept.add(d.GetLogprobs())
	}
	return nil
}
