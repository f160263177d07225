package servetest

import (
	"context"

	"metalfleet.dev/metalfleet/metal/wire"
)

// Admit, Text and Finish are the events of a stream.
func Admit() *wire.GenerateEvent {
	return &wire.GenerateEvent{Event: &wire.GenerateEvent_Admitted{Admitted: &wire.Admitted{PromptTokens: 3}}}
}

// Text is an event that adds text.
func Text(t string) *wire.GenerateEvent {
	return &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Text: t}}}
}

// Prompt is an event that echoes the prompt.
func Prompt(text string, tokens ...*wire.TokenLogprobs) *wire.GenerateEvent {
	return &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Prompt: &wire.PromptDelta{Text: text, Logprobs: tokens}}}}
}

// Finish is the last event, after n generated tokens.
func Finish(reason wire.FinishReason, n int) *wire.GenerateEvent {
	return &wire.GenerateEvent{Event: &wire.GenerateEvent_Finished{Finished: &wire.Finished{Reason: reason,
		Usage: &wire.Usage{PromptTokens: 3, GeneratedTokens: int64(n), CachedTokens: 1}}}}
}

// FailWith is the last event of a request that failed.
func FailWith(r *wire.Refusal) *wire.GenerateEvent {
	return &wire.GenerateEvent{Event: &wire.GenerateEvent_Finished{Finished: &wire.Finished{
		Reason: wire.FinishReason_FINISH_REASON_ERROR, Error: r}}}
}

// Events sends a list of events.
func Events(events ...*wire.GenerateEvent) Script {
	return func(_ context.Context, _ *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		for _, e := range events {
			if err := send(e); err != nil {
				return err
			}
		}
		return nil
	}
}

// Say answers with texts and stops.
func Say(texts ...string) Script {
	events := []*wire.GenerateEvent{Admit()}
	for _, t := range texts {
		events = append(events, Text(t))
	}
	return Events(append(events, Finish(wire.FinishReason_FINISH_REASON_STOP, len(texts)))...)
}

// Refuse refuses the request before any other event.
func Refuse(r *wire.Refusal) Script {
	return func(context.Context, *wire.GenerateRequest, func(*wire.GenerateEvent) error) error {
		return wire.Refuse(r)
	}
}

// Hang sends a list and then nothing until the request is canceled.
func Hang(events ...*wire.GenerateEvent) Script {
	return func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		if err := Events(events...)(ctx, r, send); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// Endless sends the same text until the request is canceled.
func Endless(text string) Script {
	return func(_ context.Context, _ *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		if err := send(Admit()); err != nil {
			return err
		}
		for {
			if err := send(Text(text)); err != nil {
				return err
			}
		}
	}
}
