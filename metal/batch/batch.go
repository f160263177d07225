// Package batch decides what an engine computes next: a pure scheduler.
//
// It owns the queue, admission against the tokens of KV that were promised,
// and the description of every step. There are no prefill and decode phases,
// only computed tokens that must catch up with known ones: decode rows go
// first in every step, and pieces of prompts, bounded together, advance beside
// them. It refuses what can never run and what the queue cannot hold. It sees
// no tensor, no clock and no goroutine: Pace, which says how many tokens of
// prompts a step may take, is told how long steps took.
//
// Who runs: requests wait in order of priority, then of arrival. One that does
// not fit beside what runs may be overtaken by others that do, but only so many
// times; after that nobody passes it. Nobody who runs makes way for somebody
// who waits. When answers have filled the cache, the youngest request of the
// lowest priority gives its blocks back and is computed again later; what it
// drew does not change, and what was saved of it is restored.
//
// Whose prompt advances: the oldest, except that those with less left than it,
// or of a higher priority, may take half of each step. So a short prompt does
// not wait for a long one, and the long one takes at most twice its time.
//
// An answer whose newest token is computed and that did not grow since waits for its next
// token: it keeps its place and its blocks, and no plan has a row of it.
//
// Each turn of the caller: Admit, and Restored for what a cache holds; Prompts,
// of which whoever guards memory may cut or hold back any; Plan. Where Steady
// says so, the next step may be built while one is under way.
//
// Start reading at Scheduler.Plan; steady.go looks one step ahead. Pace.Tokens plans
// how prompts go on beside answers, from what measured.go knows of steps; work.go
// has what both are told.
package batch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Sentinels that callers branch on.
var (
	// ErrQueueFull says that as many requests wait as may.
	ErrQueueFull = errors.New("queue is full")
	// ErrTooLong says that a request can never run under these limits.
	ErrTooLong = errors.New("request exceeds the context length")
	// ErrUnknown says that no such request is running or waiting.
	ErrUnknown = errors.New("unknown request")
	// ErrKnown says that a request of this name is running or waiting.
	ErrKnown = errors.New("request already exists")
)

// ID names a request; no two at a time have the same.
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
	// Boundary: no row has a multiple of it inside, because what a layer holds
	// there is saved and cannot be cut out later. 0 means that rows end anywhere.
	Boundary int
}

// overtakes is how often a waiting request may be overtaken, as a multiple of
// how many run at once.
const overtakes = 4

// Request is what the scheduler is told of one.
type Request struct {
	ID ID
	// Prompt is how many tokens it begins with.
	Prompt int
	// Priority: higher ones go first.
	Priority int
	// Tokens that it grows by at most: once it has them, no plan has it any more. 0
	// means that only Remove ends it.
	Tokens int
}

type request struct {
	id       ID
	priority int
	// arrival numbers requests; a preempted one keeps its own.
	arrival int64
	// known tokens are prompt and answer so far, computed of them are in KV; it ends
	// with most of them, where that is not 0.
	known, computed, most int
	blocks                int
	// overtaken counts the younger ones that were admitted while it waited.
	overtaken int
	running   bool
	// empty says that it runs with nothing in KV, and that Admit did not say so
	// yet.
	empty bool
}

func (r *request) left() int { return r.known - r.computed }

// answers reports whether only its newest token is to be computed.
func (r *request) answers() bool { return r.computed > 0 && r.left() == 1 && !r.done() }

// done reports whether it has all its tokens.
func (r *request) done() bool { return r.most > 0 && r.known >= r.most }

// order is that of priority, then of arrival.
func order(a, b *request) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.arrival, b.arrival))
}

// Scheduler holds the requests of one engine.
type Scheduler struct {
	limits Limits
	all    map[ID]*request
	// running and waiting are both in order.
	running, waiting []*request
	freeBlocks       int
	arrivals         int64
	paused           bool
	// turn is 0 and 1 in turn: whose is the odd token of a step that two share.
	turn int
	// scratch of Admit, Prompts and Work.
	admitted []ID
	prompts  []*request
	pieces   []Row
	spans    []Span
}

