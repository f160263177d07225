//go:build !race

package batch

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// TestAPromptKeepsAThirdOfItsSpeedAfterTinyOnes and on an engine that was just started, also
// while decoding never pauses, and decode sequences hardly notice it then.
func TestAPromptKeepsAThirdOfItsSpeedAfterTinyOnes(t *testing.T) {
	for name, m := range machines {
		for _, tiny := range []int{0, 1, 2, 12} {
			for _, started := range []bool{false, true} {
				for i, answers := range []int{1, 4} {
					var p Pace
					prompt, learn := 4*m.limit, 0
					for range 6 {
						if started {
							learn = 8 * probe
							break
						}
						prefill(&p, m.takes, 0, prompt, m.limit)
					}
					for range 17 {
						prefill(&p, m.takes, 0, tiny, m.limit)
					}
					for range 9 {
						p.Took(Load{Decodes: answers}, time.Duration(m.takes(answers, 0)*1e6))
					}
					for p.mixed < learn {
						prefill(&p, m.takes, answers, prompt, m.limit)
					}
					steps := prefill(&p, m.takes, answers, prompt, m.limit)
					kind := fmt.Sprintf("%s, %d decodes, after prompts of %d tokens, just started %t", name, answers, tiny, started)
					if slower := sum(steps) / sum(prefill(&Pace{}, m.takes, 0, prompt, m.limit)); slower > 3 {
						t.Errorf("%s: a prompt takes %.1f times as long as alone, want 3 at most", kind, slower)
					}
					sorted := slices.Sorted(slices.Values(steps))
					if worst := sorted[min(len(sorted)-1, len(sorted)*99/100)] / m.takes(answers, 0); worst >= m.slower[i] {
						t.Errorf("%s: the slowest step in a hundred takes %.2f times as long, want under %.2f", kind, worst, m.slower[i])
					}
				}
			}
		}
	}
}

// TestFewStepsAreLargeToMeasureThePrefillSpeed: one in probe at most, and ever fewer if memory
// leaves none of them the tokens.
func TestFewStepsAreLargeToMeasureThePrefillSpeed(t *testing.T) {
	m := machines["a device that works in large tiles"]
	for room, most := range map[int]int{m.limit: 8, 1024: 14} {
		var p Pace
		p.Took(Load{Decodes: 1}, 12*time.Millisecond)
		large, steps := 0, 1<<15
		for i := range steps {
			w := Work{Decodes: 1, Prompts: []Span{{To: 1 << 20}}, Head: ID(i / 1024)}
			n := min(room, p.Tokens(w, m.limit))
			if took := m.takes(1, n); took > 1.1*m.slower[0]*m.takes(1, 0) {
				large++
			}
			p.Took(Load{Decodes: 1, PrefillTokens: n}, time.Duration(m.takes(1, n)*1e6))
		}
		if large == 0 || large > most {
			t.Errorf("%d of %d steps are large where one has room for %d tokens, want 1 to %d", large, steps, room, most)
		}
	}
}

// TestTinyPromptsDoNotShowWhatContextCosts: the few tokens after a long cached prefix share the
// time in which that is read.
func TestTinyPromptsDoNotShowWhatContextCosts(t *testing.T) {
	var p Pace
	alone := func(at, n int) {
		ms := 10 + 0.1*float64(n) + 4e-5*float64(at) + 1e-6*float64(n*at)
		p.Took(Load{PrefillTokens: n, PrefillContext: n*at + n*n/2}, time.Duration(ms*1e6))
	}
	for range 20 {
		for at := 0; at < 8192; at += 1024 {
			alone(at, 1024)
		}
	}
	before := p.token(50_000)
	for range 40 {
		alone(100_000, 2)
		alone(0, 2)
	}
	if after := p.token(50_000); math.Abs(after-before) > 0.01*before {
		t.Errorf("a token at 50,000 tokens of context takes %.3f ms, before prompts of 2 tokens %.3f", 1e3*after, 1e3*before)
	}
}

// TestEverShorterPromptsDoNotHideTheSpeedOfLongOnes, although each is not much shorter than those
// before it.
func TestEverShorterPromptsDoNotHideTheSpeedOfLongOnes(t *testing.T) {
	m := machines["a device that works in large tiles"]
	var p Pace
	prefill(&p, m.takes, 0, 8*m.limit, m.limit)
	before := p.token(0)
	for _, tokens := range []int{400, 60, 9, 2} {
		for range 17 {
			prefill(&p, m.takes, 0, tokens, m.limit)
		}
	}
	if after := p.token(0); after > 1.01*before {
		t.Errorf("a token takes %.2f ms, before short prompts %.2f", 1e3*after, 1e3*before)
	}
}
