package batch

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// machine says what a step takes, in milliseconds.
type machine func(answers, tokens int) float64

// The machines are fitted to what was measured.
var machines = map[string]struct {
	takes machine
	limit int
	// slower is how much longer than alone the slowest step in a hundred of one
	// answer may take, and of four.
	slower [2]float64
}{
	// The reference on two cores: rows cost as much in pairs as alone, less in
	// many. Beside four answers less than twice their time would be too little for
	// the prompt.
	"ref": {func(answers, tokens int) float64 {
		switch n := answers + tokens; {
		case n <= 2:
			return 46
		case n <= 32:
			return 46 + 21*float64((n-1)/2*2-1)
		default:
			return 46 + 21*31 + 13.6*float64(n-32)
		}
	}, 512, [2]float64{2, most}},
	// MLX on a processor: rows cost nearly as much together as one by one.
	"mlx on a processor": {func(answers, tokens int) float64 { return 40 + 100*float64(answers+tokens) }, 256, [2]float64{2, 2}},
	// A device that is as quick with 32 rows as with one.
	"a wide device": {func(answers, tokens int) float64 { return 6 + 0.1*float64(max(0, answers+tokens-32)) }, 2048, [2]float64{2, 2}},
	// A GPU whose kernels for more than a few rows cost as much again: the
	// prompt's share is kept, answers pay for it.
	"a device with a fixed cost": {func(answers, tokens int) float64 {
		if n := answers + tokens; n > 7 {
			return 15.5 + 0.08*float64(n-8)
		}
		return 6 + float64(answers+tokens-1)
	}, 2048, [2]float64{most, most}},
}

// prefill computes a prompt beside answers and returns what each step took.
func prefill(p *Pace, takes func(answers, tokens int) float64, answers, prompt, limit int) []float64 {
	var steps []float64
	for prompt > 0 {
		n := min(prompt, p.Tokens(answers, limit))
		took := takes(answers, n)
		p.Took(answers, n, time.Duration(took*1e6))
		steps = append(steps, took)
		prompt -= n
		if len(steps) > 1e6 {
			panic("the prompt makes no progress")
		}
	}
	return steps
}

func sum(values []float64) (s float64) {
	for _, v := range values {
		s += v
	}
	return s
}

// TestAnswersHardlyNoticeAPromptAndThePromptKeepsAThirdOfItsSpeed on machines of
// many kinds, with noise and without.
func TestAnswersHardlyNoticeAPromptAndThePromptKeepsAThirdOfItsSpeed(t *testing.T) {
	for name, m := range machines {
		for _, noise := range []float64{0, 0.03} {
			for i, answers := range []int{1, 4} {
				rng := rand.New(rand.NewPCG(5, 6))
				takes := func(answers, tokens int) float64 {
					return m.takes(answers, tokens) * (1 + noise*rng.NormFloat64())
				}
				var p Pace
				prompt := 4 * m.limit
				alone := sum(prefill(&p, takes, 0, prompt, m.limit))
				for range 9 { // answers alone before
					p.Took(answers, 0, time.Duration(takes(answers, 0)*1e6))
				}
				steps := prefill(&p, takes, answers, prompt, m.limit)
				sorted := slices.Sorted(slices.Values(steps))
				worst := sorted[min(len(sorted)-1, len(sorted)*99/100)] / m.takes(answers, 0)
				if limit := m.slower[i] * (1 + 2*noise); worst >= limit {
					t.Errorf("%s, noise %v: %d answers take %.2f times as long in the worst of %d steps, want under %.2f", name, noise, answers, worst, len(steps), limit)
				}
				if slower := sum(steps) / alone; slower > 3 {
					t.Errorf("%s, noise %v: the prompt takes %.2f times as long beside %d answers, want 3 at most", name, noise, slower, answers)
				}
			}
		}
	}
}

