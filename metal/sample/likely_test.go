//go:build !race

package sample

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// golden is what numpy and mlx-lm made of a row (test/oracle/goldens/sample).
type golden struct {
	Name     string
	Logits   string
	Top      []int32
	Logprobs []*float64 // nil is minus infinity
	Adjusted struct {
		Bias                map[int32]float32
		Came                []int32
		Presence, Frequency float64
		Choice              int32
	}
	Repeated struct {
		Bias                            map[int32]float32
		Came                            []int32
		Repetition, Presence, Frequency float64
		Logits                          string
	}
}

func (g golden) row(t *testing.T) []float32 {
	t.Helper()
	return decoded(t, g.Logits)
}

func decoded(t *testing.T, logits string) []float32 {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(logits)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float32, len(raw)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out
}

func goldens(t *testing.T) []golden {
	t.Helper()
	raw, err := os.ReadFile("testdata/likely.json")
	if err != nil {
		t.Fatal(err)
	}
	var out []golden
	if err := json.Unmarshal(raw, &out); err != nil || len(out) < 7 {
		t.Fatalf("%d rows, %v", len(out), err)
	}
	return out
}

func TestLogprobsAreThoseOfTheReference(t *testing.T) {
	for _, g := range goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			logits := g.row(t)
			for id, want := range g.Logprobs {
				r, err := Rank(logits, int32(id), MostAlternatives)
				if err != nil {
					t.Fatal(err)
				}
				if got := r.Chosen.Logprob; r.Chosen.ID != int32(id) || (want == nil) != math.IsInf(got, -1) || want != nil && math.Abs(got-*want) > 1e-9 {
					t.Errorf("token %d: %+v", id, r.Chosen)
				}
				var top []int32
				for _, l := range r.Top {
					top = append(top, l.ID)
					if w := g.Logprobs[l.ID]; w != nil && math.Abs(l.Logprob-*w) > 1e-9 {
						t.Errorf("got %+v, want %v", l, *w)
					}
				}
				if !slices.Equal(top, g.Top) {
					t.Fatalf("most likely %v, want %v", top, g.Top)
				}
			}
		})
	}
}

// A greedy choice under bias and penalties is mlx-lm's.
func TestBiasAndPenaltiesChooseAsTheReference(t *testing.T) {
	moved := 0
	for _, g := range goldens(t) {
		logits, a := g.row(t), g.Adjusted
		p := Greedy()
		p.Bias, p.PresencePenalty, p.FrequencyPenalty = a.Bias, a.Presence, a.Frequency
		var counts Counts
		for _, id := range a.Came {
			counts.Add(id)
		}
		got, err := New(len(logits)).Token(p, logits, 0, &counts)
		if err != nil || got != a.Choice {
			t.Errorf("%s: token %d, %v; want %d", g.Name, got, err, a.Choice)
		}
		if plain, _ := Argmax(logits); plain != a.Choice {
			moved++
		}
	}
	if moved < 3 {
		t.Errorf("only %d choices were other ones than without a bias", moved)
	}
}

// Bias and penalties leave the logits that mlx-lm leaves, in its order.
func TestRepetitionPenaltyIsThatOfTheReference(t *testing.T) {
	changed := 0
	for _, g := range goldens(t) {
		logits, r := g.row(t), g.Repeated
		p := Greedy()
		p.Bias, p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty = r.Bias, r.Repetition, r.Presence, r.Frequency
		var counts Counts
		for _, id := range r.Came {
			counts.Add(id)
		}
		got, want := New(len(logits)).adjust(p, logits, &counts), decoded(t, r.Logits)
		for id := range want {
			if d := math.Abs(float64(got[id] - want[id])); got[id] != want[id] && !(d <= 1e-6*math.Abs(float64(want[id]))+1e-6) {
				t.Errorf("%s: logit of token %d is %v, want %v", g.Name, id, got[id], want[id])
			}
			if want[id] != logits[id] {
				changed++
			}
		}
	}
	if changed < 40 {
		t.Errorf("only %d logits were changed", changed)
	}
}

// Tokens of the prompt count as much as generated ones, and for nothing else.
func TestRepetitionPenaltyCountsThePrompt(t *testing.T) {
	logits := []float32{4, 3, -1, 2}
	var counts Counts
	counts.Prompt([]int32{0, 2, 0, -1, 9})
	p := Greedy()
	p.FrequencyPenalty, p.PresencePenalty = 2, 2
	for penalty, want := range map[float64]int32{0: 0, 1: 0, 1.25: 0, 2: 1} {
		p.RepetitionPenalty = penalty
		if p.Argmax() {
			t.Error("the device may not choose where there is a penalty")
		}
		if got, err := New(len(logits)).Token(p, logits, 0, &counts); err != nil || got != want {
			t.Errorf("penalty %v: token %d, %v; want %d", penalty, got, err, want)
		}
	}
	p = Greedy()
	p.RepetitionPenalty = 2
	if p.Argmax() {
		t.Error("the device may not choose where there is a repetition penalty")
	}
	if got := New(len(logits)).adjust(p, logits, &counts); !slices.Equal(got, []float32{2, 3, -2, 2}) {
		t.Errorf("logits %v", got)
	}
	counts.Add(1)
	if got, err := New(len(logits)).Token(p, logits, 1, &counts); err != nil || got != 0 {
		t.Errorf("a generated token: %d, %v", got, err)
	}
}