// New makes an empty scheduler.
func New(l Limits) (*Scheduler, error) {
	if l.ContextTokens < 1 || l.BlockTokens < 1 || l.Sequences < 1 || l.Queue < 0 || l.CacheTokens < l.ContextTokens || l.Boundary < 0 {
		return nil, fmt.Errorf("invalid batch limits %+v", l)
	}
	return &Scheduler{limits: l, all: map[ID]*request{}, freeBlocks: (l.CacheTokens + l.BlockTokens - 1) / l.BlockTokens}, nil
}

// Submit queues a request.
func (s *Scheduler) Submit(r Request) error {
	if r.Prompt < 1 || r.Prompt > s.limits.ContextTokens {
		return fmt.Errorf("prompt of %d tokens in a context of %d: %w", r.Prompt, s.limits.ContextTokens, ErrTooLong)
	}
	if s.all[r.ID] != nil {
		return fmt.Errorf("submit request %d: %w", r.ID, ErrKnown)
	}
	if len(s.waiting) >= s.limits.Queue && len(s.all) >= s.limits.Sequences+s.limits.Queue {
		return fmt.Errorf("%d requests are running and %d are waiting: %w", len(s.running), len(s.waiting), ErrQueueFull)
	}
	s.arrivals++
	n := &request{id: r.ID, priority: r.Priority, arrival: s.arrivals, known: r.Prompt}
	if r.Tokens > 0 {
		n.most = r.Prompt + r.Tokens
	}
	s.all[r.ID] = n
	s.waiting = insert(s.waiting, n)
	return nil
}

// PausePrefill holds back prompts; running answers go on.
func (s *Scheduler) PausePrefill(paused bool) { s.paused = paused }

// Running and Waiting count requests.
func (s *Scheduler) Running() int { return len(s.running) }

// Waiting counts requests that do not run yet.
func (s *Scheduler) Waiting() int { return len(s.waiting) }

// Answers counts the requests whose newest token the next plan computes.
func (s *Scheduler) Answers() int {
	n := 0
	for _, r := range s.running {
		if r.answers() {
			n++
		}
	}
	return n
}

// FreeTokens is how many tokens of the KV that was promised nobody holds.
func (s *Scheduler) FreeTokens() int {
	all := (s.limits.CacheTokens + s.limits.BlockTokens - 1) / s.limits.BlockTokens
	return max(0, s.limits.CacheTokens-(all-s.freeBlocks)*s.limits.BlockTokens)
}

// IDs of all requests, running ones first.
func (s *Scheduler) IDs() []ID {
	ids := make([]ID, 0, len(s.all))
	for _, list := range [][]*request{s.running, s.waiting} {
		for _, r := range list {
			ids = append(ids, r.id)
		}
	}
	return ids
}

// Admit starts what may run now. It names the running requests that hold
// nothing in KV and were not named since they began to run, were preempted or
// forgotten: what a cache has of them can be restored before the next plan,
// see Restored. The names are good until the next call.
func (s *Scheduler) Admit() []ID {
	for at := s.next(); at >= 0; at = s.next() {
		r := s.waiting[at]
		s.waiting = slices.Delete(s.waiting, at, at+1)
		for _, w := range s.waiting {
			if w.arrival < r.arrival {
				w.overtaken++
			}
		}
		// Blocks for all known tokens are taken at once, so that a prompt under
		// way never waits for memory.
		r.blocks, r.overtaken, r.running, r.empty = s.blocksFor(r.known), 0, true, true
		s.freeBlocks -= r.blocks
		s.running = insert(s.running, r)
	}
	s.admitted = s.admitted[:0]
	for _, r := range s.running {
		if r.empty {
			r.empty = false
			s.admitted = append(s.admitted, r.id)
		}
	}
	return s.admitted
}

