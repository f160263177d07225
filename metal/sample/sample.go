// Package sample decides the next token and where a text ends.
//
// It owns the sampling parameters of a request, the choice of one token from
// one row of logits, the uniform numbers behind that choice, how likely a token
// was, and the matching of stop strings in streamed text. It refuses parameters that cannot be meant
// and logits that are not numbers. It knows nothing of tensors, requests or
// vocabularies; back ends that sample on their device follow the same rules.
//
// The rules, in order: a bias is added to the logits and penalties are taken off
// them; temperature 0 takes the largest (the lowest id on ties); otherwise top-p, min-p and top-k are
// applied to the untempered probabilities, the temperature comes last, and one
// uniform number, a function of seed and token index alone, picks among what
// is left in order of ids.
//
// Start reading at Params and Sampler.Token; log-probabilities are in likely.go.
package sample

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// ErrLogits is returned for a row without a finite largest value.
var ErrLogits = errors.New("logits hold no usable value")

// ErrParams is what every *ParamError is.
var ErrParams = errors.New("invalid sampling parameter")

// ParamError names the parameter that cannot be meant.
type ParamError struct {
	Param string
	Value float64
	Want  string
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("%s is %v, want %s", e.Param, e.Value, e.Want)
}

// Is makes every ParamError an ErrParams.
func (e *ParamError) Is(target error) bool { return target == ErrParams }

// Params are the sampling parameters of one request. Neutral gives those that
// change nothing.
type Params struct {
	// Temperature divides the logits; 0 takes the largest.
	Temperature float64
	// TopP keeps the most likely tokens until their probabilities sum to it;
	// 1 keeps all. At least one token is kept.
	TopP float64
	// MinP drops tokens less likely than MinP times the most likely one.
	MinP float64
	// TopK keeps that many tokens; 0 and -1 keep all.
	TopK int
	// FrequencyPenalty is taken off a token's logit for each time it was
	// generated, PresencePenalty once if it was.
	FrequencyPenalty float64
	PresencePenalty  float64
	// Seed chooses the sequence of uniform numbers.
	Seed uint64
	// Bias is added to the logits of tokens.
	Bias map[int32]float32
}

const (
	// mostBias is how many tokens may have a bias, each from -biasBound to
	// biasBound: OpenAI's bounds.
	mostBias  = 300
	biasBound = 100
)

// Neutral samples from the model's own distribution.
func Neutral() Params { return Params{Temperature: 1, TopP: 1} }

// Greedy takes the most likely token.
func Greedy() Params { return Params{Temperature: 0, TopP: 1} }

// Argmax reports whether sampling is to take the largest logit as it is, so
// that the device may do it.
func (p Params) Argmax() bool { return p.Temperature == 0 && !p.penalised() && len(p.Bias) == 0 }

// Validate refuses what cannot be meant; its error is a *ParamError.
func (p Params) Validate() error {
	checks := []struct {
		name      string
		v         float64
		low, high float64
		want      string
	}{
		{"temperature", p.Temperature, 0, math.MaxFloat32, "0 or more"},
		{"top_p", p.TopP, 0, 1, "a number from 0 to 1"},
		{"min_p", p.MinP, 0, 1, "a number from 0 to 1"},
		{"top_k", float64(p.TopK), -1, math.MaxInt32, "-1 or more"},
		{"frequency_penalty", p.FrequencyPenalty, -2, 2, "a number from -2 to 2"},
		{"presence_penalty", p.PresencePenalty, -2, 2, "a number from -2 to 2"},
	}
	for _, c := range checks {
		if !(c.v >= c.low && c.v <= c.high) { // NaN too
			return &ParamError{Param: c.name, Value: c.v, Want: c.want}
		}
	}
	return p.validateBias()
}

func (p Params) validateBias() error {
	if n := len(p.Bias); n > mostBias {
		return &ParamError{Param: "logit_bias", Value: float64(n), Want: fmt.Sprintf("at most %d tokens", mostBias)}
	}
	for _, id := range slices.Sorted(maps.Keys(p.Bias)) {
		if v := p.Bias[id]; !(v >= -biasBound && v <= biasBound) { // NaN too
			return &ParamError{Param: "logit_bias", Value: float64(v), Want: fmt.Sprintf("a number from %d to %d for token %d", -biasBound, biasBound, id)}
		}
	}
	return nil
}

func (p Params) penalised() bool { return p.FrequencyPenalty != 0 || p.PresencePenalty != 0 }

func (p Params) filtered() bool { return p.TopP < 1 || p.TopK > 0 }

// Counts remember how often a request generated each token. The zero value is
// ready. Only requests with a penalty need one.
type Counts struct {
	n map[int32]int32
}

// Add counts one generated token.
func (c *Counts) Add(token int32) {
	if c.n == nil {
		c.n = map[int32]int32{}
	}
	c.n[token]++
}

// Sampler holds the scratch memory for rows of one vocabulary, so that a token
// costs no allocation. It is for one goroutine.
type Sampler struct {
	row     []float32 // logits after bias and penalties
	weights []float64 // of the tokens that are kept, by id
	heap    []int32   // ids
}

// New makes a sampler for rows of vocabulary logits.
func New(vocabulary int) *Sampler {
	return &Sampler{
		row:     make([]float32, vocabulary),
		weights: make([]float64, vocabulary),
		heap:    make([]int32, 0, vocabulary),
	}
}

