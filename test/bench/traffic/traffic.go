// Package traffic loads a server that streams text: requests one by one, beside
// one another, or open-loop, at times that do not wait for answers.
//
// It owns the targets (the engine over its socket, mlx-lm's server over HTTP),
// prompts that no cache has seen, Poisson arrivals from a seed, and the figures
// of what came: time to first token, time between tokens, tokens a second, as
// percentiles. It refuses a request that ends early or with an error: it is
// returned, never left out of the figures. It judges nothing.
//
// Another server, such as one on a GPU, is another Target.
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
)

// Request is what to ask.
type Request struct {
	// Prompt in plain text.
	Prompt string
	// MaxTokens of the answer, which is greedy.
	MaxTokens int
}

// Target is a server.
type Target interface {
	// Ask runs one request and calls each for every piece of the answer as it
	// comes. It returns how many tokens prompt and answer had.
	Ask(ctx context.Context, r Request, each func()) (prompt, answer int, err error)
}

// Answer is what one request took.
type Answer struct {
	// Due is when the request was to be sent, from the beginning of the load.
	Due time.Duration
	// First is from then to the first piece, Whole to the end.
	First, Whole time.Duration
	// Gaps are between the pieces.
	Gaps []time.Duration
	// Prompt and Tokens count those of the prompt and of the answer.
	Prompt, Tokens int
	Err            error
}

// Ask runs one request.
func Ask(ctx context.Context, t Target, r Request) Answer {
	return ask(ctx, t, r, time.Now())
}

func ask(ctx context.Context, t Target, r Request, due time.Time) Answer {
	var a Answer
	var last time.Time
	a.Prompt, a.Tokens, a.Err = t.Ask(ctx, r, func() {
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
		a.Err = fmt.Errorf("an answer of %d tokens had no piece", a.Tokens)
	}
	return a
}

// Together asks all requests at once.
func Together(ctx context.Context, t Target, rs []Request) []Answer {
	return OpenLoop(ctx, t, rs, make([]time.Duration, len(rs)))
}

// OpenLoop asks each request at its time, whatever became of those before it.
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

// Poisson is when so many requests arrive at a rate a second, each at a time
// that says nothing of the others'.
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

// words are one token each, in front of a blank, for every tokenizer that has
// seen English.
var words = strings.Fields(`the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its about than into them can only
other time new some could these two may first then do any like my now over such our man me even most made after also did many off before must
well back through years much where your way down should because long each just state those people too mr how little good world make very year
still see own work men day get here old between both life being under three never know same last another while us might great go come since
against right came take used himself few house use place during high without again home around small however found mind part school four`)

// Prompt of about so many tokens, another for each seed from its first word on.
func Prompt(tokens int, seed uint64) string {
	rng := rand.New(rand.NewPCG(seed, 2))
	var b strings.Builder
	for i := range tokens {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[rng.IntN(len(words))])
	}
	return b.String()
}

// calibration is a prompt long enough to say how many tokens words have.
const calibration = 64

// Words asks a server how many tokens it makes of plain words, and returns how
// many of them have about so many tokens. The request warms the server, too.
func Words(ctx context.Context, t Target) (func(tokens int) int, error) {
	a := Ask(ctx, t, Request{Prompt: Prompt(calibration, 0), MaxTokens: 2})
	if a.Err != nil {
		return nil, fmt.Errorf("the first request: %w", a.Err)
	}
	if a.Prompt < calibration {
		return nil, fmt.Errorf("%d words have %d tokens: the server does not say what it counts", calibration, a.Prompt)
	}
	return func(tokens int) int { return max(1, (tokens*calibration+a.Prompt/2)/a.Prompt) }, nil
}

// Percentile of durations, by the nearest rank; 0 of none.
func Percentile(of []time.Duration, p float64) time.Duration {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	rank := int(p/100*float64(len(sorted)) + 0.999999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Figures are those of a load.
type Figures struct {
	Requests int `json:"requests"`
	// TTFT and InterToken in milliseconds.
	TTFT       Spread `json:"ttftMilliseconds"`
	InterToken Spread `json:"interTokenMilliseconds"`
	// TokensPerSecond of all answers together, from the first request to the
	// last token.
	TokensPerSecond float64 `json:"tokensPerSecond"`
}

// Spread is percentiles.
type Spread struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Sum is the figures of answers; the error is that of the first that failed.
func Sum(answers []Answer) (Figures, error) {
	f := Figures{Requests: len(answers)}
	var first, gaps []time.Duration
	var end time.Duration
	tokens := 0
	for i, a := range answers {
		if a.Err != nil {
			return f, fmt.Errorf("request %d: %w", i, a.Err)
		}
		first, gaps, tokens = append(first, a.First), append(gaps, a.Gaps...), tokens+a.Tokens
		end = max(end, a.Due+a.Whole)
	}
	f.TTFT, f.InterToken = spread(first), spread(gaps)
	if end > 0 {
		f.TokensPerSecond = float64(tokens) / end.Seconds()
	}
	return f, nil
}

func spread(of []time.Duration) Spread {
	at := func(p float64) float64 { return float64(Percentile(of, p).Microseconds()) / 1000 }
	return Spread{at(50), at(90), at(99)}
}
