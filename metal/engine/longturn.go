package engine

import (
	"context"
	"errors"

	"metalfleet.dev/metalfleet/metal/share"
)

// renderPlaces is how many conversations are rendered at once: each may make longBytes
// before it ends, to wait for its turn among the long ones.
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

// errLong ends a render whose text gets long.
var errLong = errors.New("the text of the conversation is long")

// render applies the chat template. A template that makes a long text of a short request starts
// again with the turn once it has made longBytes: no request keeps a place among the renders, or
// a part of its text, while it waits for the turn.
func (p *inputProcessor) render(ctx context.Context, r Request, turn *longTurn) (rendered string, refusal *Refusal) {
	err := errLong
	if !turn.has {
		rendered, err = p.renderShort(ctx, r)
	}
	if errors.Is(err, errLong) {
		if err = turn.take(ctx); err == nil {
			rendered, err = p.text.Render(ctx, *r.Chat)
		}
	}
	switch {
	case ctx.Err() != nil:
		return "", cancelled()
	case err != nil:
		return "", invalid("messages", "%v", err)
	}
	return rendered, nil
}

// renderShort returns errLong for a text that gets long. It never waits with a place.
func (p *inputProcessor) renderShort(ctx context.Context, r Request) (string, error) {
	if err := p.renders.Take(ctx, r.Tenant); err != nil {
		return "", err
	}
	defer p.renders.Give(r.Tenant)
	return p.text.RenderInTurn(ctx, *r.Chat, longBytes, func(context.Context) error { return errLong })
}

func cancelled() *Refusal {
	return &Refusal{Kind: Cancelled, Message: "the request was cancelled"}
}