// next is the place in the queue of whoever is admitted next, or -1.
func (s *Scheduler) next() int {
	if s.paused || len(s.waiting) == 0 || len(s.running) >= s.limits.Sequences {
		return -1
	}
	// Who was overtaken too often is not passed again, the oldest of them first.
	patient := -1
	for i, r := range s.waiting {
		if r.overtaken >= overtakes*s.limits.Sequences && (patient < 0 || r.arrival < s.waiting[patient].arrival) {
			patient = i
		}
	}
	room := s.freeBlocks - s.reserve()
	if patient >= 0 {
		if s.blocksFor(s.waiting[patient].known) > room {
			return -1
		}
		return patient
	}
	return slices.IndexFunc(s.waiting, func(r *request) bool { return s.blocksFor(r.known) <= room })
}

// reserve is a block for every running request that is about to grow into one:
// whoever is admitted into the last blocks would be the first to lose them.
func (s *Scheduler) reserve() int {
	size, n := s.limits.BlockTokens, 0
	for _, r := range s.running {
		if tail := r.blocks*size - r.known; 4*tail < size && r.blocks < s.blocksFor(s.limits.ContextTokens) {
			n++
		}
	}
	return n
}

// Restored records that a running request, of which nothing was computed,
// begins with so many tokens in KV. At least its newest token is left to be
// computed.
func (s *Scheduler) Restored(id ID, tokens int) error {
	r := s.all[id]
	if r == nil || !r.running || r.computed > 0 {
		return fmt.Errorf("restore %d tokens of request %d, which has already started: %w", tokens, id, ErrUnknown)
	}
	if tokens < 0 || tokens >= r.known {
		return fmt.Errorf("restore %d of the %d tokens of request %d, but at least one must be computed: %w", tokens, r.known, id, ErrTooLong)
	}
	r.computed = tokens
	return nil
}

// Prompts proposes the pieces of prompts for the next plan: so many tokens in
// all, the oldest prompt first. The rows are good until the next call; they may
// be cut shorter or left out.
func (s *Scheduler) Prompts(tokens int) []Row {
	s.pieces = s.pieces[:0]
	oldest := s.underWay()
	if s.paused || oldest == nil {
		return nil
	}
	passing := 0
	for passing < len(s.prompts) && overtaking(s.prompts[passing], oldest) {
		passing++
	}
	share := tokens
	if passing > 0 {
		share = (tokens + s.turn) / 2
	}
	spare := tokens - s.propose(oldest, share)
	own := tokens - spare
	for _, r := range s.prompts[:passing] {
		spare -= s.propose(r, spare)
	}
	if own == 0 {
		spare -= s.propose(oldest, spare)
	} else {
		s.pieces[0] = s.piece(oldest, own+spare)
		spare -= s.pieces[0].Length - own
	}
	for _, r := range s.prompts[passing:] {
		spare -= s.propose(r, spare)
	}
	return s.pieces
}

// underWay is the oldest prompt; prompts are the others, those that may overtake
// it first.
func (s *Scheduler) underWay() *request {
	s.prompts = s.prompts[:0]
	oldest := 0
	for _, r := range s.running {
		if r.left() == 0 || r.answers() || r.done() {
			continue
		}
		s.prompts = append(s.prompts, r)
		if n := len(s.prompts) - 1; r.arrival < s.prompts[oldest].arrival {
			oldest = n
		}
	}
	if len(s.prompts) == 0 {
		return nil
	}
	r := s.prompts[oldest]
	s.prompts = slices.Delete(s.prompts, oldest, oldest+1)
	slices.SortFunc(s.prompts, func(a, b *request) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.left(), b.left()), cmp.Compare(a.arrival, b.arrival))
	})
	return r
}

// overtaking reports whether a prompt may share the oldest one's steps.
func overtaking(r, oldest *request) bool {
	return r.priority > oldest.priority || r.priority == oldest.priority && r.left() < oldest.left()
}

// propose adds a piece of at most so many tokens, and says how many they are.
func (s *Scheduler) propose(r *request, tokens int) int {
	if tokens < 1 {
		return 0
	}
	p := s.piece(r, tokens)
	s.pieces = append(s.pieces, p)
	return p.Length
}

