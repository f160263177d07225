package engine

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/text"
)

// greedy makes 30 MB of one word.
const greedy = `{% if messages[0].content == 'boom' %}{% set a = 'x' * 30000000 %}{{ a[:1] }}{% else %}Hello{% endif %}`

func saying(content string) *text.Chat {
	return &text.Chat{Messages: []chat.Message{{Role: "user", Content: content}}}
}

// TestConversationsOfManyMessagesTakeTurns: what a template sees of each message takes far more
// memory than a short text, and so they are rendered one after another.
func TestConversationsOfManyMessagesTakeTurns(t *testing.T) {
	many := text.Chat{Messages: slices.Repeat(saying("x").Messages, 3000)}
	parts := text.Chat{Messages: []chat.Message{{Role: "user", Parts: slices.Repeat([]chat.Part{{Text: "x"}}, 3000)}}}
	for _, conversation := range []text.Chat{many, parts} {
		p := templatedInput(t, "Hello")
		synctest.Test(t, func(t *testing.T) {
			if err := p.long.Take(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
			ended := make(chan *Refusal, 1)
			go func() {
				_, refusal := p.tokens(t.Context(), Request{Tenant: "a", Chat: &conversation}, nil)
				ended <- refusal
			}()
			synctest.Wait()
			if len(ended) > 0 {
				t.Error("a conversation of 3,000 messages or parts does not wait for its turn")
			}
			p.long.Give("other")
			if refusal := <-ended; refusal != nil {
				t.Error(refusal)
			}
		})
	}
}

// A request that has its turn needs no second one, nor a place.
func TestLongRequestsRenderWithTheirOwnTurn(t *testing.T) {
	p := templatedInput(t, greedy+"{% set b = messages[0].content * 3 %}")
	p.context = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		for range renderPlaces {
			if err := p.renders.Take(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
		}
		if _, refusal := p.tokens(t.Context(), Request{Tenant: "a", Chat: saying(strings.Repeat("x", longBytes+1))}, nil); refusal != nil {
			t.Error(refusal)
		}
		if p.long.Free() != 1 {
			t.Error("the turn is not given back")
		}
	})
}

// Tools of a usual size are read in a place for short texts, which ends with the request.
func TestToolsAreReadInAPlace(t *testing.T) {
	p := tinyInput(t)
	synctest.Test(t, func(t *testing.T) {
		p.renders = share.NewTurns(1)
		if err := p.renders.Take(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan *Refusal, 2)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				_, refusal := p.readTools(ctx, Request{Tenant: "a", Chat: &text.Chat{Tools: []byte("[]")}})
				ended <- refusal
			}()
			synctest.Wait()
		}
		if len(ended) > 0 {
			t.Error("tools are read without a place")
		}
		leave()
		if refusal := <-ended; refusal == nil || refusal.Kind != Cancelled {
			t.Error("a client that has left still waits")
		}
		p.renders.Give("other")
		if <-ended != nil || p.renders.Free() != 1 {
			t.Error("the place to read tools is not given back")
		}
	})
}
