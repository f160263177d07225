//go:build !race

package sample

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// oracle computes the distribution plainly: sort everything, apply each filter
// by its own definition in the documented order, then temper.
func oracle(p Params, logits []float32) []float64 {
	n := len(logits)
	top, sum := float64(slices.Max(logits)), 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return a - b
	})
	logp := func(i int) float64 { return float64(logits[i]) - top - math.Log(sum) }
	alive := make([]bool, n)
	before := 0.0
	for r, i := range order {
		alive[i] = r == 0 || p.TopP >= 1 || before < p.TopP
		before += math.Exp(logp(i))
	}
	if p.MinP > 0 {
		for i := range alive {
			alive[i] = alive[i] && logp(i) >= logp(order[0])+math.Log(p.MinP)-1e-7
		}
	}
	if p.TopK > 0 {
		for r, i := range order {
			alive[i] = alive[i] && r < p.TopK
		}
	}
	out := make([]float64, n)
	z := 0.0
	for i, a := range alive {
		if a {
			out[i] = math.Exp((float64(logits[i]) - top) / p.Temperature)
			z += out[i]
		}
	}
	for i := range out {
		out[i] /= z
	}
	return out
}

func TestTokensFollowTheOraclesDistribution(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 300 {
		n := 1 + rng.IntN(40)
		logits := make([]float32, n)
		for i := range logits {
			logits[i] = float32(rng.IntN(12)) / 2 // many ties
			if rng.IntN(3) == 0 {
				logits[i] = float32(rng.NormFloat64() * 4)
			}
		}
		p := Params{Temperature: 0.2 + 2*rng.Float64(), TopP: 1, Seed: rng.Uint64()}
		if rng.IntN(2) == 0 {
			p.TopP = rng.Float64()
		}
		if rng.IntN(2) == 0 {
			p.TopK = rng.IntN(n + 3)
		}
		if rng.IntN(2) == 0 {
			p.MinP = rng.Float64()
		}
		want := oracle(p, logits)
		s := New(n)
		got := make([]float64, n)
		const draws = 2000
		for i := range uint64(draws) {
			id, err := s.Token(p, logits, i, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want[id] == 0 {
				t.Fatalf("round %d: %+v over %v drew token %d, which the filters drop", round, p, logits, id)
			}
			got[id] += 1.0 / draws
		}
		for i := range want {
			// Six standard deviations over 300 rounds of 40: a false alarm is unlikely.
			slack := 6*math.Sqrt(want[i]*(1-want[i])/draws) + 1e-3
			if math.Abs(got[i]-want[i]) > slack {
				t.Fatalf("round %d: %+v over %v: token %d came %.4f of the time, want %.4f", round, p, logits, i, got[i], want[i])
			}
		}
	}
}

// The exact kept set matters more than frequencies: a uniform near 0 or 1 must
// reach its first and last token, and every kept token must be reachable.
func TestEveryKeptTokenIsReachable(t *testing.T) {
	logits := []float32{0, 3, 3, 1, 2, 3, -1}
	tests := map[string]struct {
		p    Params
		want []int32
	}{
		"no filter":                        {p: Params{Temperature: 1, TopP: 1}, want: []int32{0, 1, 2, 3, 4, 5, 6}},
		"top-k keeps the lowest ids":       {p: Params{Temperature: 1, TopP: 1, TopK: 2}, want: []int32{1, 2}},
		"top-k of minus one is off":        {p: Params{Temperature: 1, TopP: 1, TopK: -1}, want: []int32{0, 1, 2, 3, 4, 5, 6}},
		"top-p of zero keeps one":          {p: Params{Temperature: 1, TopP: 0}, want: []int32{1}},
		"top-p stops once it is reached":   {p: Params{Temperature: 1, TopP: 0.5}, want: []int32{1, 2}},
		"min-p of one keeps the ties":      {p: Params{Temperature: 1, TopP: 1, MinP: 1}, want: []int32{1, 2, 5}},
		"min-p at a token's own share":     {p: Params{Temperature: 1, TopP: 1, MinP: math.Exp(-1) - 1e-6}, want: []int32{1, 2, 4, 5}},
		"filters act before temperature":   {p: Params{Temperature: 100, TopP: 0.5}, want: []int32{1, 2}},
		"the shortest of three is applied": {p: Params{Temperature: 1, TopP: 0.99, MinP: 0.01, TopK: 4}, want: []int32{1, 2, 4, 5}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			seen := map[int32]bool{}
			s := New(len(logits))
			for i := range uint64(5000) {
				id, err := s.Token(tc.p, logits, i, nil)
				if err != nil {
					t.Fatal(err)
				}
				seen[id] = true
			}
			for id := range int32(len(logits)) {
				if seen[id] != slices.Contains(tc.want, id) {
					t.Errorf("token %d drawn: %v, want tokens %v", id, seen[id], tc.want)
				}
			}
		})
	}
}

func TestTopPPruningIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	const n = 3000
	logits := make([]float32, n)
	s := New(n)
	for range 50 {
		for i := range logits {
			logits[i] = float32(rng.NormFloat64() * 5)
		}
		p := Params{Temperature: 1, TopP: 1 - math.Pow(10, -4*rng.Float64())}
		want := oracle(p, logits)
		e := s.cut(p, logits, slices.Max(logits))
		for i, w := range want {
			if (w > 0) != e.keeps(logits[i], int32(i)) {
				t.Fatalf("top-p %v: token %d with share %v kept %v", p.TopP, i, w, e.keeps(logits[i], int32(i)))
			}
		}
	}
}

func TestGreedyTakesTheLowestIDOnTies(t *testing.T) {
	s := New(4)
	id, err := s.Token(Greedy(), []float32{1, 5, 5, 2}, 0, nil)
	if err != nil || id != 1 {
		t.Errorf("token %d, %v", id, err)
	}
}

func TestPenaltiesPushRepeatedTokensDown(t *testing.T) {
	logits := []float32{2, 1.5, 0}
	s := New(3)
	p := Greedy()
	p.FrequencyPenalty, p.PresencePenalty = 0.2, 0.1
	var counts Counts
	var got []int32
	for i := range uint64(6) {
		id, err := s.Token(p, logits, i, &counts)
		if err != nil {
			t.Fatal(err)
		}
		counts.Add(id)
		got = append(got, id)
	}
	// 2, 1.7, 1.5 | 1.5 ties with token 1 unpenalised and wins by id.
	if want := []int32{0, 0, 0, 1, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
	if logits[0] != 2 {
		t.Error("the caller's logits were changed")
	}
}

func TestUnusableLogitsAreAnError(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	s := New(3)
	for _, logits := range [][]float32{{}, {nan, 1, 2}, {1, 2, nan}, {inf, 1, 2}, {-inf, -inf, -inf}, {1, 2, 3, 4}} {
		for _, p := range []Params{Greedy(), Neutral()} {
			if _, err := s.Token(p, logits, 0, nil); !errors.Is(err, ErrLogits) {
				t.Errorf("%v at temperature %v: %v", logits, p.Temperature, err)
			}
		}
	}
	for i := range uint64(100) { // masked tokens are fine and never drawn
		if id, err := s.Token(Neutral(), []float32{-inf, 0, -inf}, i, nil); err != nil || id != 1 {
			t.Fatalf("token %d, %v", id, err)
		}
	}
}

func TestImpossibleParametersAreRefusedByName(t *testing.T) {
	good := Neutral()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Params){
		"temperature":       func(p *Params) { p.Temperature = -1 },
		"top_p":             func(p *Params) { p.TopP = 1.1 },
		"min_p":             func(p *Params) { p.MinP = math.NaN() },
		"top_k":             func(p *Params) { p.TopK = -2 },
		"frequency_penalty": func(p *Params) { p.FrequencyPenalty = 3 },
		"presence_penalty":  func(p *Params) { p.PresencePenalty = -3 },

		"repetition_penalty": func(p *Params) { p.RepetitionPenalty = -1 },
	} {
		p := good
		change(&p)
		var e *ParamError
		if err := p.Validate(); !errors.As(err, &e) || e.Param != name || !errors.Is(err, errParams) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for penalty, ok := range map[float64]bool{0: true, 0.001: false, 0.01: true, 1.1: true, 100: true, 101: false, math.NaN(): false} {
		p := good
		p.RepetitionPenalty = penalty
		if err := p.Validate(); (err == nil) != ok {
			t.Errorf("repetition_penalty %v: %v", penalty, err)
		}
	}
}

// Golden: a change of the generator would change every seeded answer.
func TestUniformIsAFunctionOfSeedAndIndex(t *testing.T) {
	got := fmt.Sprintf("%.6f %.6f %.6f %.6f", uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(42, 1000))
	if want := "0.281761 0.279881 0.862856 0.539773"; got != want {
		t.Errorf("uniforms %s, want %s", got, want)
	}
	const n = 200_000
	var sum float64
	var bins [64]int
	for i := range uint64(n) {
		u := uniform(9, i)
		if u < 0 || u >= 1 {
			t.Fatalf("%v outside [0, 1)", u)
		}
		sum += u
		bins[int(u*64)]++
	}
	if mean := sum / n; math.Abs(mean-0.5) > 0.004 {
		t.Errorf("mean %v", mean)
	}
	chi := 0.0
	for _, b := range bins {
		d := float64(b) - n/64
		chi += d * d / (n / 64)
	}
	if chi > 125 { // 63 degrees of freedom, p < 1e-5
		t.Errorf("chi squared %v over 64 bins", chi)
	}
}

func TestNeighbouringSeedsAreIndependent(t *testing.T) {
	const n = 50_000
	var sxy float64
	for i := range uint64(n) {
		sxy += (uniform(i, 5) - 0.5) * (uniform(i+1, 5) - 0.5)
		sxy += (uniform(3, i) - 0.5) * (uniform(3, i+1) - 0.5)
	}
	if r := sxy / (2 * n) * 12; math.Abs(r) > 0.02 {
		t.Errorf("correlation %v", r)
	}
}

func TestATokenCostsNoAllocation(t *testing.T) {
	const n = 5000
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(math.Sin(float64(i))) * 8
	}
	s := New(n)
	p := Params{Temperature: 0.8, TopP: 0.9, MinP: 0.01, TopK: 40, Seed: 1}
	if a := testing.AllocsPerRun(100, func() { _, _ = s.Token(p, logits, 3, nil) }); a != 0 {
		t.Errorf("%v allocations a token", a)
	}
}

