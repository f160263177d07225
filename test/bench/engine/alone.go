package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"metalfleet.dev/metalfleet/metal/wire"
	engine "metalfleet.dev/metalfleet/test/bench/served"
)

const (
	answerTokens  = 96
	contextTokens = 1024
	sequences     = 2
)

// served is what one engine process did; prefill, decode and firstToken have a
// figure per round.
type served struct {
	prefill, decode, firstToken []float64
	// ready is from start to Ready, in milliseconds.
	ready float64
	// footprint while a stream runs, and what it should consist of.
	footprint, weights, kv int64
}

// alone starts one engine and asks it again and again.
func (m *measurements) alone(ctx context.Context, o options) (err error) {
	e, err := engine.Start(ctx, engine.Options{Program: o.engine, Backend: "ref", Model: o.model, ContextTokens: contextTokens, Sequences: sequences})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	s := &m.served
	s.ready = float64(e.Ready.Microseconds()) / 1000
	for range o.runs {
		d, err := prefill(ctx, e)
		if err != nil {
			return err
		}
		s.prefill = append(s.prefill, longPrompt/d.Seconds())
		if err := s.story(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// generate asks once and calls each for every event.
func generate(ctx context.Context, e *engine.Engine, r *wire.GenerateRequest, each func(*wire.GenerateEvent) error) error {
	zero := float32(0)
	r.Sampling = &wire.Sampling{Temperature: &zero}
	stream, err := e.Client.Generate(ctx, r)
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	for {
		ev, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		if f := ev.GetFinished(); f.GetError() != nil {
			return fmt.Errorf("generate: %s", f.GetError().GetMessage())
		}
		if err := each(ev); err != nil {
			return err
		}
	}
}

// prefill is the time from Admitted to the first token of a prompt of 512.
func prefill(ctx context.Context, e *engine.Engine) (d time.Duration, err error) {
	ids := make([]int32, longPrompt)
	for i := range ids {
		ids[i] = int32(1000 + i*37%20000)
	}
	var began time.Time
	err = generate(ctx, e, &wire.GenerateRequest{Id: "prefill", MaxTokens: 1, Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: ids}}}, func(ev *wire.GenerateEvent) error {
		switch {
		case ev.GetAdmitted() != nil:
			began = time.Now()
		case d == 0:
			d = time.Since(began)
		}
		return nil
	})
	if err == nil && d <= 0 {
		err = fmt.Errorf("the prompt of %d gave no token", longPrompt)
	}
	return d, err
}

// story times one stream between its first and its last token, and reads the
// process's footprint while the stream holds its KV.
func (s *served) story(ctx context.Context, e *engine.Engine) error {
	chat := &wire.Chat{Messages: []*wire.ChatMessage{{Role: "user", Content: "Tell a long story about a lighthouse keeper and the sea."}}}
	var admitted, first, last time.Time
	tokens := 0
	err := generate(ctx, e, &wire.GenerateRequest{Id: "decode", MaxTokens: answerTokens, Input: &wire.GenerateRequest_Chat{Chat: chat}}, func(ev *wire.GenerateEvent) error {
		if ev.GetAdmitted() != nil {
			admitted = time.Now()
		}
		n := len(ev.GetDelta().GetTokens())
		if n == 0 {
			return nil
		}
		last = time.Now()
		if tokens == 0 {
			first = last
			tokens = n
			return nil
		}
		if tokens += n; tokens >= answerTokens*3/4 && s.footprint == 0 {
			return s.account(ctx, e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if tokens < answerTokens/2 {
		return fmt.Errorf("the story ended after %d tokens, too short to time", tokens)
	}
	s.firstToken = append(s.firstToken, float64(first.Sub(admitted).Microseconds())/1000)
	s.decode = append(s.decode, float64(tokens-1)/last.Sub(first).Seconds())
	return nil
}

// account reads what the engine says it holds and what the kernel says.
func (s *served) account(ctx context.Context, e *engine.Engine) error {
	w, err := e.Client.Watch(ctx, &wire.WatchRequest{})
	if err != nil {
		return err
	}
	st, err := w.Recv()
	if err != nil {
		return err
	}
	s.weights, s.kv = st.GetMemory().GetWeightsBytes(), st.GetMemory().GetKvInUseBytes()
	s.footprint, err = e.Footprint()
	return err
}
