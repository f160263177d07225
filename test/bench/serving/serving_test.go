//go:build !race

package serving

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/scenario/boundtest"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

// paced streams a piece every ten milliseconds, or every hundred while a prompt
// is computed. A prompt takes a second alone and two next to a stream.
type paced struct {
	streams, prompts atomic.Int64
	// most pieces of a stream; 0 means all.
	most int
}

func (p *paced) Ask(ctx context.Context, r traffic.Request, each func()) (traffic.Usage, error) {
	if r.MaxTokens == 1 {
		p.prompts.Add(1)
		defer p.prompts.Add(-1)
		time.Sleep(time.Duration(1+min(p.streams.Load(), 1)) * time.Second)
		each()
		return traffic.Usage{Prompt: len(strings.Fields(r.Prompt))}, nil
	}
	p.streams.Add(1)
	defer p.streams.Add(-1)
	for n := range r.MaxTokens {
		if n == p.most && n > 0 {
			return traffic.Usage{Generated: n}, nil
		}
		gap := 10 * time.Millisecond
		if p.prompts.Load() > 0 {
			gap *= 10
		}
		select {
		case <-time.After(gap):
			each()
		case <-ctx.Done():
			return traffic.Usage{}, ctx.Err()
		}
	}
	return traffic.Usage{Generated: r.MaxTokens}, nil
}

func same(tokens int) int { return tokens }

var short = stall{prompt: 200, stream: 20, context: 4096}

func TestGapsNextToAPromptAreThoseOfTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got, err := short.round(t.Context(), caller{Target: &paced{}, words: same, seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range (scenario.Values{"alone median": 10, "alone p99": 10, "alone prompt": 1000, "both median": 100, "both p99": 100, "both prompt": 2000}) {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
	})
}

func TestAStreamThatEndsEarlyIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, most := range []int{3, 12} { // before the prompt is sent, and before it is computed
			if _, err := short.round(t.Context(), caller{Target: &paced{most: most}, words: same, seed: 1}); err == nil || !strings.Contains(err.Error(), "the stream ended after") {
				t.Errorf("a stream of %d pieces: %v", most, err)
			}
		}
	})
}

func TestBoundsOfAStall(t *testing.T) {
	ours := stall{server: server{name: "x", ours: true}}
	slow := map[string]boundtest.Values{"x, inter-token p99, with a prompt": {"x/both p99": {2}}, "x, prompt, with a stream": {"x/both prompt": {3.1}}}
	boundtest.Check(t, ours.figures(), boundtest.Values{"x/both p99": {1.9}, "x/both prompt": {3}}, slow)
	theirs := stall{server: server{name: "x"}}
	for _, change := range slow {
		if got := boundtest.Verdict(theirs.figures(), change); got != "" {
			t.Errorf("the peer is held to bounds: %s", got)
		}
	}
}

func TestBoundsOfABatch(t *testing.T) {
	for _, l := range []load{processorLoad, gpuLoad} {
		good, changes := boundtest.Values{}, map[string]boundtest.Values{}
		for _, s := range l.streams {
			good[key("mlx", s.count)] = []float64{s.least}
			changes[fmt.Sprintf("%d streams, mlx / ", s.count)] = boundtest.Values{key("mlx", s.count): {0.99 * s.least}}
		}
		if l.sooner > 0 {
			good[peerName+" at 3/first p90"] = []float64{2}
			changes["first token at the last rate"] = boundtest.Values{peerName + " at 3/first p90": {1.99}}
		}
		boundtest.Check(t, l.figures(), good, changes)
	}
}

// quick answers at once and records who was asked for what.
type quick struct {
	name string
	log  *[]string
}

func (q quick) Ask(_ context.Context, r traffic.Request, each func()) (traffic.Usage, error) {
	*q.log = append(*q.log, q.name+" "+r.Prompt)
	each()
	return traffic.Usage{Generated: r.MaxTokens}, nil
}

func TestBothServersGetTheSamePromptsInTurns(t *testing.T) {
	var log []string
	b := contest{load: load{prompt: 3, tokens: 1, streams: []streams{{count: 1, least: 1}}}, words: same, targets: []named{{name: "us", Target: quick{name: "us", log: &log}}, {name: "them", Target: quick{name: "them", log: &log}}}}
	if _, err := (scenario.Rounds{Count: 3}).Run(t.Context(), b.groups()...); err != nil {
		t.Fatal(err)
	}
	var order, prompts []string
	for _, entry := range log {
		name, prompt, _ := strings.Cut(entry, " ")
		order, prompts = append(order, name), append(prompts, prompt)
	}
	if want := []string{"us", "them", "them", "us", "us", "them"}; !slices.Equal(order, want) {
		t.Errorf("asked %v, want %v", order, want)
	}
	if prompts[0] != prompts[1] || prompts[2] != prompts[3] || prompts[0] == prompts[2] {
		t.Errorf("prompts %q", prompts)
	}
}

func TestBoundsOfKnownPrompts(t *testing.T) {
	boundtest.Check(t, cacheFigures("mlx"), boundtest.Values{"mlx/warm": {0.02}, "mlx/cold": {0.1}}, map[string]boundtest.Values{
		"mlx, known / computed":          {"mlx/warm": {0.021}},
		"mlx, known, on disk / computed": {"mlx/cold": {0.101}},
		"on disk, after a load: not mea": {"mlx/cold": nil},
	})
	boundtest.Check(t, cacheGPUFigures(copyRate/known/10), boundtest.Values{"mlx/beyond": {99.9}}, map[string]boundtest.Values{
		"beyond two steps": {"mlx/beyond": {100.1}}, "in memory: not": {"mlx/warm": nil},
	})
	boundtest.Check(t, schedulerFigures, nil, map[string]boundtest.Values{
		"a step of 64 rows, p99": {"steps/p99": {50}}, "growth of the heap": {"all/growth": {65}}, "preemptions": {"all/preempted": {0}},
	})
}

func TestPromptsShareBlocksOnlyWithinARound(t *testing.T) {
	a, again, other := knownPrompt(1, 0), knownPrompt(1, 1), knownPrompt(2, 0)
	if !slices.Equal(a[:known], again[:known]) || slices.Equal(a[known:], again[known:]) {
		t.Error("two prompts of a round do not differ in their ends alone")
	}
	if slices.Equal(a[:256], other[:256]) || known%256 != 0 || len(a) != known+fresh {
		t.Error("prompts of two rounds begin with the same block")
	}
}
