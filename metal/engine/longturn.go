package engine

import (
	"context"
	"errors"

	"metalfleet.dev/metalfleet/metal/share"
)

// renderPlaces is how many requests turn short text into tokens at once: each conversation may make
// longBytes before it ends, to wait for its turn among the long ones.
const renderPlaces = 8

// longTurn is a request's turn among those that take much memory while their text is
// turned into tokens, or its place among the others.
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

// yield lets the request of another tenant that waits for the turn have it first, between two
// parts of the work. The error is that of ctx.
func (l *longTurn) yield(ctx context.Context) error {
	if !l.has {
		return nil
	}
	err := l.turns.Yield(ctx, l.tenant)
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

// textTurns are what a request needs to turn its text into tokens: the turn of a long one, or the
// place of a short one. It has one of them until it has the tokens, and may yield it between texts.
type textTurns struct{ long, place longTurn }

func (p *inputProcessor) textTurns(tenant string) *textTurns {
	return &textTurns{longTurn{turns: p.long, tenant: tenant}, longTurn{turns: p.renders, tenant: tenant}}
}

// take waits for the turn, or for the place if the text is short. The error is that of ctx.
func (t *textTurns) take(ctx context.Context, long bool) error {
	if t.long.has {
		return nil
	}
	if !long {
		return t.place.take(ctx)
	}
	t.place.give()
	return t.long.take(ctx)
}

// yield lets the request of another tenant have first what it has. The error is that of ctx.
func (t *textTurns) yield(ctx context.Context) error {
	if err := t.place.yield(ctx); err != nil {
		return err
	}
	return t.long.yield(ctx)
}

// give ends both.
func (t *textTurns) give() {
	t.place.give()
	t.long.give()
}

// render applies the chat template. A template that makes a long text of a short request starts
// again with the turn, once it has made longBytes or a text that normalizing makes long: no request
// keeps its place among the short ones, or a part of its text, while it waits for the turn.
func (p *inputProcessor) render(ctx context.Context, r Request, turns *textTurns) (rendered string, refusal *Refusal) {
	err := errLong
	if !turns.long.has {
		if err = turns.take(ctx, false); err == nil {
			rendered, err = p.text.RenderInTurn(ctx, *r.Chat, longBytes, func(context.Context) error { return errLong })
		}
		if err == nil && p.lengthens(len(rendered)) {
			rendered, err = "", errLong
		}
	}
	if errors.Is(err, errLong) {
		if err = turns.take(ctx, true); err == nil {
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

func cancelled() *Refusal {
	return &Refusal{Kind: Cancelled, Message: "the request was cancelled"}
}
