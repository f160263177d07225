// Package batch decides what an engine computes next: a pure scheduler.
//
// It owns the queue, admission against the tokens of KV that were promised,
// and the description of every step. There are no prefill and decode phases,
// only computed tokens that must catch up with known ones: decode rows go
// first in every step, and one bounded piece of a prompt advances beside them.
// When the cache is full the youngest request gives its blocks back and is
// computed again later; what it drew does not change. Whoever guards memory
// looks at Scheduler.Prompt first, and may hold that prompt back. It refuses what can
// never run and what the queue cannot hold. It sees no tensor, no clock and no
// goroutine.
//
// Start reading at Scheduler.Plan.
package batch

import (
	"errors"
	"fmt"
)

// Sentinels that callers branch on.
var (
	// ErrQueueFull says that as many requests wait as may.
	ErrQueueFull = errors.New("queue is full")
	// ErrTooLong says that a request can never run under these limits.
	ErrTooLong = errors.New("request is longer than the context")
	// ErrUnknown says that no such request is running or waiting.
	ErrUnknown = errors.New("unknown request")
)

// ID names a request; never used twice.
type ID int64

// Limits are what was promised to this engine.
type Limits struct {
	// ContextTokens is the longest request, prompt and answer together.
	ContextTokens int
	// CacheTokens of KV are shared by all running requests.
	CacheTokens int
	// BlockTokens is the granularity in which KV is taken.
	BlockTokens int
	// Sequences run at once at most; Queue more may wait.
	Sequences, Queue int
}

// Row is one request's part of a step.
type Row struct {
	ID ID
	// Start is the position of the first token, Length how many there are.
	Start, Length int
	// Sample says that the last position yields the next token.
	Sample bool
}

// Step is what to compute next.
type Step struct {
	// Preempted requests lost their KV; drop it before anything else.
	Preempted []ID
	Rows      []Row
}

// Tokens of all rows.
func (s Step) Tokens() int {
	n := 0
	for _, r := range s.Rows {
		n += r.Length
	}
	return n
}

// Decodes counts the rows that only extend by the newest token.
func (s Step) Decodes() int {
	n := 0
	for _, r := range s.Rows {
		if r.Length == 1 && r.Sample && r.Start > 0 {
			n++
		}
	}
	return n
}

type request struct {
	id ID
	// known tokens are prompt and answer so far, computed of them are in KV.
	known, computed int
	blocks          int
}

// Scheduler holds the requests of one engine.
type Scheduler struct {
	limits Limits
	// running in order of admission, waiting in order of arrival.
	running, waiting []*request
	freeBlocks       int
	paused           bool
}

// New makes an empty scheduler.
func New(l Limits) (*Scheduler, error) {
	if l.ContextTokens < 1 || l.BlockTokens < 1 || l.Sequences < 1 || l.Queue < 0 || l.CacheTokens < l.ContextTokens {
		return nil, fmt.Errorf("batch limits %+v cannot be served", l)
	}
	return &Scheduler{limits: l, freeBlocks: (l.CacheTokens + l.BlockTokens - 1) / l.BlockTokens}, nil
}

// Submit queues a request whose prompt has so many tokens.
func (s *Scheduler) Submit(id ID, prompt int) error {
	if prompt < 1 || prompt > s.limits.ContextTokens {
		return fmt.Errorf("prompt of %d tokens in a context of %d: %w", prompt, s.limits.ContextTokens, ErrTooLong)
	}
	if len(s.waiting) >= s.limits.Queue && len(s.running)+len(s.waiting) >= s.limits.Sequences+s.limits.Queue {
		return fmt.Errorf("%d requests run and %d wait: %w", len(s.running), len(s.waiting), ErrQueueFull)
	}
	s.waiting = append(s.waiting, &request{id: id, known: prompt})
	return nil
}

// PausePrefill holds back prompts; running answers go on.
func (s *Scheduler) PausePrefill(paused bool) { s.paused = paused }

// Running and Waiting count requests.
func (s *Scheduler) Running() int { return len(s.running) }

// Waiting counts requests that do not run yet.
func (s *Scheduler) Waiting() int { return len(s.waiting) }

// IDs of all requests, running ones first.
func (s *Scheduler) IDs() []ID {
	ids := make([]ID, 0, len(s.running)+len(s.waiting))
	for _, r := range s.running {
		ids = append(ids, r.id)
	}
	for _, r := range s.waiting {
		ids = append(ids, r.id)
	}
	return ids
}

// Plan decides the next step: every answer's newest token, and beside them at
// most prefill tokens of the oldest prompt that is not computed yet, none where
// prefill is 0. An empty step means that there is nothing to do.
func (s *Scheduler) Plan(prefill int) Step {
	var step Step
	s.admit()
	for i := 0; i < len(s.running); i++ {
		r := s.running[i]
		if r.computed == 0 || r.known-r.computed != 1 {
			continue
		}
		if !s.extend(r, r.known, &step) {
			break // r itself was the youngest and is waiting again
		}
		step.Rows = append(step.Rows, Row{ID: r.id, Start: r.computed, Length: 1, Sample: true})
	}
	if s.paused || prefill < 1 {
		return step
	}
	if r := s.prompt(); r != nil {
		left := r.known - r.computed
		n := min(left, prefill)
		step.Rows = append(step.Rows, Row{ID: r.id, Start: r.computed, Length: n, Sample: n == left})
	}
	return step
}

