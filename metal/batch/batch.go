// Package batch is the scheduler of the engine: it decides what the next forward
// pass computes. It is pure: it uses no tensors, clocks or goroutines.
//
// It owns the queue of requests, admission by free KV blocks, and the content of
// every step. There are no separate prefill and decode phases, only computed
// tokens that must catch up with known ones: each step has a row for every
// decoding request first, and then prefill chunks with a bounded number of tokens.
// Submit refuses requests that can never run, and requests over the queue's limit.
//
// Admission: requests wait by priority; of one priority, the tenant with the fewest
// running requests is next, of those that run none the one that has waited for longest,
// and then the earliest arrival. A request that does not fit may be overtaken by later
// ones that do, but only a limited number of times; then no other of its tenant, or of
// one whose turn is not before, is admitted before it, except a later one of another
// tenant next to which it fits as well.
// If decoding fills the cache, a request of the lowest priority loses its blocks, the
// youngest of the tenant that runs the most, and is computed again later; its sampled
// tokens stay, and cached prefixes are restored.
//
// A tenant uses all sequences while no other waits. For a tenant that waits and
// runs none, one that runs several gives way (Yield), before its prompt is
// computed or after it has generated enough that the work of computing it again is
// small, within a bound, or was idle for as long. After a longer turn the only request of a tenant gives way, too, and a large one at once to a
// small one while nothing of it is computed and the prompt of another large one is.
// For a while one that gave way leaves one place to others. After a large request for which small ones of
// another tenant waited these have a longer turn: they are first, except in the last place, and give way one
// at a time. With one sequence, a tenant that has waited for another has for as long the sequence at once
// whenever it has run for less (owed.go).
//
// Prefill: one prompt, the head, advances first until it is done, except that
// prompts whose rest costs less or of a higher priority may take half of the time of each
// step; their tenants take turns at being first. So a short prompt does not wait for a long
// one, nor for shorter ones of another tenant, and the long one takes at most twice
// its time. The next head is the oldest prompt of the tenant that has
// had the least prefill: many long prompts of one tenant delay a prompt of
// another by one of them. All this counts what tokens cost, which grows with their
// context (Weigh). Next to decoding, later steps make up for a chunk that
// exceeds what it should be, because no row divides an image.
//
// A decoding request whose newest token is computed and whose next one is not yet
// known keeps its place and its blocks, and has no row.
//
// In each iteration the caller calls Yield, Admit, then Restored for cached prefixes,
// ProposeChunks, from which a memory guard may cut or drop chunks, and Plan. If
// CanPipeline returns true, the next step may be built while one is in flight.
//
// Start reading at Scheduler.Plan. admission.go decides which requests run, prefill.go
// which chunks are proposed; share.go and owed.go have the shares of tenants; pipeline.go looks one
// step ahead. Pace.Tokens limits prefill next to decoding, with the step times of
// measured.go; work.go has the inputs of both.
package batch

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Errors that callers test for.
var (
	// ErrQueueFull means that the queue has no room for another request.
	ErrQueueFull = errors.New("queue is full")
	// ErrTooLong means that a request can never run under these limits.
	ErrTooLong = errors.New("request exceeds the context length")
	// errUnknown means that no request with this ID is running or waiting.
	errUnknown = errors.New("unknown request")
	// errKnown means that a request with this ID is already running or waiting.
	errKnown = errors.New("request already exists")
)

// ID identifies a request. Running and waiting requests have distinct IDs.
type ID int64

// Limits bound the requests of one engine.
type Limits struct {
	// ContextTokens is the maximum length of a request, prompt and output
	// together.
	ContextTokens int
	// CacheTokens is the size of the KV cache in tokens, shared by all running
	// requests.
	CacheTokens int
	// BlockTokens is the size of a KV block in tokens.
	BlockTokens int
	// Sequences is the maximum number of running requests, Queue that of
	// waiting ones.
	Sequences, Queue int
	// Boundary, unless 0: no row crosses a multiple of it, because the state of
	// recurrent layers must be saved there and cannot be cut out later. Only a run of
	// Request.Whole does; that state is then not saved.
	Boundary int
	// Chunk, unless 0, is the maximum number of prefill tokens in a step.
	Chunk int
	// Turn is how many tokens a request generates at least before it gives way to
	// another tenant.
	Turn int
}