// piece of a prompt, of at most so many tokens.
func (s *Scheduler) piece(r *request, tokens int) Row {
	n := min(r.left(), tokens)
	if b := s.limits.Boundary; b > 0 {
		n = min(n, b-r.computed%b)
	}
	return Row{ID: r.id, Start: r.computed, Length: n, Sample: n == r.left()}
}

// Plan decides the next step: every answer's newest token, and beside them the
// given pieces of prompts, as Prompts proposed them or shorter. A piece whose
// request had to give its blocks to answers is left out. An empty step means
// that there is nothing to do.
func (s *Scheduler) Plan(pieces ...Row) Step {
	step := Step{Rows: make([]Row, 0, len(s.running))}
	for i := 0; i < len(s.running); i++ {
		r := s.running[i]
		if r.done() {
			continue
		}
		// A prompt has blocks for all it knows, unless it was an answer whose KV
		// was forgotten.
		if !s.extend(r, r.known, &step) {
			break // r itself was the last and is waiting again
		}
		if r.answers() {
			step.Rows = append(step.Rows, Row{ID: r.id, Start: r.computed, Length: 1, Sample: true})
		}
	}
	if s.paused {
		return step
	}
	for _, p := range pieces {
		if r := s.all[p.ID]; r != nil && r.running && !r.answers() && r.computed == p.Start && p.Length > 0 {
			step.Rows = append(step.Rows, s.piece(r, p.Length))
		}
	}
	s.turn = 1 - s.turn
	return step
}

func (s *Scheduler) blocksFor(tokens int) int {
	return (tokens + s.limits.BlockTokens - 1) / s.limits.BlockTokens
}

// extend makes room for tokens of r, taking blocks from the last in order
// where none is free. It reports false when r had to give way itself.
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

// preempt sends the last running request back to its place in the queue.
func (s *Scheduler) preempt(r *request, step *Step) {
	s.running = s.running[:len(s.running)-1]
	s.freeBlocks += r.blocks
	r.blocks, r.computed, r.running, r.empty = 0, 0, false, false
	s.waiting = insert(s.waiting, r)
	step.Preempted = append(step.Preempted, r.id)
}

// Computed records that a row of a step is in KV.
func (s *Scheduler) Computed(row Row) error {
	r := s.all[row.ID]
	if r == nil || r.computed != row.Start {
		return fmt.Errorf("computed row of request %d at %d: %w", row.ID, row.Start, ErrUnknown)
	}
	r.computed += row.Length
	return nil
}

// Forget records that nothing of a request is in KV any more. It keeps its
// place and its blocks, and is computed again from its first token; the next
// Admit names it.
func (s *Scheduler) Forget(id ID) {
	if r := s.all[id]; r != nil {
		r.computed, r.empty = 0, r.running
	}
}

// Redo sets the number of a request's known tokens and has the newest of them computed again:
// the token that followed it does not count.
func (s *Scheduler) Redo(id ID, known int) error {
	r := s.all[id]
	if r == nil || !r.running || known < 1 || known > r.known || r.computed < known-1 {
		return fmt.Errorf("compute token %d of request %d again: %w", known, id, ErrUnknown)
	}
	r.known, r.computed = known, known-1
	return nil
}

// InKV says how many tokens of a request are in KV; unknown ones have none.
func (s *Scheduler) InKV(id ID) int {
	if r := s.all[id]; r != nil {
		return r.computed
	}
	return 0
}

// Grow records one new token of the answer. The caller ends requests that
// reach the context's end.
func (s *Scheduler) Grow(id ID) error {
	r := s.all[id]
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
	r := s.all[id]
	if r == nil {
		return
	}
	delete(s.all, id)
	if r.running {
		s.freeBlocks += r.blocks
		s.running = without(s.running, r)
		return
	}
	s.waiting = without(s.waiting, r)
}

// insert puts a request into its place in order.
func insert(list []*request, r *request) []*request {
	at, _ := slices.BinarySearchFunc(list, r, order)
	return slices.Insert(list, at, r)
}

// without takes a request out of a list in order.
func without(list []*request, r *request) []*request {
	if at, ok := slices.BinarySearchFunc(list, r, order); ok {
		return slices.Delete(list, at, at+1)
	}
	return list
}
