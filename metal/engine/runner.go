package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// inflightStep is a step that the back end computes. If the back end allows it, the next
// step is built on the tokens of this one before they are read, so that the host works
// while the device does. The end of an answer is then seen one step late: the row that was
// computed for nothing is dropped when its step completes, and its memory returned then.
type inflightStep struct {
	step  batch.Step
	scope tensor.Scope
	// out holds token ids if every row takes the largest logit, and logits otherwise; nil
	// if no row samples.
	out    tensor.Array
	argmax bool
	// began is when it was built, started when the back end had all of it. ahead is true
	// if the step before it was not read by then.
	began, started time.Time
	ahead          bool
	// sampled sequences are those whose rows yield a token, from the logits in the rows
	// last of out.
	sampled []batch.ID
	last    []int
	// promptRows has for each row of the step the logits that rank tokens of a prompt, and
	// promptLogprobs the results, which took ranking to compute.
	promptRows     []promptRows
	promptLogprobs []promptLogprobs
	ranking        time.Duration
	// needed bytes of its prefill chunks, as the guard estimates them.
	needed int64
	// counted is true if the scheduler has the tokens of this step already, because the
	// next one was built on them.
	counted bool
	// states of the last tokens of each row, from the row of them in stateRows on, and hidden
	// the same once they are read; nil without a draft head.
	states    tensor.Array
	stateRows []int
	hidden    []float32
	// ended sequences have a row here and no longer want it. The rows of those in
	// resampled were built on a token that is sampled again.
	ended, resampled []*sequence
}

// buildTime is how long the host took to hand the step to the back end.
func (f *inflightStep) buildTime() time.Duration { return f.started.Sub(f.began) }

// duration is how long a step that completes now would have taken by itself, again and
// again: completed is when the one before it did, next the one that was built on it, if
// any. If the device was done by the time that next was built, it is not the building of
// next that counts but its own. The first step of several waited while the next was built;
// the last was built while the one before it computed, and seems to take no time.
func (f *inflightStep) duration(completed, now time.Time, next *inflightStep) time.Duration {
	between := now.Sub(completed)
	switch {
	case f.ahead && next != nil && 8*now.Sub(next.started) < between:
		return between - next.buildTime() + f.buildTime()
	case f.ahead && next != nil:
		return between
	case f.ahead:
		return max(between, f.buildTime())
	case next != nil:
		return now.Sub(f.began) - next.buildTime()
	}
	return now.Sub(f.began)
}

// runner computes steps of the model: it builds them, and reads and samples their results.
type runner struct {
	*sequences
	backend tensor.Backend
	model   arch.Model
	// drafter is the model if it has a draft head, whose states are hidden wide; nil without.
	drafter arch.Drafter
	hidden  int
	// adapters of the model by name.
	adapters map[string]*nn.Adapter
	// hard ends the step that runs.
	hard     context.Context
	samplers *samplers
	// vocabulary is how many of the logits are of tokens.
	vocabulary int
	// maxRows is the largest number of rows of logits that is kept space for.
	maxRows int
	logits  []float32
	// usual is how many logits they have at most.
	usual int
	// axes is true if tokens of images turn by more than their position.
	axes bool
}

// dispatch builds a step and hands it to the back end. Its input is known tokens, or what
// the step before it yields. All handles except the result are released when it returns.
func (r *runner) dispatch(step batch.Step, before *inflightStep) (*inflightStep, error) {
	f := &inflightStep{step: step, began: time.Now(), argmax: true, ahead: before != nil}
	ids, segments, rows := r.inputs(f, before)
	f.scope = r.backend.NewScope(r.hard)
	inner := f.scope.Child()
	defer inner.Close()
	out, states := r.step(r.adapted(inner, step), before.followedBy(inner, step, ids), segments, rows, f, before)
	if inner.Err() != nil {
		out, states = nil, nil
	}
	if out != nil && f.argmax {
		out = inner.Argmax(out, r.width(out))
	}
	if out != nil {
		f.out = inner.Keep(out)
	}
	if states != nil {
		f.states = inner.Keep(states)
	}
	inner.Close() // before anything is computed: arrays without a handle are reused
	switch {
	case f.out != nil && f.states != nil:
		f.scope.Start(f.out, f.states)
	case f.out != nil:
		f.scope.Start(f.out)
	}
	if err := f.scope.Err(); err != nil {
		f.scope.Close()
		return nil, err
	}
	f.started = time.Now()
	return f, nil
}

// step runs the model on the tokens of a step, of which some may be of images. states are
// those of its last tokens, if there is a draft head.
func (r *runner) step(s tensor.Scope, ids tensor.Array, segments []tensor.Segment, rows []int, f, before *inflightStep) (logits, states tensor.Array) {
	var sight nn.Sight
	m, ok := r.model.(arch.Seeing)
	sees := ok && r.sees(f.step)
	if sees {
		sight = r.sight(s, f.step)
	}
	switch {
	case r.drafter != nil:
		return r.drafter.StepDrafting(s, r.kv, ids, segments, rows, sight, r.drafting(s, f, before))
	case sees:
		return m.StepSeeing(s, r.kv, ids, segments, rows, sight), nil
	}
	return r.model.Step(s, r.kv, ids, segments, rows), nil
}

