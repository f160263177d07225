// Package load measures a model from the outside: a number of requests with a
// given concurrency.
//
// It owns the pacing and the figures. Failed requests do not count in the
// averages: errors are counted by their messages.
//
// Start reading at Run.
package load

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Sample is one request.
type Sample struct {
	// First text after, and the end after.
	First, Total time.Duration
	// Tokens of the answer; 0 where the server did not count.
	Tokens int
	// Error in short words that many requests share; empty: it went well.
	Error string
}

// Report is what was measured. Times are milliseconds.
type Report struct {
	Model    string         `json:"model"`
	Requests int            `json:"requests"`
	Streams  int            `json:"streams"`
	Failed   int            `json:"failed"`
	Errors   map[string]int `json:"errors,omitempty"`
	// Seconds from the first request to the last answer.
	Seconds      float64 `json:"seconds"`
	OutputTokens int     `json:"outputTokens"`
	// TokensPerSecond of all streams together.
	TokensPerSecond float64 `json:"tokensPerSecond"`
	// FirstToken is the time to the first text.
	FirstToken Spread `json:"firstTokenMilliseconds"`
	// Decode is the tokens per second of one stream, after its first. 99 of 100
	// streams reach or exceed its p99.
	Decode Spread `json:"decodeTokensPerSecond"`
}

// Spread of a figure; absent where nothing was measured.
type Spread struct {
	P50 *float64 `json:"p50,omitempty"`
	P99 *float64 `json:"p99,omitempty"`
}

// Run sends requests numbered from 0, streams of them at once, and returns what
// became of those that were sent. A context that ends stops new ones.
func Run(ctx context.Context, requests, streams int, send func(ctx context.Context, i int) Sample) []Sample {
	var wait sync.WaitGroup
	var mu sync.Mutex
	next, out := 0, []Sample{} // guarded by mu
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next >= requests || ctx.Err() != nil {
			return 0, false
		}
		next++
		return next - 1, true
	}
	for range min(streams, requests) {
		wait.Go(func() {
			for i, ok := take(); ok; i, ok = take() {
				s := send(ctx, i)
				mu.Lock()
				out = append(out, s)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return out
}

// Summarize computes the figures; wall is the time of the whole run.
func Summarize(model string, streams int, samples []Sample, wall time.Duration) Report {
	r := Report{Model: model, Requests: len(samples), Streams: streams, Seconds: wall.Seconds()}
	var first, decode []float64
	for _, s := range samples {
		if s.Error != "" {
			if r.Errors == nil {
				r.Errors = map[string]int{}
			}
			r.Failed++
			r.Errors[s.Error]++
			continue
		}
		r.OutputTokens += s.Tokens
		if s.First > 0 {
			first = append(first, float64(s.First.Microseconds())/1000)
		}
		if s.Tokens > 1 && s.Total > s.First && s.First > 0 {
			decode = append(decode, float64(s.Tokens-1)/(s.Total-s.First).Seconds())
		}
	}
	if wall > 0 {
		r.TokensPerSecond = float64(r.OutputTokens) / wall.Seconds()
	}
	r.FirstToken = Spread{rank(first, 50), rank(first, 99)}
	r.Decode = Spread{rank(decode, 50), rank(decode, 1)}
	return r
}

// rank is the nearest-rank percentile.
func rank(figures []float64, percent int) *float64 {
	if len(figures) == 0 {
		return nil
	}
	slices.Sort(figures)
	return &figures[max(0, (len(figures)*percent+99)/100-1)]
}
