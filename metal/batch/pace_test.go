//go:build !race

package batch

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// machine returns the duration of a step in milliseconds.
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
	// larger numbers. With four decode sequences, a bound under twice their
	// time would starve the prefill.
	"ref": {takes: func(answers, tokens int) float64 {
		switch n := answers + tokens; {
		case n <= 2:
			return 46
		case n <= 32:
			return 46 + 21*float64((n-1)/2*2-1)
		default:
			return 46 + 21*31 + 13.6*float64(n-32)
		}
	}, limit: 512, slower: [2]float64{2, maxSlowdown}},
	// The same with SmolLM2: three rows cost little more than one, further ones
	// half a step each, so that nothing is gained by more.
	"ref on a small model": {takes: func(answers, tokens int) float64 {
		switch n := float64(answers + tokens); {
		case n <= 3:
			return 13.8 + 1.65*(n-1)
		case n <= 24:
			return 17.1 + 7*(n-3)
		default:
			return 164 + 2.9*(n-24)
		}
	}, limit: 128, slower: [2]float64{1.9, 6}},
	// MLX on a processor: rows cost nearly as much together as one by one.
	"mlx on a processor": {takes: func(answers, tokens int) float64 { return 40 + 100*float64(answers+tokens) }, limit: 256, slower: [2]float64{2, 2}},
	// A device that is as quick with 32 rows as with one.
	"a wide device": {takes: func(answers, tokens int) float64 { return 6 + 0.1*float64(max(0, answers+tokens-32)) }, limit: 2048, slower: [2]float64{2, 2}},
	// A GPU whose kernels for more than a few rows cost as much again: the
	// prompt's share is kept, answers pay for it.
	"a device with a fixed cost": {takes: func(answers, tokens int) float64 {
		if n := answers + tokens; n > 7 {
			return 15.5 + 0.08*float64(n-8)
		}
		return 6 + float64(answers+tokens-1)
	}, limit: 2048, slower: [2]float64{6, 6}},
	// An H100 with 36 layers: a step with prompts keeps host and device busy for as
	// long as two without, and beyond 64 rows for three and a half.
	"a device that works in large tiles": {takes: func(answers, tokens int) float64 {
		switch n := float64(answers + tokens); {
		case tokens == 0:
			return 12
		case n <= 64:
			return 16 + 0.2*n
		default:
			return 33 + 0.12*n
		}
	}, limit: 2048, slower: [2]float64{6, 6}},
}

// prefill computes a prompt while requests decode and returns the duration of
// each step.
func prefill(p *Pace, takes func(answers, tokens int) float64, answers, prompt, limit int) []float64 {
	var steps []float64
	w := Work{Decodes: answers, Head: p.head + 1}
	for prompt > 0 {
		w.Prompts = []Span{{From: 0, To: prompt}}
		n := min(prompt, p.Tokens(w, limit))
		took := takes(answers, n)
		p.Took(Load{Decodes: answers, PrefillTokens: n}, time.Duration(took*1e6))
		steps = append(steps, took)
		prompt -= n
		if len(steps) > 1e6 {
			panic("the prompt makes no progress")
		}
	}
	return steps
}

// ask returns the prefill tokens of a step with this many decode sequences and
// a long prompt.
func ask(p *Pace, answers, limit int) int {
	return p.Tokens(Work{Decodes: answers, Prompts: []Span{{From: 0, To: 4096}}, Head: p.head}, limit)
}

// longer is by how many seconds a chunk of this many tokens prolongs a decode
// step.
func longer(p *Pace, tokens int) float64 {
	var sizes []float64
	for k := range sizeOf(tokens) + 1 {
		sizes = append(sizes, float64(tokensOf(k)))
	}
	return p.estimates(sizes, 1, 0, nil)[sizeOf(tokens)]
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
					p.Took(Load{Decodes: answers, PrefillTokens: 0}, time.Duration(takes(answers, 0)*1e6))
				}
				steps := prefill(&p, takes, answers, prompt, m.limit)
				sorted := slices.Sorted(slices.Values(steps))
				worst := sorted[min(len(sorted)-1, len(sorted)*99/100)] / m.takes(answers, 0)
				if limit := m.slower[i] * (1 + 2*noise); worst >= limit {
					t.Errorf("%s, noise %v: %d answers take %.2f times as long in the worst of %d steps, want under %.2f", name, noise, answers, worst, len(steps), limit)
				}
				if slower := sum(steps) / alone; slower > 3 {
					t.Errorf("%s, noise %v: the prompt takes %.2f times as long next to %d decodes, want 3 at most", name, noise, slower, answers)
				}
			}
		}
	}
}

