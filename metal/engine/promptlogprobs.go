package engine

import (
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/sample"
)

// logprobsChunk is the maximum number of tokens in a prefill chunk if the
// log-probabilities of the prompt are wanted: each token has a row of logits, on the
// device and on the host, and a row is as long as the vocabulary.
const logprobsChunk = 64

// maxChunk returns the maximum number of tokens in the next prefill chunk; limit is that of
// the back end.
func (s *sequence) maxChunk(limit int) int {
	if s.wantsPromptLogprobs() {
		return min(limit, logprobsChunk)
	}
	return limit
}

// promptChunk is the maximum number of tokens of its prompt in a step, so that others have the
// rest; 0 is no maximum.
func (s *sequence) promptChunk() int {
	if s.echo.logprobs {
		return logprobsChunk
	}
	return 0
}

// promptLogits returns the part of a row whose logits rank a token of the prompt that was
// not returned yet: n positions from first on, each for the token after it.
func (s *sequence) promptLogits(r batch.Row) (first, n int) {
	if !s.wantsPromptLogprobs() {
		return 0, 0
	}
	first = max(r.Start, s.echo.returned-1)
	return first, max(0, min(r.Start+r.Length, s.prompt-1)-first)
}

// promptRows are n rows of logits from out on, for the positions of a sequence from first
// on.
type promptRows struct{ first, n, out int }

// promptLogprobs are the log-probabilities of one row of a step.
type promptLogprobs struct {
	tokens []sample.Ranked
	err    error
}

// rankPrompts computes the log-probabilities of all tokens of prompts that a step ranks.
func (s *samplers) rankPrompts(f *inflightStep, byID map[batch.ID]*sequence, logits func(row int) []float32) {
	began := time.Now()
	defer func() { f.ranking = time.Since(began) }()
	f.promptLogprobs = make([]promptLogprobs, len(f.step.Rows))
	type job struct {
		of            *sequence
		row, at, from int
	}
	var jobs []job
	for i, rows := range f.promptRows {
		q := byID[f.step.Rows[i].ID]
		if q == nil || rows.n == 0 { // it ended while this step was in flight
			continue
		}
		f.promptLogprobs[i].tokens = make([]sample.Ranked, rows.n)
		for k := range rows.n {
			jobs = append(jobs, job{q, i, k, rows.first + k})
		}
	}
	errs := make([]error, len(jobs))
	s.each(len(jobs), func(_ *samplerWorker, i int) {
		j := jobs[i]
		f.promptLogprobs[j.row].tokens[j.at], errs[i] = sample.Rank(logits(f.promptRows[j.row].out+j.at), j.of.tokens[j.from+1], *j.of.logprobs)
	})
	for i, err := range errs {
		if r := &f.promptLogprobs[jobs[i].row]; r.err == nil {
			r.err = err
		}
	}
}
