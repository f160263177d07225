package engine

import (
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// sequence is an admitted request to generate text. After admission it belongs to the loop.
type sequence struct {
	id     batch.ID
	stream *Stream
	// cancelled is set by any goroutine and read between steps.
	cancelled *atomic.Bool
	// owner is the tenant whose request it is, or the client where there is one tenant.
	owner string
	// tokens of the prompt and of the answer; the first prompt ones are the prompt.
	tokens    []int32
	prompt    int
	maxTokens int
	// clamped is true if maxTokens is the room in the context and not the limit of the
	// request.
	clamped  bool
	priority int
	// adapter by name; empty means the model alone.
	adapter string
	ends    endTokens
	params  sample.Params
	counts  sample.Counts
	// logprobs is the number of alternatives wanted for each token; nil if none are.
	logprobs *int
	// progress of the prompt is reported.
	progress bool
	echo     echo
	output   *output.Assembler
	// constraint on the output, which came in the field constraintParam; nil if there is
	// none.
	constraint      *constraint.State
	constraintParam string
	// parked are the logits of a row that left its step because its mask was late.
	// What of that time has not counted as a part of its turn began at parkedAt.
	parked   []float32
	parkedAt time.Time
	// asked is true if the agent was asked for room, weighed if the guard let the prompt
	// begin.
	asked, weighed bool
	// unfitSince is when there was no memory for it to begin; zero if it did not wait. unfitRoom is the
	// memory that there was when it was weighed last.
	unfitSince time.Time
	unfitRoom  int64
	prefix     prefixState
	draft      draftState
	// images of the prompt; nil if there are none.
	images *promptImages
	// tools are the bytes of its schemas, nil if there are none, and held those of its prompt.
	tools, held *heldBytes
}

// echo is the state of a prompt that is returned to the client.
type echo struct {
	// logprobs is true if the log-probabilities of its tokens are wanted; returned is the
	// number of tokens that have been returned.
	logprobs bool
	returned int
	// only is true if nothing is generated.
	only bool
}

// prefixState is what a sequence has in the prefix cache.
type prefixState struct {
	salt kv.Salt
	// chain of keys of its blocks, and the blocks that it has pinned.
	chain *kv.Chain
	pins  []kv.Pinned
	// saved whole blocks; the next ones are staged.
	saved  int
	staged bool
	// disabled is true if no more blocks are saved.
	disabled bool
	// looked is true after the first lookup, which found cached tokens.
	looked bool
	cached int
}

// begin notes how many tokens of the prompt were restored at the first lookup, and
// reports that, if progress is wanted.
func (s *sequence) begin(cached int) {
	if s.prefix.looked {
		return
	}
	s.prefix.looked, s.prefix.cached = true, cached
	if s.progress {
		s.stream.pushProgress(Progress{Processed: cached, Cached: cached})
	}
}

func (s *sequence) generated() int { return len(s.tokens) - s.prompt }

// wantsPromptLogprobs reports whether log-probabilities of the prompt are still to be
// computed. Cached prefixes have none, so all of the prompt is computed until then.
func (s *sequence) wantsPromptLogprobs() bool {
	return s.echo.logprobs && s.echo.returned < s.prompt
}

// sequences are those that the loop holds, with the scheduler and the KV cache that know
// them by the same ids.
type sequences struct {
	byID  map[batch.ID]*sequence
	sched *batch.Scheduler
	kv    tensor.Cache
}

// forget returns the memory of a sequence.
func (s *sequences) forget(id batch.ID) {
	s.sched.Remove(id)
	s.kv.Drop(tensor.RequestID(id))
}

// preempt drops the KV of a sequence that the scheduler took back to the queue.
func (s *sequences) preempt(id batch.ID) {
	s.byID[id].weighed, s.byID[id].parked, s.byID[id].unfitSince = false, nil, time.Time{}
	s.kv.Drop(tensor.RequestID(id))
}

// rewind drops what a failed step has written of a sequence. If a recurrent state moved on,
// that is all of it: the sequence is computed again from its first token, and the tokens
// that were sampled stay.
func (s *sequences) rewind(q *sequence) {
	id, computed := tensor.RequestID(q.id), s.sched.InKV(q.id)
	s.kv.Truncate(id, computed)
	if s.kv.Length(id) < computed {
		s.sched.Forget(q.id)
		q.weighed, q.parked = false, nil
	}
}