// TestAPieceFillsItsRowsWithTheAnswers: a device that computes rows in tiles of
// 32 takes as long for a chunk of 32 tokens and one decode row as for 63 rows.
func TestAPieceFillsItsRowsWithTheAnswers(t *testing.T) {
	takes := func(answers, tokens int) float64 { return 6 + 6*float64((answers+tokens-1)/32) }
	for answers, want := range map[int]int{1: 31, 2: 30, 3: 29} {
		p := Pace{}
		p.Took(Load{Decodes: answers, PrefillTokens: 0}, 6*time.Millisecond)
		prefill(&p, takes, answers, 2000, 512)
		if n := ask(&p, answers, 512); n != want && n != 0 {
			t.Errorf("next to %d decodes a chunk has %d tokens, want %d", answers, n, want)
		}
	}
	for answers := range 40 {
		for k := range 20 {
			if n := chunkTokens(answers, k); chunkSize(answers, n) != k {
				t.Errorf("%d tokens next to %d decodes are of size %d, want %d", n, answers, chunkSize(answers, n), k)
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
	if n := ask(&p, 0, 512); n != firstTokens {
		t.Errorf("the first piece has %d tokens, want %d", n, firstTokens)
	}
	for range 2 {
		p.Took(Load{Decodes: 0, PrefillTokens: 64}, time.Second)
	}
	if n := ask(&p, 0, 512); n != 64 {
		t.Errorf("at 64 tokens a second a piece has %d", n)
	}
	for range 3 {
		p.Took(Load{Decodes: 0, PrefillTokens: 1}, time.Hour)
	}
	if n := ask(&p, 0, 512); n != 1 {
		t.Errorf("at a token an hour a piece has %d", n)
	}
	if n := ask(&p, 2, 512); n != 0 {
		t.Errorf("before it is known what two answers take, a step has %d tokens of prompts", n)
	}
	p.Took(Load{Decodes: 2, PrefillTokens: 0}, 50*time.Millisecond)
	for i := range probe {
		if n := ask(&p, 2, 512); n < 1 {
			t.Fatalf("step %d has no tokens of prompts", i)
		}
		p.Took(Load{Decodes: 2, PrefillTokens: 1}, 60*time.Millisecond)
	}
	if n := ask(&p, 2, 512); n != 0 {
		t.Errorf("after %d steps with prompts comes one with %d tokens, want one without", probe, n)
	}
	p.Took(Load{Decodes: 2, PrefillTokens: 0}, 50*time.Millisecond)
	if n := ask(&p, 2, 512); n < 1 {
		t.Error("after a step without prompts none are computed")
	}
}

// TestAPaceFollowsAMachineThatChanges, and a single slow step changes nothing.
func TestAPaceFollowsAMachineThatChanges(t *testing.T) {
	factor := 1.0
	takes := func(answers, tokens int) float64 { return 10 + factor*float64(tokens) }
	var p Pace
	p.Took(Load{Decodes: 1, PrefillTokens: 0}, 10*time.Millisecond)
	prefill(&p, takes, 1, 400, 512)
	if n := ask(&p, 1, 512); n != 6 && n != 4 { // 8 would leave no room for what is saved
		t.Errorf("at a millisecond a token next to 10 decodes a step has %d", n)
	}
	before := ask(&p, 1, 512)
	if p.Took(Load{Decodes: 1, PrefillTokens: before}, time.Minute); ask(&p, 1, 512) != before && p.since < probe {
		t.Errorf("after a single slow step the next has %d tokens, before %d", ask(&p, 1, 512), before)
	}
	factor = 4
	prefill(&p, takes, 1, 400, 512)
	if n := ask(&p, 1, 512); n != 1 && n != 0 {
		t.Errorf("at four milliseconds a token a step has %d", n)
	}
	factor = 0.25
	prefill(&p, takes, 1, 12000, 512)
	if n := ask(&p, 1, 512); n < 23 && n != 0 {
		t.Errorf("at four tokens a millisecond a step has %d", n)
	}
	if math.IsNaN(longer(&p, 4)) {
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
			compiled[tokens], took = true, took+20_000 // regardless of its size
		}
		return took
	}
	var p Pace
	for _, prompt := range []int{200, 24, 8192, 24} {
		prefill(&p, takes, 0, prompt, 2048)
	}
	if steps, most := prefill(&p, takes, 1, 8192, 2048), 8192/24; len(steps) > most {
		t.Errorf("a prompt takes %d steps while kernels are compiled, want at most %d", len(steps), most)
	}
}

func TestTheFirstPiecesOfPromptsDoNotSayHowQuickTheyAre(t *testing.T) {
	var p Pace
	for _, tokens := range []int{128, 64, 24} {
		p.Took(Load{Decodes: 0, PrefillTokens: tokens}, 20*time.Second)
	}
	p.Took(Load{Decodes: 0, PrefillTokens: 128}, 10*time.Millisecond)
	if n := ask(&p, 0, 2048); n != 2048 {
		t.Errorf("a piece has %d tokens, want 2048", n)
	}
}

// TestALargerPieceHasToBringMore: four tokens take as much longer than three as
// they are more, so answers do not wait for them.
func TestALargerPieceHasToBringMore(t *testing.T) {
	p := Pace{}
	p.Took(Load{Decodes: 1, PrefillTokens: 0}, 10*time.Millisecond)
	for tokens, ms := range map[int]float64{1: 11, 2: 11.8, 3: 12.6, 4: 15.8} {
		for range 3 {
			p.Took(Load{Decodes: 1, PrefillTokens: tokens}, time.Duration(ms*1e6))
		}
	}
	if n := ask(&p, 1, 512); n != 3 {
		t.Errorf("a piece has %d tokens, want 3", n)
	}
}

// TestAnswersThatWaitAnywayWaitRarely: where no piece is small enough for answers
// not to notice, and a few tokens cost nearly as much as many, pieces are large,
// whether small ones would be enough for the prompts or not.
func TestAnswersThatWaitAnywayWaitRarely(t *testing.T) {
	m := machines["a device that works in large tiles"]
	for name, alone := range map[string][]int{
		// Small chunks do not show the speed of the machine.
		"long prompts before": {2048, 2048, 2048, 100, 150, 128, 90, 128, 130, 170, 70},
		"short ones alone":    {500, 500, 500, 500},
	} {
		for _, answers := range []int{4, 16} {
			p := Pace{}
			for _, prompt := range alone {
				prefill(&p, m.takes, 0, prompt, m.limit)
			}
			for range 9 {
				p.Took(Load{Decodes: answers, PrefillTokens: 0}, time.Duration(m.takes(answers, 0)*1e6))
			}
			prefill(&p, m.takes, answers, 2048, m.limit) // sizes are tried
			steps := prefill(&p, m.takes, answers, 4096, m.limit)
			if most := 4096 / 48; len(steps) > most { // 60 tokens and 4 answers are 64 rows
				t.Errorf("%s: next to %d decodes a prompt of 4096 tokens takes %d steps, want at most %d", name, answers, len(steps), most)
			}
			waited := sum(steps) - float64(len(steps))*m.takes(answers, 0)
			if most := 4096 * 0.37; waited > most {
				t.Errorf("%s: %d answers wait for %.0f ms in all, want at most %.0f", name, answers, waited, most)
			}
		}
	}
}

// TestAFewSlowStepsSayLittle of a size, where a larger one took less; more of them
// do.
func TestAFewSlowStepsSayLittle(t *testing.T) {
	p := Pace{}
	p.Took(Load{Decodes: 1, PrefillTokens: 0}, 10*time.Millisecond)
	took := func(times, tokens, ms int) {
		for range times {
			p.Took(Load{Decodes: 1, PrefillTokens: tokens}, time.Duration(ms)*time.Millisecond)
		}
	}
	takes := func(tokens int) float64 {
		return math.Round(1e3 * (p.step(1, 0) + longer(&p, tokens)))
	}
	took(2, 4, 40)
	if got := takes(4); got != 40 {
		t.Errorf("a step of 4 tokens takes %v ms, want 40", got)
	}
	took(3, 6, 22)
	if got := takes(4); got != 18 { // two thirds of what 6 take
		t.Errorf("next to 6 tokens that take 22 ms, 4 take %v ms, want 18", got)
	}
	took(3, 4, 40)
	if got := takes(4); got != 40 {
		t.Errorf("after five steps of 40 ms 4 tokens take %v ms", got)
	}
	// What was true of a prompt's end is not true of the next one's beginning.
	took(later+2, 6, 16)
	took(2, 4, 14)
	if got := takes(4); got != 14 {
		t.Errorf("4 tokens take %v ms, want the 14 that they took last", got)
	}
}

// TestShortPromptsDoNotSayHowQuickLongOnesAre: they look back at little.
func TestShortPromptsDoNotSayHowQuickLongOnesAre(t *testing.T) {
	p := Pace{}
	for range 16 {
		p.Took(Load{Decodes: 0, PrefillTokens: 128}, 448*time.Millisecond)
	}
	for range 3 {
		p.Took(Load{Decodes: 0, PrefillTokens: 24}, 48*time.Millisecond)
	}
	if got := 1e3 * p.quickest; math.Abs(got-3.5) > 0.01 {
		t.Errorf("a token takes %.2f ms at best, want 3.5", got)
	}
	for range 13 {
		p.Took(Load{Decodes: 0, PrefillTokens: 24}, 48*time.Millisecond)
	}
	if got := 1e3 * p.quickest; math.Abs(got-2) > 0.01 {
		t.Errorf("where all prompts are short a token takes %.2f ms at best, want 2", got)
	}
}

// TestALongPromptThatLooksBackIsPacedToItsEnd runs a small machine many times:
// the cost of a token grows with its context, the first steps with prefill take
// longer, short prompts are fast, and sometimes other programs load the
// machine. The bounds are those of the scenario stall of bench serving, with
// the stream alone for as long.
func TestALongPromptThatLooksBackIsPacedToItsEnd(t *testing.T) {
	for noise, most := range map[float64]float64{0: 1.75, 0.03: 1.8, 0.1: 1.85} {
		var worst, slower []float64
		for seed := range uint64(8) {
			m := lookingBack{rng: rand.New(rand.NewPCG(seed, 6)), noise: noise}
			m.round() // sizes are tried
			for range 3 {
				w, s := m.round()
				worst, slower = append(worst, w), append(slower, s)
			}
		}
		slices.Sort(worst)
		slices.Sort(slower)
		if half := len(worst) / 2; worst[half] >= most || slower[half] > 2.8 {
			t.Errorf("noise %v: the slowest step in a hundred takes %.2f times as long, and the prompt %.2f times", noise, worst, slower)
		}
	}
}

// lookingBack is the reference on two cores with SmolLM2, as its steps were measured.
type lookingBack struct {
	p     Pace
	rng   *rand.Rand
	noise float64
	// busy is the number of further steps during which other programs load the
	// machine.
	busy int
}

// step records a step of about this many milliseconds.
func (m *lookingBack) step(l Load, ms float64) float64 {
	ms *= max(0.8, 1+m.noise*m.rng.NormFloat64())
	if m.rng.Float64() < m.noise/20 {
		m.busy = 20
	}
	if m.busy > 0 {
		ms *= 1.4
		m.busy--
	}
	m.p.Took(l, time.Duration(ms*1e6))
	return ms
}

// round is one run of the scenario stall: a stream alone, a prompt alone, and
// such a prompt with a stream. It returns the slowdown of the slowest step in a
// hundred and of the prompt.
func (m *lookingBack) round() (worst, slower float64) {
	const prompt, chunk = 2048, 128
	decode := func(at int) float64 { return 10 + 0.009*float64(at) }
	piece := func(at, n int) Load { return Load{PrefillTokens: n, PrefillContext: n*at + n*n/2} }
	slowest := func(steps []float64) float64 { slices.Sort(steps); return steps[len(steps)*99/100] }
	var stream, alone, beside []float64
	m.p.Tokens(Work{Prompts: []Span{{From: 0, To: 24}}}, chunk)
	m.step(piece(0, 24), 60)
	for at := range 1024 {
		m.p.Tokens(Work{Decodes: 1, DecodeContext: at}, chunk)
		stream = append(stream, m.step(Load{Decodes: 1, DecodeContext: at}, decode(at)))
	}
	for at := 0; at < prompt; at += chunk {
		m.p.Tokens(Work{Prompts: []Span{{From: at, To: prompt}}, Head: 1}, chunk)
		alone = append(alone, m.step(piece(at, chunk), chunk*(2.9+0.0009*float64(at))))
	}
	m.p.Tokens(Work{Prompts: []Span{{From: 0, To: 24}}}, chunk)
	m.step(piece(0, 24), 60)
	m.p.Tokens(Work{Decodes: 1}, chunk)
	m.step(Load{Decodes: 1}, decode(0))
	for at, n := 0, 0; at < prompt; at += n {
		seen := len(beside)
		n = min(m.p.Tokens(Work{Decodes: 1, DecodeContext: seen, Prompts: []Span{{From: at, To: prompt}}, Head: 2}, chunk), prompt-at)
		takes := decode(seen) + float64(n)*(3.2+0.0016*float64(at))
		if at < 9 {
			takes += 15
		}
		l := piece(at, n)
		l.Decodes, l.DecodeContext = 1, seen
		beside = append(beside, m.step(l, takes))
	}
	slower = sum(beside) / sum(alone)
	return slowest(beside) / slowest(stream), slower
}

// TestWhatOnePromptSavedIsNotTheNextOnes: one that was computed alone came early, and
// its successor has no more than three times its own time.
func TestWhatOnePromptSavedIsNotTheNextOnes(t *testing.T) {
	m := machines["a device that works in large tiles"]
	for _, answers := range []int{1, 4} {
		p := Pace{}
		alone := sum(prefill(&p, m.takes, 0, 8192, m.limit))
		for range 9 {
			p.Took(Load{Decodes: answers}, time.Duration(m.takes(answers, 0)*1e6))
		}
		if slower := sum(prefill(&p, m.takes, answers, 8192, m.limit)) / alone; slower > 2.85 {
			t.Errorf("next to %d decodes the second prompt takes %.2f times as long as the first, which was alone", answers, slower)
		}
	}
}

// TestStepsAreAsShortAsTheTimeOfThePromptAllows: three sizes, of which a larger one
// always brings more.
func TestStepsAreAsShortAsTheTimeOfThePromptAllows(t *testing.T) {
	for _, c := range []struct {
		lone, spent, worth float64
		want               int // size
	}{
		{lone: 570, want: 0},                         // 2.7 times that are more than the 1,500 of the smallest size
		{lone: 400, want: 1},                         // 875 of the next
		{lone: 300, want: 1},                         // three times 300 are enough where more would take ten times as long
		{lone: 280, want: 2},                         // and that is not
		{lone: 50, want: 2},                          // nothing is
		{lone: 450, spent: 200, worth: 250, want: 0}, // it is early
		{lone: 570, spent: 300, worth: 50, want: 1},  // it is late
		{lone: 400, spent: 4000, want: 1},            // but is not rushed
		{lone: 300, worth: 4000, want: 1},            // nor has it all the time in the world
	} {
		b := outlook{step: 1, tokens: []float64{1, 4, 32}, extra: []float64{0.5, 2.5, 9}, parts: []part{{tokens: 1000, depth: 0}}, alone: c.lone}
		if got := b.under(b.bound(c.spent, c.worth), 0, b.step); got != c.want {
			t.Errorf("%+v: size %d", c, got)
		}
	}
}

// TestTheNextStepIsOfTheLastOnesSize where that is within the bound and nearly as good.
func TestTheNextStepIsOfTheLastOnesSize(t *testing.T) {
	// 1.9, 2.8, 2.9 and 3.2 tokens a millisecond.
	b := outlook{step: 5, tokens: []float64{15, 31, 47, 63}, extra: []float64{3, 6, 11, 15}}
	for _, c := range []struct {
		last, want int
		bound      float64
	}{
		{last: 1, want: 1, bound: 16},
		{last: 2, want: 2, bound: 16}, // though 1 is as good
		{last: 2, want: 1, bound: 15}, // it takes too long
		{last: 0, want: 1, bound: 16}, // it is too slow
		{last: 3, want: 3, bound: 21},
		{last: 9, want: 1, bound: 16}, // it is too large by now
	} {
		if got := b.near(c.last, c.bound); got != c.want {
			t.Errorf("%+v: size %d", c, got)
		}
	}
}

// TestAPlanKnowsThatStepsGrow as answers and prompts become longer.
func TestAPlanKnowsThatStepsGrow(t *testing.T) {
	b := outlook{step: 10, growth: 0.01, tokens: []float64{1}, extra: []float64{2}, deeper: 0.001, depth: 100, parts: []part{{tokens: 100, depth: 100}, {tokens: 100, depth: 1100}}}
	// 100 steps of 12, and 100 whose answer takes 1 more and whose token 1.
	if got := b.finish(100); math.Abs(got-2600) > 1e-9 {
		t.Errorf("prompts take %v, want 2600", got)
	}
	b.depth = 10100
	if got := b.at(0, 100); got != 0.5 {
		t.Errorf("a token that looks back at less takes %v, want a quarter of 2", got)
	}
}

// TestALatePromptIsNotRushed: after a pause of the machine the rest of a
// prefill keeps nearly its previous pace.
func TestALatePromptIsNotRushed(t *testing.T) {
	p := Pace{}
	takes := func(answers, tokens int) float64 { return 10 + 2*float64(tokens) }
	prefill(&p, func(_, tokens int) float64 { return 2 * float64(tokens) }, 0, 512, 128)
	p.Took(Load{Decodes: 1}, 10*time.Millisecond)
	prefill(&p, takes, 1, 2048, 128)
	w := Work{Decodes: 1, Prompts: []Span{{From: 0, To: 2048}}, Head: 9}
	before := p.Tokens(w, 128)
	p.Took(Load{Decodes: 1, PrefillTokens: before, PrefillContext: before * before / 2}, time.Hour)
	w.Prompts[0].From = before
	if n := p.Tokens(w, 128); n < before || n > 2*before {
		t.Errorf("after an hour's pause a step has %d tokens, before %d", n, before)
	}
}

// TestATrendIsFound though measurements are noisy, some are accidents, and groups
// differ the other way; not where all are of one depth, and never downwards.
func TestATrendIsFound(t *testing.T) {
	for seed := range uint64(8) {
		of := func(slope, span, noise float64) float64 {
			var tr trend
			rng := rand.New(rand.NewPCG(seed, 4))
			for i := range 2000 {
				x := span * float64(i%400) / 400
				group := i % 400 / 134
				y := 5 - float64(group) + slope*x + noise*rng.NormFloat64()
				if i%97 == 0 {
					y *= 100
				}
				tr.add(group, x, y)
			}
			return tr.slope()
		}
		if got := of(0.0016, 2000, 0.3); math.Abs(got-0.0016) > 0.0004 {
			t.Errorf("seed %d: a token costs %.5f more for each it looks back at, want 0.0016", seed, got)
		}
		if got := of(0, 4, 1); got > 0.001 {
			t.Errorf("seed %d: where nothing is known it costs %.5f more", seed, got)
		}
		if got := of(-0.001, 2000, 0.1); got != 0 {
			t.Errorf("seed %d: a trend downwards is %.5f, want none", seed, got)
		}
	}
}

// TestSizesMeasuredDeepInAPromptAreNotHeldAgainstTheNext.
func TestSizesMeasuredDeepInAPromptAreNotHeldAgainstTheNext(t *testing.T) {
	p := Pace{}
	p.Took(Load{Decodes: 1}, 10*time.Millisecond)
	for range 2 {
		for at := 0; at < 2000; at += 4 {
			ms := 10 + 4*(3+0.0016*float64(at+2))
			p.Took(Load{Decodes: 1, PrefillTokens: 4, PrefillContext: 4*at + 8}, time.Duration(1e6*ms))
		}
	}
	for depth, want := range map[float64]float64{0: 12, 1000: 18.4, 2000: 24.8} {
		if got := 1e3 * p.longer(1, depth)[sizeOf(4)]; math.Abs(got-want) > 0.05*want {
			t.Errorf("at depth %v a step with 4 tokens takes %.1f ms longer, want %.1f", depth, got, want)
		}
	}
}

// TestWhatIsMeasuredAtOneDepthSaysWhatToExpectAtAnother.
func TestWhatIsMeasuredAtOneDepthSaysWhatToExpectAtAnother(t *testing.T) {
	var w window
	for _, y := range []float64{4, 5, 60} {
		w.add(1000, y)
	}
	for x, want := range map[float64]float64{1000: 5, 2000: 7, 500: 4, 0: 3, -2000: 1.25} {
		if got := w.at(x, 0.002); math.Abs(got-want) > 1e-9 {
			t.Errorf("at %v the median is %v, want %v", x, got, want)
		}
	}
	if got := new(window).at(1, 1); got != 0 {
		t.Errorf("nothing that was measured takes %v", got)
	}
}

// TestAnotherAnswerDoesNotStopThePrompts: while a burst of prompts turns into
// answers, one by one, steps without prompts are 6.
func TestAnotherAnswerDoesNotStopThePrompts(t *testing.T) {
	m := machines["a wide device"]
	p := Pace{}
	prefill(&p, m.takes, 0, 1024, m.limit)
	without, with := 0, 0
	for answers := 1; answers <= 32; answers++ {
		for prompt := 128; prompt > 0; {
			n := min(prompt, ask(&p, answers, m.limit))
			if n == 0 {
				without++
			} else {
				with++
			}
			p.Took(Load{Decodes: answers, PrefillTokens: n}, time.Duration(m.takes(answers, n)*1e6))
			prompt -= n
		}
	}
	if without > with/4 {
		t.Errorf("%d steps without prompts, %d with", without, with)
	}
	// What was never measured is not guessed from far away.
	p = Pace{}
	p.Took(Load{Decodes: 1, PrefillTokens: 0}, time.Millisecond)
	if n := ask(&p, 3, 512); n != 0 {
		t.Errorf("3 answers take %d tokens of prompts in one step, and only 1 was measured", n)
	}
	if n := ask(&p, 2, 512); n == 0 {
		t.Error("2 answers are not guessed from 1")
	}
	steps := 0
	for n := ask(&p, 2, 512); n > 0 && steps < probe; n = ask(&p, 2, 512) {
		p.Took(Load{Decodes: 2, PrefillTokens: n}, 2*time.Millisecond)
		steps++
	}
	if steps == 0 || steps > guess {
		t.Errorf("a guess held for %d steps, at most %d are right", steps, guess)
	}
}

func TestAStepOfAnswersIsGuessedFromTheNearestNumberOfThem(t *testing.T) {
	var m measured
	for range 3 {
		m.add(Load{Decodes: 8}, 0.4)
	}
	for answers, want := range map[int]float64{3: 0, 4: 0.2, 6: 0.3, 8: 0.4, 12: 0.4, 17: 0} {
		if got := m.step(answers, 0); math.Abs(got-want) > 1e-9 {
			t.Errorf("%d answers take %v s, want %v", answers, got, want)
		}
	}
}

func TestTokensOfAStepAreThoseOfAllRows(t *testing.T) {
	if n := (Step{Rows: []Row{{Length: 1, Sample: true, Start: 4}, {Length: 64}}}).Tokens(); n != 65 {
		t.Errorf("%d tokens", n)
	}
}
