package sample

import (
	"fmt"
	"math"
	"unsafe"
)

// MostAlternatives is the maximum number of alternatives returned for one
// token; it is OpenAI's bound of top_logprobs.
const MostAlternatives = 20

// Likely is a token and the natural logarithm of its probability, which is
// minus infinity for a token that the model masks.
type Likely struct {
	ID      int32
	Logprob float64
}

// Ranked is the log-probability of a token and of the most likely alternatives.
type Ranked struct {
	Chosen Likely
	// Top are the most likely tokens, the lowest id first among equals. The
	// chosen token is among them only if it is one of the most likely.
	Top []Likely
}

// Bytes that it takes in memory.
func (r Ranked) Bytes() int64 {
	return int64(unsafe.Sizeof(r)) + int64(cap(r.Top))*int64(unsafe.Sizeof(Likely{}))
}

// Rank returns the log-probability of a token, and those of the n most likely
// ones.
//
// They are those of the model itself: of the logits as they come, before bias,
// penalties, filters and temperature. vLLM defines them so by default
// (logprobs_mode raw_logprobs: "from the model's raw output, i.e. before
// applying any logits post-processing such as temperature scaling or penalty
// adjustments", docs/usage/v1_guide.md); OpenAI's reference leaves it open.
// mlx-lm differs: its own have bias and penalties in them.
func Rank(logits []float32, token int32, n int) (Ranked, error) {
	if token < 0 || int(token) >= len(logits) || n < 0 || n > MostAlternatives {
		return Ranked{}, fmt.Errorf("rank token %d of %d with %d alternatives: %w", token, len(logits), n, ErrLogits)
	}
	best, err := Argmax(logits)
	if err != nil {
		return Ranked{}, err
	}
	largest, sum := float64(logits[best]), 0.0
	for _, v := range logits {
		sum += exp(float64(v) - largest)
	}
	whole := largest + math.Log(sum)
	of := func(id int32) Likely { return Likely{ID: id, Logprob: float64(logits[id]) - whole} }
	r := Ranked{Chosen: of(token), Top: make([]Likely, 0, n)}
	for _, id := range largestOf(logits, n) {
		r.Top = append(r.Top, of(id))
	}
	return r, nil
}

// largestOf are the ids of the n largest logits in falling order, the lowest id
// first among equals.
func largestOf(logits []float32, n int) []int32 {
	var space [MostAlternatives + 1]int32
	ids := space[:0]
	for id, v := range logits {
		if len(ids) == n && (n == 0 || v <= logits[ids[n-1]]) {
			continue
		}
		at := len(ids)
		for at > 0 && v > logits[ids[at-1]] {
			at--
		}
		ids = append(ids, 0)
		copy(ids[at+1:], ids[at:])
		ids[at] = int32(id)
		ids = ids[:min(len(ids), n)]
	}
	return ids
}