// Request describes a request to the scheduler.
type Request struct {
	ID ID
	// Prompt is the number of tokens of the prompt.
	Prompt int
	// Priority: requests with a higher one run first.
	Priority int
	// Tenant whose request it is; empty if there is one tenant.
	Tenant string
	// Tokens is the maximum number of output tokens. A request that has them
	// gets no more rows. 0 means that only Remove ends it.
	Tokens int
	// Whole are runs of the prompt that one row has to contain, even if it becomes longer
	// than it should be and crosses a Boundary: images whose tokens see one another. They
	// are in ascending order.
	Whole []Span
	// Chunk is the maximum number of tokens of its prompt in one row; 0 is no maximum.
	Chunk int
}

type request struct {
	id       ID
	priority int
	tenant   *tenant
	// arrival numbers requests; a preempted request keeps its number.
	arrival int64
	// known counts the tokens of prompt and output, computed those of them that
	// are in the KV cache. The first prompt ones are the prompt. It is done at maxTokens, unless that is 0.
	known, computed, maxTokens int
	prompt, blocks             int
	// turn counts the tokens that were generated since the request last began to run, and
	// those that Idle counts.
	turn int
	// whole are runs of the prompt that no row may divide.
	whole []Span
	// maxChunk of a row of the prompt.
	maxChunk int
	// overtaken counts the later requests that were admitted while it waited.
	overtaken int
	running   bool
	// began is Scheduler.worked when it was last admitted.
	began time.Duration
	// large: it was admitted while much smaller ones of other tenants waited.
	large bool
	// empty: the request runs with nothing in the KV cache, and Admit has not
	// returned it yet.
	empty bool
}

func (r *request) left() int { return r.known - r.computed }

// decodes reports whether only the newest token remains to be computed, and the whole prompt is. The last
// token of a prompt is a chunk, however much was restored: it may be of an image, and needs memory.
func (r *request) decodes() bool { return r.computed >= r.prompt && r.left() == 1 && !r.done() }

// prefills reports whether tokens of the prompt remain to be computed, or several of the answer.
func (r *request) prefills() bool { return r.left() > 0 && !r.decodes() && !r.done() }

// done reports whether the request has all its output tokens.
func (r *request) done() bool { return r.maxTokens > 0 && r.known >= r.maxTokens }

// order sorts by priority, then by arrival.
func order(a, b *request) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.arrival, b.arrival))
}

// Scheduler holds the running and waiting requests of one engine. It is not
// safe for concurrent use.
type Scheduler struct {
	limits  Limits
	all     map[ID]*request
	tenants map[string]*tenant
	// running and waiting are sorted by order.
	running, waiting []*request
	freeBlocks       int
	arrivals         int64
	paused           bool
	// favored is a waiting request that others gave way to; the next Admit takes it first.
	favored *request
	// worked is how long all steps took, each at least sparedStep. Before it is spared, small requests are
	// spared: no two of a tenant give way to one, and they are admitted before large ones, except in the last place.
	worked, spared time.Duration
	// catching: before worked is that, tenants that are owed time catch up.
	catching time.Duration
	// head is the prompt that advances first. headStart is how much a tenant has had at least: the prefilled of
	// the head's when that was chosen, and from then on its part of what is computed.
	head      *request
	headStart int64
	// growth of the cost of a token, see Weigh.
	growth float64
	// plans counts the plans while prefill is not paused: every second one gives the odd token of a shared step
	// to the head. passing is the first of the prompts that may share the head's step; nil for none.
	plans   int64
	passing *request
	// passes is what the halves of all steps cost that prompts might share.
	passes int64
	// budget is what the last chunks might cost together, and excess how much more was
	// planned than that, for runs that no row divides, less what later steps left out.
	budget, excess int64
	// turns counts when tenants began to wait, see tenant.since.
	turns int64
	// Buffers of Admit, ProposeChunks and Work.
	admitted []ID
	prompts  []*request
	chunks   []Row
	spans    []Span
}

// New returns an empty scheduler.
func New(l Limits) (*Scheduler, error) {
	if l.ContextTokens < 1 || l.BlockTokens < 1 || l.Sequences < 1 || l.Queue < 0 || l.CacheTokens < l.ContextTokens || l.Boundary < 0 {
		return nil, fmt.Errorf("invalid batch limits %+v", l)
	}
	return &Scheduler{limits: l, all: map[ID]*request{}, tenants: map[string]*tenant{}, freeBlocks: (l.CacheTokens + l.BlockTokens - 1) / l.BlockTokens}, nil
}

