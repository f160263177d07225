package serve

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// told is an engine's stream whose events a test gives one by one.
type told chan *wire.GenerateEvent

func (c told) Recv() (*wire.GenerateEvent, error) {
	e, ok := <-c
	if !ok {
		return nil, io.EOF
	}
	return e, nil
}

func admitted(t *testing.T, events ...*wire.GenerateEvent) (told, *admission.Admitted) {
	t.Helper()
	c := make(told, 1+len(events))
	for _, e := range append([]*wire.GenerateEvent{{Event: &wire.GenerateEvent_Admitted{Admitted: &wire.Admitted{}}}}, events...) {
		c <- e
	}
	a, err := admission.Await(c)
	if err != nil {
		t.Fatal(err)
	}
	return c, a
}

// TestOtherChoicesAreAskedForOnceTheFirstHasBegun: before that its prompt is not
// computed, and each would compute it again.
func TestOtherChoicesAreAskedForOnceTheFirstHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Text: "a"}}}
		end := &wire.GenerateEvent{Event: &wire.GenerateEvent_Finished{Finished: &wire.Finished{Reason: wire.FinishReason_FINISH_REASON_STOP}}}
		first, a := admitted(t)
		var asked atomic.Int64
		all := answer{admitted: a, forms: make([]form, 3), ask: func(int) (*admission.Admitted, error) {
			asked.Add(1)
			_, another := admitted(t, text, end)
			return another, nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		events, stop := all.begin(ctx, cancel)
		synctest.Wait()
		if n := asked.Load(); n != 0 {
			t.Errorf("%d choices are asked for before the first has begun", n)
		}
		first <- text
		first <- end
		for range 6 {
			if e := <-events; e.err != nil {
				t.Error(e.err)
			}
		}
		if n := asked.Load(); n != 2 {
			t.Errorf("%d more choices were asked for, want 2", n)
		}
		stop()
	})
}

// A long conversation is sent to the engine a few times only, and
// the last time with the last exchange.
func TestLongConversationsAreShortenedAFewTimes(t *testing.T) {
	for _, exchanges := range []int{1, 2, 3, 100, 129, 5000, openai.MaxParts} {
		chat := &wire.Chat{Messages: []*wire.ChatMessage{{Role: openai.RoleSystem}}}
		for range exchanges {
			chat.Messages = append(chat.Messages, &wire.ChatMessage{Role: openai.RoleUser})
		}
		shorten, times := shortening(chat), 0
		for shorten(0) {
			times++
		}
		if times > mostShortened || len(chat.Messages) != 2 {
			t.Errorf("%d exchanges are shortened %d times, to %d messages", exchanges, times, len(chat.Messages))
		}
	}
}