func TestSizesAreCountedUpAndDown(t *testing.T) {
	for n := 1; n < 5000; n++ {
		k := sizeOf(n)
		if tokensOf(k) > n || tokensOf(k+1) <= n {
			t.Fatalf("%d tokens are of size %d, which holds from %d to %d", n, k, tokensOf(k), tokensOf(k+1))
		}
	}
}

func TestAPaceBeginsCarefullyAndMeasuresAnswersAlone(t *testing.T) {
	var p Pace
	if n := p.Tokens(0, 512); n != firstTokens {
		t.Errorf("the first piece has %d tokens, want %d", n, firstTokens)
	}
	p.Took(0, 128, time.Second)
	if n := p.Tokens(0, 512); n != 128 {
		t.Errorf("at 128 tokens a second a piece has %d", n)
	}
	p.Took(0, 1, time.Hour)
	p.Took(0, 1, time.Hour)
	if n := p.Tokens(0, 512); n != 1 {
		t.Errorf("at a token an hour a piece has %d", n)
	}
	if n := p.Tokens(2, 512); n != 0 {
		t.Errorf("before it is known what two answers take, a step has %d tokens of prompts", n)
	}
	p.Took(2, 0, 50*time.Millisecond)
	for i := range probe {
		if n := p.Tokens(2, 512); n < 1 {
			t.Fatalf("step %d has no tokens of prompts", i)
		}
		p.Took(2, 1, 60*time.Millisecond)
	}
	if n := p.Tokens(2, 512); n != 0 {
		t.Errorf("after %d steps with prompts comes one with %d tokens, want one without", probe, n)
	}
	p.Took(2, 0, 50*time.Millisecond)
	if n := p.Tokens(2, 512); n < 1 {
		t.Error("after a step without prompts none are computed")
	}
}

// TestAPaceFollowsAMachineThatChanges, and a single slow step changes nothing.
func TestAPaceFollowsAMachineThatChanges(t *testing.T) {
	factor := 1.0
	takes := func(answers, tokens int) float64 { return 10 + factor*float64(tokens) }
	var p Pace
	p.Took(1, 0, 10*time.Millisecond)
	prefill(&p, takes, 1, 400, 512)
	if n := p.Tokens(1, 512); n != 8 && n != 6 {
		t.Errorf("at a millisecond a token beside 10 a step has %d", n)
	}
	before := p.Tokens(1, 512)
	if p.Took(1, before, time.Minute); p.Tokens(1, 512) != before && p.since < probe {
		t.Errorf("after a single slow step the next has %d tokens, before %d", p.Tokens(1, 512), before)
	}
	factor = 4
	prefill(&p, takes, 1, 400, 512)
	if n := p.Tokens(1, 512); n != 2 && n != 0 {
		t.Errorf("at four milliseconds a token a step has %d", n)
	}
	factor = 0.25
	prefill(&p, takes, 1, 12000, 512)
	if n := p.Tokens(1, 512); n < 24 && n != 0 {
		t.Errorf("at four tokens a millisecond a step has %d", n)
	}
	if math.IsNaN(p.estimate(3)) {
		t.Error("an estimate is not a number")
	}
}

// TestTheFirstStepOfASizeMayCompileKernels for seconds, and the first prompt for
// minutes: what they took does not keep later ones small.
func TestTheFirstStepOfASizeMayCompileKernels(t *testing.T) {
	compiled := map[int]bool{0: true} // answers were there before
	takes := func(answers, tokens int) float64 {
		took := 6 + 0.1*float64(answers+tokens)
		if !compiled[tokens] {
			compiled[tokens], took = true, took+20_000
		}
		return took
	}
	var p Pace
	prefill(&p, takes, 0, 8192, 2048)
	if steps, most := prefill(&p, takes, 1, 8192, 2048), 8192/24; len(steps) > most {
		t.Errorf("a prompt takes %d steps while kernels are compiled, want at most %d", len(steps), most)
	}
}
