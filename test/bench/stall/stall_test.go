package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/test/bench/traffic"
)

// paced streams a piece every ten milliseconds, a hundred while a prompt is
// computed, which takes a second alone and two beside a stream.
type paced struct {
	streams, prompts atomic.Int64
	// ends is how many pieces a stream has at most; 0 means all.
	ends int
}

func (p *paced) Ask(ctx context.Context, r traffic.Request, each func()) (int, int, error) {
	if r.MaxTokens == 1 {
		p.prompts.Add(1)
		defer p.prompts.Add(-1)
		time.Sleep(time.Duration(1+min(p.streams.Load(), 1)) * time.Second)
		each()
		return len(strings.Fields(r.Prompt)), 1, nil
	}
	p.streams.Add(1)
	defer p.streams.Add(-1)
	for n := range r.MaxTokens {
		if n == p.ends && n > 0 {
			return 1, n, nil
		}
		gap := 10 * time.Millisecond
		if p.prompts.Load() > 0 {
			gap *= 10
		}
		select {
		case <-time.After(gap):
			each()
		case <-ctx.Done():
			return 1, n, ctx.Err()
		}
	}
	return 1, r.MaxTokens, nil
}

func same(tokens int) int { return tokens }

func TestGapsBesideAPromptAreThoseOfTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setting{prompt: 200, stream: 20, context: 4096, words: same}
		var f figures
		if err := s.round(t.Context(), &paced{}, 1, &f); err != nil {
			t.Fatal(err)
		}
		if f.alone.median[0] != 10 || f.alone.p99[0] != 10 || f.alone.prefill[0] != 1000 {
			t.Errorf("alone %+v", f.alone)
		}
		if f.beside.median[0] != 100 || f.beside.p99[0] != 100 || f.beside.prefill[0] != 2000 {
			t.Errorf("beside %+v", f.beside)
		}
	})
}

func TestAStreamThatEndsEarlyIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f figures
		for _, ends := range []int{3, 12} { // before the prompt is sent, and before it is computed
			err := setting{prompt: 200, stream: 20, context: 4096, words: same}.round(t.Context(), &paced{ends: ends}, 1, &f)
			if err == nil || !strings.Contains(err.Error(), "the stream ended after") || len(f.beside.p99) > 0 {
				t.Errorf("of %d pieces: %v, %+v", ends, err, f)
			}
		}
	})
}

func TestOursIsHeldToTheBoundsAndThePeerIsNot(t *testing.T) {
	var f figures
	f.alone.median, f.alone.p99, f.alone.prefill = []float64{1}, []float64{1}, []float64{1}
	f.beside.median, f.beside.p99, f.beside.prefill = []float64{1}, []float64{1.9}, []float64{3}
	judge := func(ours bool) error {
		r := newReport("")
		f.fill(r, setting{name: "x", ours: ours})
		return r.Judge()
	}
	if err := judge(true); err != nil {
		t.Error(err)
	}
	f.beside.p99[0], f.beside.prefill[0] = 2, 3.1
	if err := judge(true); err == nil || !strings.Contains(err.Error(), "inter-token p99") || !strings.Contains(err.Error(), "x, prompt, beside") {
		t.Errorf("both bounds are missed: %v", err)
	}
	if err := judge(false); err != nil {
		t.Errorf("the peer's figures are judged: %v", err)
	}
}
