package engine

import (
	"context"

	"metalfleet.dev/metalfleet/metal/share"
)

// renderPlaces is how many conversations are rendered at once: each may make longBytes
// before it waits for its turn among the long ones.
const renderPlaces = 8

// longTurn is a request's turn among those that take much memory while their text is
// turned into tokens.
type longTurn struct {
	turns  *share.Turns
	tenant string
	has    bool
}

// take waits for the turn, unless the request has it already. The error is that of ctx.
func (l *longTurn) take(ctx context.Context) error {
	if l.has {
		return nil
	}
	err := l.turns.Take(ctx, l.tenant)
	l.has = err == nil
	return err
}

// give ends the turn, if the request has it.
func (l *longTurn) give() {
	if l.has {
		l.turns.Give(l.tenant)
	}
	l.has = false
}

// render applies the chat template. A template that makes a long text of a short request
// waits for the turn once it has made longBytes. A request that has the turn takes no place
// among the renders: all of them may be waiting for its turn to end.
func (p *inputProcessor) render(ctx context.Context, r Request, turn *longTurn) (string, *Refusal) {
	if !turn.has {
		if p.renders.Take(ctx, r.Tenant) != nil {
			return "", cancelled()
		}
		defer p.renders.Give(r.Tenant)
	}
	rendered, err := p.text.RenderInTurn(ctx, *r.Chat, longBytes, turn.take)
	switch {
	case ctx.Err() != nil:
		return "", cancelled()
	case err != nil:
		return "", invalid("messages", "%v", err)
	}
	return rendered, nil
}

func cancelled() *Refusal {
	return &Refusal{Kind: Cancelled, Message: "the request was cancelled"}
}