func BenchmarkToken(b *testing.B) {
	const n = 151936
	rng := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 3)
	}
	s := New(n)
	for name, p := range map[string]Params{
		"greedy": Greedy(), "plain": Neutral(), "top-p": {Temperature: 0.7, TopP: 0.95}, "top-k": {Temperature: 0.7, TopP: 1, TopK: 40},
	} {
		b.Run(name, func(b *testing.B) {
			for i := range b.N {
				if _, err := s.Token(p, logits, uint64(i), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestTheExponentialIsPreciseEnough(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 200_000 {
		x := -rng.Float64() * math.Pow(10, float64(i%4))
		if x < -700 {
			continue
		}
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 5e-10*want {
			t.Fatalf("exp(%v) is %v, want %v", x, got, want)
		}
	}
	for x, want := range map[float64]float64{0: 1, -701: 0, math.Inf(-1): 0} {
		if got := exp(x); got != want {
			t.Errorf("exp(%v) is %v, want %v", x, got, want)
		}
	}
}

// Of tokens that are equally likely, a uniform number names one.
func TestADrawFindsItsTokenInALongRow(t *testing.T) {
	const n = 3*part + 7
	s, logits := New(n), make([]float32, n)
	for i := range uint64(3000) {
		id, err := s.Token(Params{Temperature: 1, TopP: 1, Seed: 5}, logits, i, nil)
		if want := int32(uniform(5, i) * n); err != nil || id != want {
			t.Fatalf("draw %d: token %d, want %d: %v", i, id, want, err)
		}
	}
}
