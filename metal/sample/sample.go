// Package sample decides the next token and where a text ends.
//
// It owns the sampling parameters of a request, the choice of one token from
// one row of logits, the random numbers for that choice, log-probabilities, and
// the matching of stop strings in streamed text. It refuses invalid parameters
// and logits that are not numbers. It knows nothing of tensors, requests or
// vocabularies; back ends that sample on their device follow the same rules.
//
// The rules, in order: a bias is added to the logits, and penalties lower those of
// tokens that came before; temperature 0 takes the largest (the lowest id on ties); otherwise top-p, min-p and top-k are
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
	"math/bits"
	"slices"
)

// ErrLogits is returned for a row without a finite largest value.
var ErrLogits = errors.New("logits contain no usable value")

// ErrParams is the kind of every *ParamError.
var errParams = errors.New("invalid sampling parameter")

// ParamError names an invalid parameter.
type ParamError struct {
	Param string
	Value float64
	Want  string
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("%s is %v, want %s", e.Param, e.Value, e.Want)
}

// Is makes every ParamError an errParams.
func (e *ParamError) Is(target error) bool { return target == errParams }

// Params are the sampling parameters of one request. Neutral returns those that
// have no effect.
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
	// RepetitionPenalty divides the positive logits of tokens that are in the
	// prompt or the answer, and multiplies the negative ones; 0 and 1 have no
	// effect. Hugging Face, vLLM and mlx-lm define it so. It is applied before
	// the other penalties.
	RepetitionPenalty float64
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
	// leastRepetition and mostRepetition bound the repetition penalty, so that no
	// logit becomes infinite.
	leastRepetition, mostRepetition = 0.01, 100
)

// Neutral samples from the model's own distribution.
func Neutral() Params { return Params{Temperature: 1, TopP: 1} }

// Greedy returns parameters that choose the most likely token.
func Greedy() Params { return Params{Temperature: 0, TopP: 1} }

// Argmax reports whether sampling only takes the largest unmodified logit,
// which the device can do.
func (p Params) Argmax() bool { return p.Temperature == 0 && !p.Penalised() && len(p.Bias) == 0 }

