package serve

import (
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// progressEach is the shortest time between two events that report progress.
const progressEach = 500 * time.Millisecond

// idle keeps a stream open while the engine is silent, or what it sends shows
// nothing. Clients count parsed events, so it sends an event of the form's own
// that adds nothing, instead of a comment.
type idle struct {
	*time.Ticker
	answer
	began    time.Time
	reported time.Time
	finished []bool // choices
}

func newIdle(a answer) *idle {
	return &idle{Ticker: time.NewTicker(a.KeepAlive), answer: a, began: time.Now(), finished: make([]bool, len(a.forms))}
}

// keepAlive sends one event. It belongs to an unfinished choice, because accumulators
// would begin a finished one again. A response's event has to follow its opening;
// other forms open with their answer, so that another Mac can still give it.
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
	now := time.Now()
	if !i.answer.progress || now.Sub(i.reported) < progressEach && int(p.GetProcessedTokens()) < i.admitted.PromptTokens() {
		return nil
	}
	i.reported = now
	return i.keepAlive(out, &openai.PromptProgress{Total: i.admitted.PromptTokens(), Cache: int(p.GetCachedTokens()), Processed: int(p.GetProcessedTokens()),
		TimeMS: now.Sub(i.began).Milliseconds()})
}