// Submit adds a request to the queue. It returns ErrTooLong, errKnown or
// ErrQueueFull.
func (s *Scheduler) Submit(r Request) error {
	if r.Prompt < 1 || r.Prompt > s.limits.ContextTokens {
		return fmt.Errorf("prompt of %d tokens in a context of %d: %w", r.Prompt, s.limits.ContextTokens, ErrTooLong)
	}
	if s.all[r.ID] != nil {
		return fmt.Errorf("submit request %d: %w", r.ID, errKnown)
	}
	if len(s.waiting) >= s.limits.Queue && len(s.all) >= s.limits.Sequences+s.limits.Queue {
		return fmt.Errorf("%d requests are running and %d are waiting: %w", len(s.running), len(s.waiting), ErrQueueFull)
	}
	s.arrivals++
	n := &request{id: r.ID, priority: r.Priority, tenant: s.tenantOf(r.Tenant), arrival: s.arrivals, known: r.Prompt, prompt: r.Prompt, whole: r.Whole, maxChunk: r.Chunk}
	if n.maxChunk < 1 {
		n.maxChunk = math.MaxInt
	}
	if r.Tokens > 0 {
		n.maxTokens = r.Prompt + r.Tokens
	}
	s.all[r.ID] = n
	s.enqueue(n)
	return nil
}

// PausePrefill stops prefill and admission while paused; decoding continues.
func (s *Scheduler) PausePrefill(paused bool) { s.paused = paused }

// Running returns the number of running requests.
func (s *Scheduler) Running() int { return len(s.running) }

// Waiting returns the number of waiting requests.
func (s *Scheduler) Waiting() int { return len(s.waiting) }

// Decodes returns the number of requests whose newest token the next plan
// computes.
func (s *Scheduler) Decodes() int {
	n := 0
	for _, r := range s.running {
		if r.decodes() {
			n++
		}
	}
	return n
}

// FreeTokens is the number of tokens that the free KV blocks can hold.
func (s *Scheduler) FreeTokens() int {
	all := (s.limits.CacheTokens + s.limits.BlockTokens - 1) / s.limits.BlockTokens
	return max(0, s.limits.CacheTokens-(all-s.freeBlocks)*s.limits.BlockTokens)
}

// IDs lists all requests, running ones first.
func (s *Scheduler) IDs() []ID {
	ids := make([]ID, 0, len(s.all))
	for _, list := range [][]*request{s.running, s.waiting} {
		for _, r := range list {
			ids = append(ids, r.id)
		}
	}
	return ids
}

// Plan returns the next step: the newest token of every decoding request, then
// the given prefill chunks, which are those of ProposeChunks, possibly
// shortened. It drops the chunk of a request that it preempts to make room for
// decoding. An empty step means that there is nothing to compute.
func (s *Scheduler) Plan(pieces ...Row) Step {
	step := Step{Rows: make([]Row, 0, len(s.running))}
	s.extend(&step)
	for _, r := range s.running {
		if r.decodes() {
			step.Rows = append(step.Rows, Row{ID: r.id, Start: r.computed, Length: 1, Sample: true})
		}
	}
	if s.paused {
		return step
	}
	planned := int64(0)
	for _, p := range pieces {
		if r := s.all[p.ID]; r != nil && r.running && !r.decodes() && r.computed == p.Start && p.Length > 0 {
			row := s.chunk(r, p.Length)
			r.tenant.prefilled = s.prefilled(r.tenant) + s.cost(row)
			if r == s.passing {
				r.tenant.passed = s.passes + max(0, s.cost(row)-s.budget/2)
			}
			step.Rows = append(step.Rows, row)
			planned += s.cost(row)
		}
	}
	step.Shared = slices.ContainsFunc(step.Rows, func(r Row) bool { return s.all[r.ID].tenant != s.all[step.Rows[0].ID].tenant })
	s.excess = max(0, s.excess+planned-s.budget)
	s.passes += s.budget / 2
	s.plans++
	s.rise(planned)
	s.worked += sparedStep
	return step
}

func (s *Scheduler) blocksFor(tokens int) int {
	return (tokens + s.limits.BlockTokens - 1) / s.limits.BlockTokens
}