// Validate returns a *ParamError if a parameter is invalid.
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
	if v := p.RepetitionPenalty; v != 0 && !(v >= leastRepetition && v <= mostRepetition) { // NaN too
		return &ParamError{Param: "repetition_penalty", Value: v, Want: fmt.Sprintf("a number from %v to %d", leastRepetition, mostRepetition)}
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

// Penalised reports whether there is a penalty, for which generated tokens count.
func (p Params) Penalised() bool {
	return p.FrequencyPenalty != 0 || p.PresencePenalty != 0 || p.Repeats()
}

// Repeats reports whether there is a repetition penalty, for which the tokens of
// the prompt count.
func (p Params) Repeats() bool { return p.RepetitionPenalty != 0 && p.RepetitionPenalty != 1 }

func (p Params) filtered() bool { return p.TopP < 1 || p.TopK > 0 }

// Counts record which tokens occurred in a request, and how often each was
// generated. The zero value is ready. Only requests with a penalty need one.
type Counts struct {
	// prompt has a bit for each token of the prompt: a request that waits keeps it, and a map
	// of a long prompt takes a hundred times as much.
	prompt []uint64
	n      map[int32]int32
}

// Add counts one generated token.
func (c *Counts) Add(token int32) {
	if c.n == nil {
		c.n = map[int32]int32{}
	}
	c.n[token]++
}

// Prompt adds the tokens of the prompt, which the repetition penalty alone counts.
func (c *Counts) Prompt(tokens []int32) {
	if len(tokens) == 0 {
		return
	}
	if words := int(slices.Max(tokens))/64 + 1; words > len(c.prompt) {
		c.prompt = append(make([]uint64, 0, words), c.prompt...)[:words]
	}
	for _, id := range tokens {
		if id >= 0 {
			c.prompt[id/64] |= 1 << (id % 64)
		}
	}
}

// inPrompt reports whether the prompt has a token.
func (c *Counts) inPrompt(id int32) bool {
	return id >= 0 && int(id/64) < len(c.prompt) && c.prompt[id/64]&(1<<(id%64)) != 0
}

// Sampler holds the scratch memory for rows of one vocabulary, so that a token
// costs no allocation. It is for one goroutine.
type Sampler struct {
	vocabulary int
	row        []float32 // logits after bias and penalties
	sums       []float64 // of the weights of tokens that are kept, by part of the row
	keys       []uint32  // of the logits of a bucket
	spare      []uint32
	buckets    [buckets]bucket
}

// part is how many tokens of a row have one sum.
const part = 256

// New returns a sampler for rows of at most vocabulary logits.
func New(vocabulary int) *Sampler { return &Sampler{vocabulary: vocabulary} }

// Token chooses the token with the given index of its request, counted from the
// first generated one. counts may be nil if no penalty is set. It does not
// modify the logits.
func (s *Sampler) Token(p Params, logits []float32, index uint64, counts *Counts) (int32, error) {
	if len(logits) == 0 || len(logits) > s.vocabulary {
		return 0, fmt.Errorf("sample from %d logits with a limit of %d: %w", len(logits), s.vocabulary, ErrLogits)
	}
	if len(p.Bias) > 0 || p.Penalised() && counts != nil {
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
	return s.draw(p, logits, logits[best], kept, uniform(p.Seed, index)), nil
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

// adjust adds the bias and applies the penalties, each token by itself.
func (s *Sampler) adjust(p Params, logits []float32, counts *Counts) []float32 {
	s.row = append(s.row[:0], logits...)
	row := s.row
	for id, v := range p.Bias {
		if int(id) < len(row) && id >= 0 {
			row[id] += v
		}
	}
	if !p.Penalised() || counts == nil {
		return row
	}
	if p.Repeats() {
		for w, word := range counts.prompt {
			for ; word != 0; word &= word - 1 {
				if id := w*64 + bits.TrailingZeros64(word); id < len(row) {
					row[id] = p.repeated(row[id])
				}
			}
		}
	}
	for id, n := range counts.n {
		if id < 0 || int(id) >= len(row) {
			continue
		}
		if !counts.inPrompt(id) {
			row[id] = p.repeated(row[id])
		}
		row[id] -= float32(p.FrequencyPenalty*float64(n) + p.PresencePenalty)
	}
	return row
}

// repeated lowers the logit of a token that came before.
func (p Params) repeated(v float32) float32 {
	switch {
	case !p.Repeats():
		return v
	case v > 0:
		return v / float32(p.RepetitionPenalty)
	}
	return v * float32(p.RepetitionPenalty)
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
	if p.TopK >= len(logits) {
		p.TopK = 0 // it covers all
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
		if b.n > 0 && (n+b.n >= limit || sum+b.mass >= reach) {
			return s.within(i, logits, top, e.logit, limit-n, reach-sum, n == 0)
		}
		n, sum = n+b.n, sum+b.mass
	}
	return e
}

// bucket counts the tokens whose logits are about as far below the largest.
type bucket struct {
	n    int
	mass float64
}

const (
	buckets = 512
	// perUnit buckets for a logit: what is more than 32 below shares the last.
	perUnit = 16
)

func bucketOf(below float32) int {
	if b := below * perUnit; b < buckets-1 {
		return int(b)
	}
	return buckets - 1
}

// sort counts the tokens from a logit on into buckets, in order of falling logits,
// and sums the masses of all where top-p wants them.
func (s *Sampler) sort(p Params, logits []float32, top, floor float32) (mass float64) {
	s.buckets = [buckets]bucket{}
	for _, v := range logits {
		w := 0.0
		if p.TopP < 1 {
			w = exp(float64(v - top))
			mass += w
		}
		if v >= floor {
			b := &s.buckets[bucketOf(top-v)]
			b.n++
			b.mass += w
		}
	}
	return mass
}

// within finds the edge among the tokens of a bucket: the most likely of them,
// until there are limit, or their masses add up to enough. The most likely
// token is always kept.
func (s *Sampler) within(b int, logits []float32, top, floor float32, limit int, reach float64, first bool) edge {
	s.keys = s.keys[:0]
	for _, v := range logits {
		if v >= floor && bucketOf(top-v) == b {
			s.keys = append(s.keys, keyOf(v))
		}
	}
	if math.IsInf(reach, 1) && len(s.keys) > 0 { // no sum ends it
		key, equal := nthOf(s.keys, min(limit, len(s.keys)))
		return edge{logit: logitOf(key), id: nth(logits, logitOf(key), equal)}
	}
	s.spare = slices.Grow(s.spare[:0], len(s.keys))[:len(s.keys)]
	keys := ordered(s.keys, s.spare)
	n := 0
	for sum := 0.0; n < min(limit, len(keys)) && (first && n == 0 || sum < reach); n++ {
		sum += exp(float64(logitOf(keys[n]) - top))
	}
	if n == 0 {
		return edge{logit: float32(math.Inf(1)), id: -1}
	}
	last, equal := keys[n-1], 1
	for equal < n && keys[n-1-equal] == last {
		equal++
	}
	return edge{logit: logitOf(last), id: nth(logits, logitOf(last), equal)}
}

// nth is the id of the n-th token that has a logit.
func nth(logits []float32, logit float32, n int) int32 {
	for id, v := range logits {
		if v != logit {
			continue
		}
		if n--; n == 0 {
			return int32(id)
		}
	}
	return -1
}

// draw picks by inverse distribution among the kept tokens in order of ids.
func (s *Sampler) draw(p Params, logits []float32, top float32, kept edge, u float64) int32 {
	weight := func(v float32, id int) float64 {
		if !kept.keeps(v, int32(id)) {
			return 0
		}
		return exp(float64(v-top) / p.Temperature)
	}
	s.sums = s.sums[:0]
	total := 0.0
	for from := 0; from < len(logits); from += part {
		sum := 0.0
		for i, v := range logits[from:min(from+part, len(logits))] {
			sum += weight(v, from+i)
		}
		s.sums = append(s.sums, sum)
		total += sum
	}
	target, before, last := u*total, 0.0, 0
	for n, sum := range s.sums {
		if sum == 0 {
			continue
		}
		last = n
		if before+sum > target {
			break
		}
		before += sum
	}
	at, found := 0.0, 0
	for i := last * part; i < min((last+1)*part, len(logits)); i++ {
		w := weight(logits[i], i)
		if w == 0 {
			continue
		}
		at += w
		found = i
		if before+at > target {
			break
		}
	}
	return int32(found)
}

// uniform is a number in [0, 1) that only depends on seed and index, so that
// neither preemption nor other requests change the result.
func uniform(seed, index uint64) float64 {
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
