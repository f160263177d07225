//go:build !race

package traffic

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slow answers with pieces a second apart, the first after two seconds.
type slow struct{ fail bool }

func (s slow) Ask(_ context.Context, r Request, each func()) (Usage, error) {
	if s.fail {
		return Usage{}, errors.New("refused")
	}
	time.Sleep(time.Second)
	for range r.MaxTokens {
		time.Sleep(time.Second)
		each()
	}
	return Usage{Prompt: 5, Generated: r.MaxTokens}, nil
}

func TestArrivalsDoNotWaitForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := []Request{{MaxTokens: 4}, {MaxTokens: 4}, {MaxTokens: 2}}
		answers := OpenLoop(t.Context(), slow{}, rs, []time.Duration{0, time.Second, 3 * time.Second})
		f, err := Sum(answers)
		if err != nil {
			t.Fatal(err)
		}
		second := time.Second
		if !slices.Equal(f.First, []time.Duration{2 * second, 2 * second, 2 * second}) || len(f.Gaps) != 7 || slices.Max(f.Gaps) != second || f.TokensPerSecond != 10.0/6 {
			t.Errorf("%+v", f)
		}
	})
}

func TestARequestThatFailsIsNotLeftOut(t *testing.T) {
	if _, err := Sum(Together(t.Context(), slow{fail: true}, make([]Request, 3))); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		if a := Ask(t.Context(), slow{}, Request{}); a.Err == nil {
			t.Error("an answer without a piece was accepted")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Sum(OpenLoop(ctx, slow{}, make([]Request, 1), []time.Duration{time.Hour})); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before it was sent: %v", err)
	}
}

func TestASeedDecidesArrivalsAndPrompts(t *testing.T) {
	at, again, other := Poisson(5, 1000, 1), Poisson(5, 1000, 1), Poisson(5, 1000, 2)
	if mean := at[999].Seconds() / 1000; mean < 0.18 || mean > 0.22 || !slices.IsSorted(at) {
		t.Errorf("a mean of %.3f s at 5 per second", mean)
	}
	if !slices.Equal(at, again) || slices.Equal(at, other) {
		t.Error("arrivals do not follow the seed")
	}
	if first, same := Prompt(9, 1), Prompt(9, 1); first == Prompt(9, 2) || first != same || len(strings.Fields(first)) != 9 {
		t.Error("prompts do not follow the seed")
	}
}

func TestPercentilesAreByNearestRank(t *testing.T) {
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(200-i))
	}
	for p, want := range map[float64]time.Duration{50: 100, 90: 180, 99: 198, 100: 200, 0.1: 1} {
		if got := Percentile(all, p); got != want {
			t.Errorf("percentile %v is %d, want %d", p, got, want)
		}
	}
	if Percentile(nil, 50) != 0 {
		t.Error("no durations have a percentile")
	}
}

// counting makes each tokens of a word.
type counting struct{ each int }

func (c counting) Ask(_ context.Context, r Request, each func()) (Usage, error) {
	each()
	return Usage{Prompt: c.each * len(strings.Fields(r.Prompt))}, nil
}

func TestTheServerCountsTheTokensOfWords(t *testing.T) {
	words, err := Words(t.Context(), counting{each: 3})
	if err != nil || words(8192) != 2731 || words(1) != 1 {
		t.Errorf("%v: 8192 tokens are %d words, 1 is %d, want 2731 and 1", err, words(8192), words(1))
	}
	if _, err := Words(t.Context(), counting{}); err == nil {
		t.Error("a server that counts no tokens was accepted")
	}
}

func TestAStreamOfEventsIsReadUpToDone(t *testing.T) {
	const whole = ": keepalive 1/2\n\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"\"}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"length\"}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n"
	for silent, want := range map[bool]int{false: 2, true: 4} {
		n := 0
		u, err := HTTP{Silent: silent}.read(strings.NewReader(whole+"data: [DONE]\n\n"), func() { n++ })
		if err != nil || n != want || u != (Usage{Prompt: 7, Cached: 2, Generated: 3}) {
			t.Errorf("%d pieces, want %d; %+v, %v", n, want, u, err)
		}
	}
	for name, text := range map[string]string{"cut off": whole, "broken event": "data: {\n\n"} {
		if _, err := (HTTP{}).read(strings.NewReader(text), func() {}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