// sees reports whether a sequence of the step has images.
func (r *runner) sees(step batch.Step) bool {
	return slices.ContainsFunc(step.Rows, func(row batch.Row) bool { return r.byID[row.ID].images != nil })
}

// inputs are the known tokens of a step, where they belong, and the positions whose logits
// are wanted. The masks of constrained rows are begun.
func (r *runner) inputs(f, before *inflightStep) (ids []int32, segments []tensor.Segment, rows []int) {
	n := 0
	for _, row := range f.step.Rows {
		s := r.byID[row.ID]
		if before == nil || !row.Decode() { // else the step before yields it
			ids = append(ids, s.tokens[row.Start:row.Start+row.Length-row.Drafts]...)
		}
		if row.Drafts > 0 {
			ids, f.argmax = append(ids, s.draft.token), false
		}
		segments = append(segments, tensor.Segment{Request: tensor.RequestID(row.ID), Start: row.Start, Length: row.Length, Draft: row.Drafts})
		first, count := s.promptLogits(row)
		f.promptRows = append(f.promptRows, promptRows{first, count, len(rows)})
		for i := range count {
			rows = append(rows, n+first-row.Start+i)
			f.argmax = false
		}
		n += row.Length
		if row.Sample {
			f.sampled, f.last = append(f.sampled, row.ID), append(f.last, len(rows))
			for i := n - 1 - row.Drafts; i < n; i++ {
				rows = append(rows, i)
			}
			f.argmax = f.argmax && s.deviceSamples()
			s.constraint.Prepare()
		}
	}
	return ids, segments, rows
}

// followedBy are the token ids of the step after f: what f yields for the sequences that
// decode, if there is an f, and known tokens after them.
func (f *inflightStep) followedBy(s tensor.Scope, step batch.Step, ids []int32) tensor.Array {
	if f == nil {
		return s.IDs(ids)
	}
	var rows []int
	for at, id := range f.sampled {
		if len(rows) < len(step.Rows) && step.Rows[len(rows)].ID == id {
			rows = append(rows, at)
		}
	}
	if len(ids) == 0 && len(rows) == len(f.sampled) {
		return f.out
	}
	return s.JoinIDs(f.out, rows, ids)
}

// width is how many of the logits are of tokens.
func (r *runner) width(logits tensor.Array) int { return min(logits.Shape()[1], r.vocabulary) }

// read waits for a step and returns what its sampled rows yield, in their order.
func (r *runner) read(f *inflightStep) ([]sampled, error) {
	if f.out == nil {
		f.scope.Wait()
		r.readStates(f)
		return nil, f.scope.Err()
	}
	defer r.readStates(f)
	shape := f.out.Shape()
	if f.argmax {
		r.shrink()
		ids := make([]int32, shape[0])
		f.scope.ReadIDs(f.out, ids)
		return deviceSampled(ids), f.scope.Err()
	}
	width, use := shape[1], r.width(f.out)
	flat := r.space(shape[0], width)
	f.scope.Read(f.out, flat)
	if err := f.scope.Err(); err != nil {
		return nil, err
	}
	logits := func(row int) []float32 { return flat[row*width:][:use] }
	if shape[0] > len(f.sampled)+f.step.Drafts() {
		r.samplers.rankPrompts(f, r.byID, logits)
	}
	all, at := r.samplers.sampleStep(f, r.byID, logits), 0
	for _, row := range f.step.Rows {
		if row.Drafts > 0 {
			all[at].then = logits(f.last[at] + 1)
		}
		if row.Sample {
			at++
		}
	}
	return all, nil
}

// deviceSampled are the tokens that the device chose.
func deviceSampled(ids []int32) []sampled {
	out := make([]sampled, len(ids))
	for i, id := range ids {
		out[i].token = id
		if id < 0 {
			out[i].err = fmt.Errorf("the largest logit is not a finite number: %w", sample.ErrLogits)
		}
	}
	return out
}

// space for rows of logits. It is kept for the next step, unless a prompt that was ranked
// made it larger than steps need.
func (r *runner) space(rows, width int) []float32 {
	if r.usual = r.maxRows * width; rows*width <= r.usual {
		r.shrink()
	}
	if cap(r.logits) < rows*width {
		r.logits = make([]float32, rows*width)
	}
	return r.logits[:rows*width]
}

// shrink gives up the space that is larger than steps need, before a step or a wait that uses none.
func (r *runner) shrink() {
	if cap(r.logits) > r.usual {
		r.logits = nil
	}
}
