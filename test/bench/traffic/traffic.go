// Package traffic sends requests to a server that streams text: one by one, at
// once, or at random times that do not depend on the answers.
//
// It owns prompts that no cache has seen, Poisson arrivals from a seed, and the
// figures of the answers: time to first token, time between tokens, tokens per
// second, as percentiles. A request that fails is an error, never left out of
// the figures.
//
// Start reading at Target and OpenLoop.
package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/served"
)

// Request is a prompt in plain text, or messages of a chat, and the length of the
// greedy answer.
type Request struct {
	Prompt    string
	Messages  []Message
	MaxTokens int
	// Constraint of the answer; only engines of ours are asked for it.
	Constraint *wire.Constraint
}

// Message of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Usage is the tokens of a request, as the server counted them.
type Usage struct{ Prompt, Cached, Generated int }

// Target is a server.
type Target interface {
	// Ask runs one request and calls each for every piece of the answer as it
	// arrives.
	Ask(ctx context.Context, r Request, each func()) (Usage, error)
}

// Engine is one of ours, over its socket.
type Engine struct{ Client wire.EngineClient }

// Ask runs one request.
func (e Engine) Ask(ctx context.Context, r Request, each func()) (Usage, error) {
	usage, err := served.Generate(ctx, e.Client, &wire.GenerateRequest{Input: &wire.GenerateRequest_Prompt{Prompt: r.Prompt}, MaxTokens: int64(r.MaxTokens), Constraint: r.Constraint},
		func(ev *wire.GenerateEvent) {
			if len(ev.GetDelta().GetTokens()) > 0 {
				each()
			}
		})
	return Usage{int(usage.GetPromptTokens()), int(usage.GetCachedTokens()), int(usage.GetGeneratedTokens())}, err
}

// Answer is what one request took.
type Answer struct {
	Usage
	// Due is when the request was to be sent, from the beginning of the load.
	Due time.Duration
	// First is from Due to the first piece, Whole to the end.
	First, Whole time.Duration
	// Gaps between the pieces.
	Gaps []time.Duration
	Err  error
}

// Ask runs one request.
func Ask(ctx context.Context, t Target, r Request) Answer {
	return ask(ctx, t, r, time.Now())
}

func ask(ctx context.Context, t Target, r Request, due time.Time) Answer {
	var a Answer
	var last time.Time
	a.Usage, a.Err = t.Ask(ctx, r, func() {
		now := time.Now()
		if last.IsZero() {
			a.First = now.Sub(due)
		} else {
			a.Gaps = append(a.Gaps, now.Sub(last))
		}
		last = now
	})
	a.Whole = time.Since(due)
	if a.Err == nil && last.IsZero() {
		a.Err = fmt.Errorf("an answer of %d tokens had no piece", a.Generated)
	}
	return a
}

// Together sends all requests at once.
func Together(ctx context.Context, t Target, rs []Request) []Answer {
	return OpenLoop(ctx, t, rs, make([]time.Duration, len(rs)))
}

// OpenLoop sends each request at its time, whether or not earlier ones were
// answered.
func OpenLoop(ctx context.Context, t Target, rs []Request, at []time.Duration) []Answer {
	out := make([]Answer, len(rs))
	var wg sync.WaitGroup
	began := time.Now()
	for i, r := range rs {
		due := began.Add(at[i])
		wg.Go(func() {
			timer := time.NewTimer(time.Until(due))
			defer timer.Stop()
			select {
			case <-timer.C:
				out[i] = ask(ctx, t, r, due)
			case <-ctx.Done():
				out[i].Err = ctx.Err()
			}
			out[i].Due = at[i]
		})
	}
	wg.Wait()
	return out
}

// Poisson returns independent random arrival times at a rate per second.
func Poisson(rate float64, requests int, seed uint64) []time.Duration {
	rng := rand.New(rand.NewPCG(seed, 1))
	at := make([]time.Duration, requests)
	now := 0.0
	for i := range at {
		now += rng.ExpFloat64() / rate
		at[i] = time.Duration(now * float64(time.Second))
	}
	return at
}

// words are one token each, after a blank, for every tokenizer trained on
// English.
var words = strings.Fields(`the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up what said its about than into them can only
other time new some could these two may first then do any like my now over such our man me even most made after also did many off before must
well back through years much where your way down should because long each just state those people too mr how little good world make very year
still see own work men day get here old between both life being under three never know same last another while us might great go come since
against right came take used himself few house use place during high without again home around small however found mind part school four`)

// Prompt returns random words, which differ from the first word on for each
// seed.
func Prompt(count int, seed uint64) string {
	rng := rand.New(rand.NewPCG(seed, 2))
	var b strings.Builder
	for i := range count {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[rng.IntN(len(words))])
	}
	return b.String()
}

// calibration is the number of words that Words counts.
const calibration = 64

// Words asks a server how many tokens it makes of plain words, and returns a
// function from tokens to words. The request warms the server up, too.
func Words(ctx context.Context, t Target) (func(tokens int) int, error) {
	a := Ask(ctx, t, Request{Prompt: Prompt(calibration, 0), MaxTokens: 2})
	if a.Err != nil {
		return nil, fmt.Errorf("the first request: %w", a.Err)
	}
	if a.Prompt < calibration {
		return nil, fmt.Errorf("the server counted %d tokens in %d words", a.Prompt, calibration)
	}
	return func(tokens int) int { return max(1, (tokens*calibration+a.Prompt/2)/a.Prompt) }, nil
}

// Percentile returns the nearest rank, or 0 of no durations.
func Percentile(of []time.Duration, p float64) time.Duration {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	rank := int(p/100*float64(len(sorted)) + 0.999999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Milliseconds of a duration, to the microsecond.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Figures of a load.
type Figures struct {
	// First and Gaps are times to the first token and between tokens.
	First, Gaps []time.Duration
	// TokensPerSecond of all answers together, from the first request to the last
	// token.
	TokensPerSecond float64
	// Usage of all requests.
	Usage
}

// Sum returns the figures of answers, or the error of the first that failed.
func Sum(answers []Answer) (Figures, error) {
	var f Figures
	var end time.Duration
	for i, a := range answers {
		if a.Err != nil {
			return f, fmt.Errorf("request %d: %w", i, a.Err)
		}
		f.First, f.Gaps = append(f.First, a.First), append(f.Gaps, a.Gaps...)
		f.Prompt, f.Cached, f.Generated = f.Prompt+a.Prompt, f.Cached+a.Cached, f.Generated+a.Generated
		end = max(end, a.Due+a.Whole)
	}
	if end > 0 {
		f.TokensPerSecond = float64(f.Generated) / end.Seconds()
	}
	return f, nil
}
