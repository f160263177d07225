package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/test/fleet"
)

// asker is a client that asks again and again.
type asker struct {
	model  string
	stream bool
	tokens int
}

// askers are the constant load: of the model with several replicas, and of the
// one that has a single one, whose requests wait where that is away.
func askers() []asker {
	return []asker{
		{several, true, streamTokens}, {several, true, streamTokens}, {several, true, streamTokens},
		{several, false, wholeTokens}, {several, false, wholeTokens},
		{single, true, streamTokens}, {single, false, wholeTokens},
	}
}

const (
	streamTokens = 120
	wholeTokens  = 24
	// between two requests of one client, so that faults and not the processor
	// are what they wait for.
	between = 100 * time.Millisecond
	// requestLimit is longer than a request may have to wait for a model that is
	// made elsewhere.
	requestLimit = 6 * time.Minute
)

// traffic is what all clients did.
type traffic struct {
	gateways []*fleet.Gateway
	// ready says whether a Service would send anybody to a gateway.
	ready   func(gateway string) bool
	stop    atomic.Bool
	running sync.WaitGroup
	next    atomic.Uint64

	mu       sync.Mutex // guards requests
	requests []request
}

// begin starts every client.
func (t *traffic) begin(ctx context.Context) {
	for n, c := range askers() {
		t.running.Go(func() {
			for i := 0; !t.stop.Load() && ctx.Err() == nil; i++ {
				r := t.ask(ctx, c, fmt.Sprintf("Tell %d-%d", n, i))
				if ctx.Err() != nil {
					return
				}
				t.mu.Lock()
				t.requests = append(t.requests, r)
				t.mu.Unlock()
				pause(ctx, between)
			}
		})
	}
}

// end lets running requests end and returns all.
func (t *traffic) end() []request {
	t.stop.Store(true)
	t.running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requests
}

// answered says whether a request that was begun after a moment was answered by
// a Mac, through a gateway or, with an empty name, any.
func (t *traffic) answered(mac, gateway string, after time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.requests) - 1; i >= 0; i-- { // they are in the order of their ends
		r := &t.requests[i]
		if r.ended.Before(after) {
			return false
		}
		if r.mac == mac && (gateway == "" || r.gateway == gateway) && r.err == nil && r.begun.After(after) {
			return true
		}
	}
	return false
}

// ask sends one request. Where its gateway is gone before anything came, it goes
// to the other one, as a client of a Service would be taken there.
func (t *traffic) ask(ctx context.Context, c asker, text string) request {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	r := request{model: c.model, stream: c.stream, begun: time.Now()}
	at := t.next.Add(1)
	for {
		i := int(at % uint64(len(t.gateways)))
		if r.gateway = gatewayName(i); !t.ready(r.gateway) {
			i = (i + 1) % len(t.gateways)
			r.gateway = gatewayName(i)
		}
		a, err := fleet.Ask(ctx, t.gateways[i].URL, fleet.Question{Model: c.model, Text: text, Stream: c.stream, MaxTokens: c.tokens})
		r.err, r.mac, r.finish, r.tokens, r.ended = err, a.Mac, a.Finish, a.Usage.CompletionTokens, time.Now()
		r.first = c.stream && a.Begun
		var typed *openai.Error
		if err == nil || r.first || ctx.Err() != nil || errors.As(err, &typed) {
			return r
		}
		r.moved++
		at++
		pause(ctx, between)
	}
}

func gatewayName(i int) string { return fmt.Sprintf("gateway-%d", i+1) }

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
