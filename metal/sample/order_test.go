//go:build !race

package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// edgeByHeap is the edge as it was found before logits were sorted by their digits: a heap of
// the bucket's tokens, from which the most likely is taken until there are enough.
func edgeByHeap(s *Sampler, p Params, logits []float32, top float32) edge {
	e := edge{logit: float32(math.Inf(-1)), id: math.MaxInt32}
	if p.MinP > 0 {
		e.logit = min(top, float32(float64(top)+math.Log(p.MinP)))
	}
	if !p.filtered() {
		return e
	}
	mass := s.sort(p, logits, top, e.logit)
	limit, reach := p.TopK, math.Inf(1)
	if limit <= 0 {
		limit = math.MaxInt
	}
	if p.TopP < 1 {
		reach = p.TopP * mass
	}
	n, sum := 0, 0.0
	for i, b := range s.buckets {
		if b.n == 0 || n+b.n < limit && sum+b.mass < reach {
			n, sum = n+b.n, sum+b.mass
			continue
		}
		var ids []int32
		for id, v := range logits {
			if v >= e.logit && bucketOf(top-v) == i {
				ids = append(ids, int32(id))
			}
		}
		slices.SortStableFunc(ids, func(a, b int32) int {
			switch x, y := logits[a], logits[b]; {
			case x > y:
				return -1
			case x < y:
				return 1
			}
			return 0
		})
		first, left, took := n == 0, limit-n, 0.0
		e = edge{logit: float32(math.Inf(1)), id: -1}
		for ; left > 0 && len(ids) > 0 && (first || took < reach-sum); left-- {
			e, first = edge{logit: logits[ids[0]], id: ids[0]}, false
			took += exp(float64(logits[ids[0]] - top))
			ids = ids[1:]
		}
		return e
	}
	return e
}

// rowsToCut are rows of logits that crowd buckets in several ways.
func rowsToCut(rng *rand.Rand, n int) map[string][]float32 {
	row := func(of func(i int) float32) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = of(i)
		}
		return out
	}
	rows := map[string][]float32{
		"usual":   row(func(int) float32 { return float32(rng.NormFloat64() * 3) }),
		"equal":   row(func(int) float32 { return 1.5 }),
		"zeros":   row(func(int) float32 { return float32(math.Copysign(0, rng.NormFloat64())) }),
		"ties":    row(func(int) float32 { return float32(rng.IntN(7)) / 64 }),
		"narrow":  row(func(int) float32 { return float32(rng.NormFloat64() / 1000) }),
		"falling": row(func(i int) float32 { return -float32(i) / float32(n) / 32 }),
		"rising":  row(func(i int) float32 { return float32(i) / float32(n) / 32 }),
		"masked": row(func(int) float32 {
			if rng.IntN(3) > 0 {
				return float32(math.Inf(-1))
			}
			return float32(rng.NormFloat64())
		}),
		"tiny": row(func(int) float32 { return math.SmallestNonzeroFloat32 * float32(rng.IntN(1000)-500) }),
	}
	biased := slices.Clone(rows["usual"])
	biased[n/2] += 100
	rows["one far above"] = biased
	return rows
}

// What is kept is that of the rule, to the last bit: the same tokens of equal logits, and the
// same sums.
func TestWhatIsKeptDoesNotDependOnHowItIsFound(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, n := range []int{1, 5, fewKeys, 3000} {
		for name, logits := range rowsToCut(rng, n) {
			if slices.Max(logits) < -1000 {
				continue // all masked
			}
			for range 30 {
				p := Params{Temperature: 1, TopP: 1}
				if rng.IntN(3) > 0 {
					p.TopK = 1 + rng.IntN(n+2)
				}
				if rng.IntN(2) > 0 {
					p.TopP = []float64{0, rng.Float64(), 0.95, 1 - 1e-12, math.Nextafter(1, 0)}[rng.IntN(5)]
				}
				if rng.IntN(3) == 0 {
					p.MinP = rng.Float64()
				}
				top := slices.Max(logits)
				got, want := New(n).cut(p, logits, top), edgeByHeap(New(n), p, logits, top)
				if got != want && !sameKept(got, want, logits) {
					t.Fatalf("%s row of %d, %+v: the edge is %v, want %v", name, n, p, got, want)
				}
			}
		}
	}
}

func sameKept(a, b edge, logits []float32) bool {
	for id, v := range logits {
		if a.keeps(v, int32(id)) != b.keeps(v, int32(id)) {
			return false
		}
	}
	return true
}

// One token far above all others has the rest share a bucket, and a penalty of 100 nearly so:
// the filters take about as long as for a usual row.
func TestAttackParametersThatCrowdABucket(t *testing.T) {
	const vocabulary = 152_000
	rng := rand.New(rand.NewPCG(1, 1))
	rows := rowsToCut(rng, vocabulary)
	s := New(vocabulary)
	took := func(p Params, logits []float32) time.Duration {
		best := time.Hour
		for i := range 8 {
			began := time.Now()
			if _, err := s.Token(p, logits, uint64(i), nil); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	plain := took(Params{Temperature: 1, TopP: 0.95}, rows["usual"])
	for name, p := range map[string]Params{
		"top_k of nearly all": {Temperature: 1, TopP: 1, TopK: vocabulary - 2},
		"top_k of half":       {Temperature: 1, TopP: 1, TopK: vocabulary / 2},
		"top_p of nearly all": {Temperature: 1, TopP: math.Nextafter(1, 0)},
	} {
		for row, logits := range rows {
			if row == "tiny" { // numbers that processors are slow with, which no parameter brings about
				continue
			}
			got := took(p, logits)
			for range 16 { // other programs may take the processor each time
				if got <= 12*plain {
					break
				}
				got = min(got, took(p, logits))
			}
			if got > 12*plain {
				t.Errorf("%s, %s row: a token takes %v, and %v with top_p 0.95 of a usual row", name, row, got, plain)
			}
		}
	}
}
