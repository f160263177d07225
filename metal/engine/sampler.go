package engine

import (
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/sample"
)

// maxSamplers sample the tokens of a step at once, if the host has as many processors:
// each row is a pass or two over a vocabulary.
const maxSamplers = 8

// samplers sample the rows of a step on the host, in parallel.
type samplers struct{ workers []*samplerWorker }

// samplerWorker samples tokens for one goroutine.
type samplerWorker struct {
	sampler *sample.Sampler
	rows    int // of the vocabulary
	log     *slog.Logger
	// allowed are the logits of one row that is constrained.
	allowed []float32
}

func newSamplers(vocabulary int, log *slog.Logger) *samplers {
	s := &samplers{make([]*samplerWorker, min(maxSamplers, runtime.GOMAXPROCS(0)))}
	for i := range s.workers {
		s.workers[i] = &samplerWorker{sampler: sample.New(vocabulary), rows: vocabulary, log: log}
	}
	return s
}

// sampled is a token, with its log-probability if its request wants that.
type sampled struct {
	token  int32
	ranked *sample.Ranked
	// logits of a row whose mask is late.
	logits []float32
	// then are the logits after the draft of a row, until the next step is read.
	then []float32
	err  error
}

// sampleStep samples a token for every sampled row of a step whose sequence continues.
// What a sequence gets depends only on its own row, seed and counts, so rows are sampled
// in parallel.
func (s *samplers) sampleStep(f *inflightStep, byID map[batch.ID]*sequence, logits func(row int) []float32) []sampled {
	var wanted []int
	var of []*sequence
	for _, id := range f.sampled {
		if q := byID[id]; q != nil && !q.echo.only {
			wanted = append(wanted, len(of))
		}
		of = append(of, byID[id])
	}
	all := make([]sampled, len(of))
	sampleRows := func(w *samplerWorker, i int) {
		row := wanted[i]
		all[row] = w.sample(of[row], logits(f.last[row]))
	}
	s.each(len(wanted), sampleRows)
	// The rows whose masks are late share one wait.
	wanted = slices.DeleteFunc(wanted, func(row int) bool { return !errors.Is(all[row].err, constraint.ErrPending) })
	until := time.Now().Add(constraint.MaxWait)
	for _, row := range wanted {
		of[row].constraint.Await(until)
	}
	s.each(len(wanted), sampleRows)
	return all
}

// sampleRows samples a token of each sequence from its row of logits, in parallel. It waits
// for no mask.
func (s *samplers) sampleRows(of []*sequence, logits [][]float32) []sampled {
	all := make([]sampled, len(of))
	s.each(len(of), func(w *samplerWorker, i int) { all[i] = w.sample(of[i], logits[i]) })
	return all
}

// each has as many workers as are useful do n things, and waits for them.
func (s *samplers) each(n int, do func(w *samplerWorker, i int)) {
	var next atomic.Int64
	work := func(w *samplerWorker) {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(w, i)
		}
	}
	var others sync.WaitGroup
	for _, w := range s.workers[1:max(1, min(n, len(s.workers)))] {
		others.Go(func() { work(w) })
	}
	work(s.workers[0])
	others.Wait()
}

// resampled marks the position of a token that is sampled a second time.
const resampled = 1 << 62

// sample samples a token from the logits of a row, on the host. After a panic the worker
// keeps nothing of the row.
func (w *samplerWorker) sample(s *sequence, logits []float32) (t sampled) {
	err := contained(w.log, "next token", func() error { t = w.sampleRow(s, logits); return nil })
	if err != nil {
		w.sampler, w.allowed = sample.New(w.rows), nil
		return sampled{err: err}
	}
	return t
}

func (w *samplerWorker) sampleRow(s *sequence, logits []float32) sampled {
	token, err := w.token(s, logits)
	switch {
	case errors.Is(err, constraint.ErrPending):
		return sampled{logits: logits, err: err}
	case err != nil || s.logprobs == nil:
		return sampled{token: token, err: err}
	}
	ranked, err := sample.Rank(logits, token, *s.logprobs)
	return sampled{token: token, ranked: &ranked, err: err}
}

func (w *samplerWorker) token(s *sequence, logits []float32) (int32, error) {
	c, position := s.constraint, uint64(s.generated())
	if !c.Free() {
		allowed, err := w.allow(s, logits)
		if err != nil {
			return 0, err
		}
		return w.sampler.Token(s.params, allowed, position, &s.counts)
	}
	likely := logits
	if !s.ends.allowedAfter(s.generated()) {
		w.allowed = append(w.allowed[:0], logits...)
		s.ends.forbid(w.allowed)
		likely = w.allowed
	}
	token, err := w.sampler.Token(s.params, likely, position, &s.counts)
	if err != nil {
		return token, err
	}
	fits, err := c.Fits(token)
	if fits || c.GiveUp(err) {
		return token, nil
	}
	if err != nil {
		return 0, err
	}
	allowed, err := w.allow(s, logits)
	if c.GiveUp(err) {
		return token, nil
	}
	if err != nil {
		return 0, err
	}
	return w.sampler.Token(s.params, allowed, position|resampled, &s.counts)
}

// allow returns the logits of a sequence's next token as its constraint and its minimum
// length allow, until the next call.
func (w *samplerWorker) allow(s *sequence, logits []float32) ([]float32, error) {
	mayEnd := s.ends.allowedAfter(s.generated())
	if s.constraint == nil && mayEnd {
		return logits, nil
	}
	w.allowed = slices.Grow(w.allowed[:0], len(logits))[:len(logits)]
	if s.constraint == nil {
		copy(w.allowed, logits)
	} else if err := s.constraint.Apply(logits, w.allowed); err != nil {
		return nil, err
	}
	if !mayEnd {
		s.ends.forbid(w.allowed)
	}
	return w.allowed, nil
}

// deviceSamples reports whether the next token is the largest logit, and nothing else of
// the logits is wanted.
func (s *sequence) deviceSamples() bool {
	return s.params.Argmax() && s.logprobs == nil && s.constraint.OnDevice() && s.ends.allowedAfter(s.generated())
}
