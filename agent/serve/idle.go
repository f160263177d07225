package serve

import (
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// progressEach is the minimum time between two progress events, and progressRate the maximum of
// their bytes in a second: those of a response repeat the tools and metadata of its request.
const (
	progressEach = 500 * time.Millisecond
	progressRate = 1 << 20
)

// idle keeps a stream open while the engine sends nothing visible. Clients count
// parsed events, so it sends an empty event of the form instead of a comment.
type idle struct {
	*time.Ticker
	answer
	began time.Time
	// next is when progress may be reported again, or before if the prompt is complete and the
	// last event was not large.
	next     time.Time
	large    bool
	finished []bool // choices
}

func newIdle(a answer) *idle {
	return &idle{Ticker: time.NewTicker(a.KeepAlive), answer: a, began: time.Now(), finished: make([]bool, len(a.forms))}
}

// keepAlive sends one event. It belongs to an unfinished choice, because
// accumulating clients would restart a finished one. A response's event must
// follow its opening; other forms open with their answer, so that another Mac can
// still serve the request.
func (i *idle) keepAlive(out *eventStream, p *openai.PromptProgress) error {
	choice := max(slices.Index(i.finished, false), 0)
	event := i.forms[choice].keepAlive(p)
	if event == nil {
		out.wrote = true
		return out.Comment(openai.KeepAlive)
	}
	if _, first := i.forms[choice].(*responseForm); first {
		return out.send(choice, event)
	}
	return out.one(event)
}

// progress reports how much of the prompt has been computed.
func (i *idle) progress(out *eventStream, p *wire.Progress) error {
	now, complete := time.Now(), int(p.GetProcessedTokens()) >= i.admitted.PromptTokens()
	if !i.answer.progress || now.Before(i.next) && (i.large || !complete) {
		return nil
	}
	before := out.Written()
	err := i.keepAlive(out, &openai.PromptProgress{Total: i.admitted.PromptTokens(), Cache: int(p.GetCachedTokens()), Processed: int(p.GetProcessedTokens()),
		TimeMS: now.Sub(i.began).Milliseconds()})
	pause := time.Duration(out.Written()-before) * time.Second / progressRate
	i.next, i.large = now.Add(max(pause, progressEach)), pause > progressEach
	return err
}