// Token picks the token with the given index of its request, counted from the
// first generated one. counts may be nil where no penalty is set. The logits
// are not changed.
func (s *Sampler) Token(p Params, logits []float32, index uint64, counts *Counts) (int32, error) {
	if len(logits) == 0 || len(logits) > len(s.row) {
		return 0, fmt.Errorf("sample from %d logits with room for %d: %w", len(logits), len(s.row), ErrLogits)
	}
	if len(p.Bias) > 0 || p.penalised() && counts != nil {
		logits = s.adjust(p, logits, counts)
	}
	best, err := Argmax(logits)
	if err != nil {
		return 0, err
	}
	if p.Temperature == 0 {
		return best, nil
	}
	kept := s.cut(p, logits, logits[best])
	return s.draw(p, logits, logits[best], kept, Uniform(p.Seed, index)), nil
}

// Argmax returns the id of the largest logit, the lowest on ties.
func Argmax(logits []float32) (int32, error) {
	best, top := -1, float32(math.Inf(-1))
	for i, v := range logits {
		if v != v {
			return 0, fmt.Errorf("logit of token %d is not a number: %w", i, ErrLogits)
		}
		if v > top {
			best, top = i, v
		}
	}
	if best < 0 || math.IsInf(float64(top), 1) {
		return 0, fmt.Errorf("largest logit is %v: %w", top, ErrLogits)
	}
	return int32(best), nil
}

// adjust adds the bias and takes penalties off, each token by itself.
func (s *Sampler) adjust(p Params, logits []float32, counts *Counts) []float32 {
	row := s.row[:len(logits)]
	copy(row, logits)
	for id, v := range p.Bias {
		if int(id) < len(row) && id >= 0 {
			row[id] += v
		}
	}
	if !p.penalised() || counts == nil {
		return row
	}
	for id, n := range counts.n {
		if int(id) < len(row) && id >= 0 {
			row[id] -= float32(p.FrequencyPenalty*float64(n) + p.PresencePenalty)
		}
	}
	return row
}

// edge is the last token that is kept, in order of falling logits and, among
// equal ones, rising ids.
type edge struct {
	logit float32
	id    int32
}

func (e edge) keeps(logit float32, id int32) bool {
	return logit > e.logit || (logit == e.logit && id <= e.id)
}

// cut finds the edge of what the filters keep. Each filter keeps a prefix of
// the same order, so together they keep the shortest.
func (s *Sampler) cut(p Params, logits []float32, top float32) edge {
	e := edge{logit: float32(math.Inf(-1)), id: math.MaxInt32}
	if p.MinP > 0 {
		e.logit = float32(float64(top) + math.Log(p.MinP))
		if e.logit > top { // rounding
			e.logit = top
		}
	}
	if !p.filtered() {
		return e
	}
	// A token below (1-p)/n of the mass cannot be kept by top-p: all such
	// tokens together do not reach 1-p. Half of it leaves room for rounding.
	floor, mass := e.logit, 0.0
	if p.TopP < 1 {
		for _, v := range logits {
			mass += math.Exp(float64(v - top))
		}
		least := float64(top) + math.Log(mass*(1-p.TopP)/float64(2*len(logits)))
		floor = max(floor, float32(min(least, float64(top))))
	}
	h := s.heap[:0]
	for i, v := range logits {
		if v >= floor {
			h = append(h, int32(i))
		}
	}
	return s.popEdge(p, logits, heapOf(h, logits), float64(top), mass)
}

// popEdge takes tokens from the most likely downwards until a filter is full.
func (s *Sampler) popEdge(p Params, logits []float32, h maxHeap, top, mass float64) edge {
	var e edge
	limit := p.TopK
	if limit <= 0 {
		limit = math.MaxInt
	}
	sum := 0.0
	for n := 0; n < limit && len(h.ids) > 0; n++ {
		if n > 0 && p.TopP < 1 && sum >= p.TopP*mass {
			break
		}
		id := h.pop()
		e = edge{logit: logits[id], id: id}
		if p.TopP < 1 {
			sum += math.Exp(float64(logits[id]) - top)
		}
	}
	return e
}

// draw picks by inverse distribution among the kept tokens in order of ids.
func (s *Sampler) draw(p Params, logits []float32, top float32, kept edge, u float64) int32 {
	weights := s.weights[:len(logits)]
	sum := 0.0
	for i, v := range logits {
		w := 0.0
		if kept.keeps(v, int32(i)) {
			w = math.Exp(float64(v-top) / p.Temperature)
		}
		weights[i] = w
		sum += w
	}
	target, at, last := u*sum, 0.0, 0
	for i, w := range weights {
		if w == 0 {
			continue
		}
		at += w
		last = i
		if at > target {
			break
		}
	}
	return int32(last)
}

// Uniform is a number in [0, 1) that depends on seed and index only, so that
// neither preemption nor company changes what a request draws.
func Uniform(seed, index uint64) float64 {
	x := mix(mix(seed+0x9e3779b97f4a7c15) ^ (index * 0xd1342543de82ef95))
	return float64(x>>11) / (1 << 53)
}

// mix is a bijection of 64 bits whose every output bit depends on every input
// bit (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