// extend allocates blocks for the known tokens of all running requests, and preempts some if too few
// are free. A request in prefill has its blocks, unless it was decoding before Forget.
func (s *Scheduler) extend(step *Step) {
	for i := 0; i < len(s.running); {
		r := s.running[i]
		switch {
		case r.done() || s.blocksFor(r.known) <= r.blocks:
			i++
		case s.freeBlocks > 0:
			s.freeBlocks--
			r.blocks++
		default:
			last := s.last()
			s.preempt(last)
			step.Preempted = append(step.Preempted, last.id)
			i = 0
		}
	}
}

// last is the running request that is preempted first: of the lowest priority, of these one of the
// tenant that runs the most, and the youngest of them. If it were the youngest of all, a long prompt of
// one tenant would be computed in vain, again and again, next to answers of another that grow.
func (s *Scheduler) last() *request {
	last := s.running[len(s.running)-1]
	for _, r := range slices.Backward(s.running) {
		if r.priority == last.priority && r.tenant.running > last.tenant.running {
			last = r
		}
	}
	return last
}

// preempt moves a running request back into the queue.
func (s *Scheduler) preempt(r *request) {
	s.running = without(s.running, r)
	s.freeBlocks += r.blocks
	r.blocks, r.computed, r.running, r.empty = 0, 0, false, false
	r.tenant.running--
	s.stopped(r)
	s.waits(r.tenant)
	s.enqueue(r)
	s.spare(r)
}

// Computed records that the tokens of a row are in the KV cache.
func (s *Scheduler) Computed(row Row) error {
	r := s.all[row.ID]
	if r == nil || r.computed != row.Start {
		return fmt.Errorf("computed row of request %d at %d: %w", row.ID, row.Start, errUnknown)
	}
	r.computed += row.Length
	return nil
}

// Forget records that nothing of a request is in the KV cache any more. The
// request keeps its place and its blocks and is computed again from the first
// token; the next Admit returns it.
func (s *Scheduler) Forget(id ID) {
	if r := s.all[id]; r != nil {
		r.computed, r.empty = 0, r.running
	}
}

// Redo sets the number of known tokens of a request and marks the newest of
// them as not computed, which discards the tokens after it.
func (s *Scheduler) Redo(id ID, known int) error {
	r := s.all[id]
	if r == nil || !r.running || known < 1 || known > r.known || r.computed < known-1 {
		return fmt.Errorf("compute token %d of request %d again: %w", known, id, errUnknown)
	}
	r.known, r.computed = known, known-1
	return nil
}

// InKV returns the number of tokens of a request that are in the KV cache, 0
// for unknown requests.
func (s *Scheduler) InKV(id ID) int {
	if r := s.all[id]; r != nil {
		return r.computed
	}
	return 0
}

// Grow records a new output token. The caller ends requests that reach the
// context length.
func (s *Scheduler) Grow(id ID) error {
	r := s.all[id]
	if r == nil {
		return fmt.Errorf("grow request %d: %w", id, errUnknown)
	}
	if r.known >= s.limits.ContextTokens {
		return fmt.Errorf("request %d has %d tokens: %w", id, r.known, ErrTooLong)
	}
	r.known++
	r.turn++
	return nil
}

// Idle counts tokens towards the turn of a running request that generates none: it gives way
// to another tenant as if it had generated them.
func (s *Scheduler) Idle(id ID, tokens int) {
	if r := s.all[id]; r != nil && r.running {
		r.turn += tokens
	}
}

// Remove ends a running or waiting request; unknown IDs are ignored.
func (s *Scheduler) Remove(id ID) {
	r := s.all[id]
	if r == nil {
		return
	}
	delete(s.all, id)
	s.spare(r)
	defer s.leave(r.tenant)
	if r.running {
		r.tenant.running--
		s.stopped(r)
		s.waits(r.tenant)
		s.freeBlocks += r.blocks
		s.running = without(s.running, r)
		return
	}
	r.tenant.waiting--
	s.waiting = without(s.waiting, r)
}

// insert adds a request to a sorted list.
func insert(list []*request, r *request) []*request {
	at, _ := slices.BinarySearchFunc(list, r, order)
	return slices.Insert(list, at, r)
}

// without removes a request from a sorted list.
func without(list []*request, r *request) []*request {
	if at, ok := slices.BinarySearchFunc(list, r, order); ok {
		return slices.Delete(list, at, at+1)
	}
	return list
}
