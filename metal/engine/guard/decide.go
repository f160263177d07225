package guard

import (
	"metalfleet.dev/metalfleet/metal/footprint"
)

const (
	// safePermille of the limit is where prompts begin to be cut into smaller chunks.
	safePermille = 900
	// minChunk is the size of the smallest of them, in tokens.
	minChunk = 32
)

// Estimator computes what prompts take.
type Estimator interface {
	// Peak is the number of bytes that computing a prompt takes.
	Peak(footprint.Prefill) (int64, error)
	// Fit is the largest chunk with which the prompt fits into room bytes. ok is false
	// if not even floor tokens fit.
	Fit(p footprint.Prefill, room, floor int64) (chunk int64, ok bool)
}

// Room is the memory that the process holds now and may hold, in bytes.
type Room struct {
	// Held by the process without its pool; Cached of it are the prefix cache, KV that
	// of requests, and Pooled are in the back end's pool.
	Held, Cached, KV, Pooled int64
	// Own is the process's own limit, Limit the minimum of it and of what the
	// Mac can give; 0 means none.
	Own, Limit int64
	// CanAsk is true if the agent could unload something for this process.
	CanAsk bool
}

// Fits reports whether this many more bytes stay under the limit.
func (r Room) Fits(needed int64) bool { return r.Limit == 0 || needed <= r.Limit-r.Held }

// FitsAlone reports whether this many more bytes fit without the prefix cache and the KV of
// other requests.
func (r Room) FitsAlone(needed int64) bool { return r.Fits(needed - r.Cached - r.KV) }

// safe is how many more bytes may be taken without coming near the limit.
func (r Room) safe() int64 { return r.Limit/1000*safePermille - r.Held }

// worthAsking reports whether more room on the Mac would help and the agent could make
// some. Unloading other engines does not raise the process's own limit.
func (r Room) worthAsking(needed int64) bool {
	return r.CanAsk && (r.Own == 0 || r.Limit < r.Own && needed <= r.Own-r.Held)
}

// Chunk is the next part of a prompt.
type Chunk struct {
	// Rest of the prompt in tokens, after Start computed ones. The cache has Room for
	// this many tokens without growing.
	Rest, Start, Room int64
	// Max is the largest chunk of the back end, Full the one that the pace allows, and
	// Min the smallest one that is possible.
	Max, Full, Min int64
	// First is true if the guard has not let the prompt begin yet, AllLogits if each
	// token has logits.
	First, AllLogits bool
	// Asked, Shed and Reclaimed are true for remedies that were tried already.
	Asked, Shed, Reclaimed bool
}

// Verdict is the decision about a Chunk.
type Verdict struct {
	// Tokens to compute now; 0 if something else comes first, or nothing is possible.
	Tokens int64
	// Reclaim the pool, Shed bytes of the prefix cache, or Ask the agent for bytes, and
	// decide again.
	Reclaim   bool
	Shed, Ask int64
	// Over is true if the chunk does not fit and nothing is left to try.
	Over bool
	// Needed bytes.
	Needed int64
}

// Decide returns how much of a prompt to compute in the room there is. A prompt begins
// only with room for all of it at the back end's own chunk. After that, a chunk that
// would come near the limit shrinks, and only what does not fit at the smallest size is
// over. Before a prompt is cut or given up, pooled bytes in the way are reclaimed, the
// prefix cache shrinks, and the agent is asked for room, each once.
func Decide(r Room, c Chunk, est Estimator) (Verdict, error) {
	if r.Limit == 0 {
		return Verdict{Tokens: c.Full}, nil
	}
	prompt := footprint.Prefill{New: c.Rest, Cached: c.Start, Room: c.Room, Chunk: c.Max, AllLogits: c.AllLogits}
	whole, err := est.Peak(prompt)
	if err != nil {
		return Verdict{}, err
	}
	prompt.Chunk = c.Full
	least := max(minChunk, c.Min)
	tokens, clear := est.Fit(prompt, r.safe(), least)
	if !clear { // near the limit already: the smallest chunks, up to the limit itself
		tokens = min(least, c.Full)
	}
	prompt.Chunk = tokens
	needed, err := est.Peak(prompt)
	if err != nil {
		return Verdict{}, err
	}
	fits := r.Fits(needed)
	if c.First && !r.Fits(whole) {
		fits, needed = false, whole
	}
	switch {
	case !(fits && r.Fits(needed+r.Pooled)) && r.Pooled > 0 && !c.Reclaimed:
		return Verdict{Reclaim: true, Needed: needed}, nil
	case !fits && r.Cached > 0 && !c.Shed:
		return Verdict{Shed: needed - (r.Limit - r.Held), Needed: needed}, nil
	case (!fits || tokens < c.Full) && !c.Asked && r.worthAsking(whole):
		return Verdict{Ask: whole, Needed: needed}, nil
	case !fits:
		return Verdict{Over: true, Needed: needed}, nil
	}
	return Verdict{Tokens: tokens, Needed: needed}, nil
}