func TestAnyNumberOfAlternativesIsTheFrontOfASort(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		logits := make([]float32, 1+rng.IntN(60))
		for i := range logits {
			logits[i] = float32(rng.IntN(9))
		}
		order := make([]int32, len(logits))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int { return int(logits[b] - logits[a]) })
		n := rng.IntN(MostAlternatives + 1)
		if got, want := largestOf(logits, n), order[:min(n, len(order))]; !slices.Equal(got, want) {
			t.Fatalf("%d of %v: %v, want %v", n, logits, got, want)
		}
	}
}

func TestWhatCannotBeRankedIsAnError(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		logits []float32
		token  int32
		n      int
	}{{logits: []float32{1, 2}, token: 2, n: 0}, {logits: []float32{1, 2}, token: -1, n: 0}, {logits: []float32{1, nan}, token: 0, n: 0}, {token: 0, n: 0}, {logits: []float32{1, 2}, token: 0, n: MostAlternatives + 1}, {logits: []float32{1, 2}, token: 0, n: -1}} {
		if r, err := Rank(c.logits, c.token, c.n); !errors.Is(err, ErrLogits) {
			t.Errorf("%+v: %+v, %v", c, r, err)
		}
	}
}

// The log-probability is the model's own: neither bias nor temperature change it,
// and a bias of the bound takes or bans a token.
func TestABiasMovesTheChoice(t *testing.T) {
	logits := []float32{2, 1, 0, -1}
	s := New(len(logits))
	for id, want := range map[int32]int32{0: 0, 2: 2, 3: 3} {
		p := Params{Temperature: 1, TopP: 1, Bias: map[int32]float32{id: 100}}
		if (Params{TopP: 1, Bias: p.Bias}).Argmax() {
			t.Error("the device may not choose where there is a bias")
		}
		for i := range uint64(200) {
			if got, err := s.Token(p, logits, i, nil); err != nil || got != want {
				t.Fatalf("bias for %d: token %d, %v", id, got, err)
			}
		}
	}
	p := Params{Temperature: 5, TopP: 1, Bias: map[int32]float32{0: -100, 9: 100, -1: 100}} // ids that no row has change nothing
	for i := range uint64(500) {
		if got, err := s.Token(p, logits, i, nil); err != nil || got == 0 {
			t.Fatalf("banned: token %d, %v", got, err)
		}
	}
	if logits[0] != 2 {
		t.Error("the caller's logits were changed")
	}
	if a := testing.AllocsPerRun(100, func() { _, _ = s.Token(p, logits, 3, nil) }); a != 0 {
		t.Errorf("%v allocations a token", a)
	}
}

func TestABiasHasItsBounds(t *testing.T) {
	many := map[int32]float32{}
	for id := range int32(mostBias) {
		many[id] = -100
	}
	p := Neutral()
	p.Bias = many
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	more := map[int32]float32{mostBias: 0}
	for id := range many {
		more[id] = 1
	}
	for name, bias := range map[string]map[int32]float32{
		"logit_bias is 301, want at most 300 tokens":                            more,
		"logit_bias is 100.5, want a number from -100 to 100 for token 5":       {5: 100.5, 6: 101},
		"logit_bias is -101, want a number from -100 to 100 for token 5":        {5: -101},
		"logit_bias is NaN, want a number from -100 to 100 for token 5":         {5: float32(math.NaN())},
		"logit_bias is +Inf, want a number from -100 to 100 for token 4":        {4: float32(math.Inf(1))},
		"logit_bias is 1000, want a number from -100 to 100 for token 1048576":  {1 << 20: 1000},
		"logit_bias is -100.25, want a number from -100 to 100 for token 70000": {70000: -100.25},
	} {
		p.Bias = bias
		var e *ParamError
		if err := p.Validate(); !errors.As(err, &e) || e.Param != "logit_bias" || e.Error() != name {
			t.Errorf("%v, want %s", err, name)
		}
	}
}

func BenchmarkRank(b *testing.B) {
	const n = 49152
	rng := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 3)
	}
	for range b.N {
		if _, err := Rank(logits, 5, MostAlternatives); err != nil {
			b.Fatal(err)
		}
	}
}