// Prompt is the rest of the prompt that the next plan advances, unless that
// plan has to preempt its request; ok is false where none is to be computed. It
// admits what may run, as Plan does.
func (s *Scheduler) Prompt() (rest Row, ok bool) {
	s.admit()
	r := s.prompt()
	if s.paused || r == nil {
		return Row{}, false
	}
	return Row{ID: r.id, Start: r.computed, Length: r.known - r.computed, Sample: true}, true
}

// prompt is the oldest running request with more to compute than its newest
// token.
func (s *Scheduler) prompt() *request {
	for _, r := range s.running {
		if left := r.known - r.computed; left > 1 || left == 1 && r.computed == 0 {
			return r
		}
	}
	return nil
}

// admit starts waiting requests in order while one more fits whole. Blocks for
// all known tokens are taken at once, so that a prompt under way never waits
// for memory.
func (s *Scheduler) admit() {
	for !s.paused && len(s.waiting) > 0 && len(s.running) < s.limits.Sequences {
		r := s.waiting[0]
		need := s.blocksFor(r.known)
		if need > s.freeBlocks {
			return // in order of arrival: nobody overtakes
		}
		s.waiting = s.waiting[1:]
		s.freeBlocks -= need
		r.blocks = need
		s.running = append(s.running, r)
	}
}

func (s *Scheduler) blocksFor(tokens int) int {
	return (tokens + s.limits.BlockTokens - 1) / s.limits.BlockTokens
}

// extend makes room for tokens of r, taking blocks from the youngest where
// none is free. It reports false when r had to give way itself.
func (s *Scheduler) extend(r *request, tokens int, step *Step) bool {
	for s.blocksFor(tokens) > r.blocks {
		if s.freeBlocks > 0 {
			s.freeBlocks--
			r.blocks++
			continue
		}
		victim := s.running[len(s.running)-1]
		s.preempt(victim, step)
		if victim == r {
			return false
		}
	}
	return true
}

// preempt sends the youngest running request back to the head of the queue.
func (s *Scheduler) preempt(r *request, step *Step) {
	s.running = s.running[:len(s.running)-1]
	s.freeBlocks += r.blocks
	r.blocks, r.computed = 0, 0
	s.waiting = append([]*request{r}, s.waiting...)
	step.Preempted = append(step.Preempted, r.id)
}

// Steady reports whether the next plan, once each row of step has grown by one
// token, is the same rows again: all of them answers, nobody can be admitted,
// no prompt is under way and no blocks have to be taken from anybody.
func (s *Scheduler) Steady(step Step) bool {
	admissible := len(s.waiting) > 0 && len(s.running) < s.limits.Sequences
	if admissible || len(step.Rows) != len(s.running) || len(step.Preempted) > 0 {
		return false
	}
	need := 0
	for i, row := range step.Rows {
		r := s.running[i]
		if r.id != row.ID || !row.Sample || r.known+1 > s.limits.ContextTokens {
			return false
		}
		need += max(0, s.blocksFor(r.known+1)-r.blocks)
	}
	return len(step.Rows) > 0 && need <= s.freeBlocks
}

// Computed records that a row of a step is in KV.
func (s *Scheduler) Computed(row Row) error {
	r, _ := s.find(row.ID)
	if r == nil || r.computed != row.Start {
		return fmt.Errorf("computed row of request %d at %d: %w", row.ID, row.Start, ErrUnknown)
	}
	r.computed += row.Length
	return nil
}

// Forget records that nothing of a request is in KV any more. It keeps its
// place and its blocks, and is computed again from its first token.
func (s *Scheduler) Forget(id ID) {
	if r, _ := s.find(id); r != nil {
		r.computed = 0
	}
}

// InKV says how many tokens of a request are in KV; unknown ones have none.
func (s *Scheduler) InKV(id ID) int {
	r, _ := s.find(id)
	if r == nil {
		return 0
	}
	return r.computed
}

// Grow records one new token of the answer. The caller ends requests that
// reach the context's end.
func (s *Scheduler) Grow(id ID) error {
	r, _ := s.find(id)
	if r == nil {
		return fmt.Errorf("grow request %d: %w", id, ErrUnknown)
	}
	if r.known >= s.limits.ContextTokens {
		return fmt.Errorf("request %d has %d tokens: %w", id, r.known, ErrTooLong)
	}
	r.known++
	return nil
}

// Remove ends a request, running or waiting; unknown ones are ignored.
func (s *Scheduler) Remove(id ID) {
	r, running := s.find(id)
	if r == nil {
		return
	}
	if running {
		s.freeBlocks += r.blocks
		s.running = without(s.running, r)
		return
	}
	s.waiting = without(s.waiting, r)
}

func (s *Scheduler) find(id ID) (r *request, running bool) {
	for _, r := range s.running {
		if r.id == id {
			return r, true
		}
	}
	for _, r := range s.waiting {
		if r.id == id {
			return r, false
		}
	}
	return nil, false
}

func without(list []*request, r *request) []*request {
	out := make([]*request, 0, len(list))
	for _, o := range list {
		if o != r {
			out = append(out, o)
		}
	}
	return out
}
