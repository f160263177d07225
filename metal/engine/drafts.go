package engine

import (
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
)

const (
	// maxDrafting is the largest number of rows of a step with drafts. Few rows leave a
	// device waiting for weights, so that a second token for each costs little.
	maxDrafting = 4
	// draftTrial is how many drafts of a request are judged together. If too few are right,
	// the next draftPause tokens are computed one by one.
	draftTrial, draftPause = 32, 256
)

// drafter decides which rows of a step have a draft: a guess of the token after the newest
// one, which the step computes too. The request takes it if it is the token that is sampled
// anyway, so drafts change how long an answer takes and nothing else.
type drafter struct {
	*sequences
	head   arch.Drafter
	runner *runner
	costs  draftCosts
	// spent is what the head took for the step that is computed.
	spent time.Duration
}

// draftState is what a sequence has of drafts.
type draftState struct {
	// state of the newest token that was computed, if at tokens are computed.
	state []float32
	at    int
	// token is the draft of the step that is computed.
	token int32
	// made drafts of the current trial, of which some were right. No more are made before
	// resume tokens are generated.
	made, right, resume int
}

// judge counts a draft of a step that costs as much as this many steps without drafts.
func (d *draftState) judge(right bool, generated int, cost float64) {
	d.made++
	if right {
		d.right++
	}
	if d.made < draftTrial {
		return
	}
	if 1+float64(d.right)/draftTrial < cost {
		d.resume = generated + draftPause
	}
	d.made, d.right = 0, 0
}

// eligible reports whether a sequence may have drafts now. The draft head knows no adapters,
// and not where tokens of images stand.
func (s *sequence) eligible() bool {
	return s.adapter == "" && s.images == nil && s.generated() >= s.draft.resume
}

// pays reports whether the rows of a step, or those that will follow them, may have drafts:
// they are few, no prompt is computed with them, and right drafts would make up for what
// they cost.
func (d *drafter) pays(rows int) bool {
	return d != nil && rows > 0 && rows <= maxDrafting && len(d.sched.Work().Prompts) == 0 && d.costs.of(rows) < 2
}

// next reports whether the step after f is to have drafts, for which f must have completed.
func (d *drafter) next(f *inflightStep) bool {
	if !d.pays(len(f.sampled)) {
		return false
	}
	for _, id := range f.sampled {
		if s := d.byID[id]; s != nil && s.eligible() {
			return true
		}
	}
	return false
}

// propose adds drafts to the rows of a step, which the draft head computes first.
func (d *drafter) propose(step batch.Step) error {
	d.spent = 0
	if !d.pays(len(step.Rows)) {
		return nil
	}
	began := time.Now()
	defer func() { d.spent = time.Since(began) }()
	var rows []*batch.Row
	for i := range step.Rows {
		r := &step.Rows[i]
		s := d.byID[r.ID]
		if !r.Decode() || !s.eligible() || s.draft.at != r.Start {
			continue
		}
		if drafted, ok := d.sched.Draft(*r); ok {
			*r = drafted
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return d.compute(rows)
}

// compute has the draft head guess the tokens of rows.
func (d *drafter) compute(rows []*batch.Row) error {
	var ids []int32
	var before []float32
	var segments []tensor.Segment
	for _, r := range rows {
		s := d.byID[r.ID]
		ids, before = append(ids, s.tokens[r.Start]), append(before, s.draft.state...)
		segments = append(segments, tensor.Segment{Request: tensor.RequestID(r.ID), Start: r.Start, Length: 1})
	}
	sc := d.runner.backend.NewScope(d.runner.hard)
	defer sc.Close()
	inner := sc.Child()
	var drafts tensor.Array
	logits := d.head.Draft(inner, d.kv, inner.IDs(ids), segments, inner.From(before, len(rows), len(before)/len(rows)))
	if inner.Err() == nil {
		drafts = inner.Keep(inner.Argmax(logits, d.runner.width(logits)))
	}
	inner.Close()
	if err := sc.Err(); err != nil {
		return fmt.Errorf("draft: %w", err)
	}
	sc.ReadIDs(drafts, ids)
	if err := sc.Err(); err != nil {
		return fmt.Errorf("draft: %w", err)
	}
	for i, r := range rows {
		d.byID[r.ID].draft.token = max(0, ids[i]) // a guess that is no token is wrong like any other
	}
	return nil
}

// deliverDrafted gives a sequence the token of its row. What was computed of a wrong draft is
// dropped. After a right one, more is true if the answer continues with the token after it.
// row is the row of the step, and tokens[at] what was sampled for it.
func (l *loop) deliverDrafted(s *sequence, f *inflightStep, row int, tokens []sampled, at int) (more bool, err error) {
	r, t := f.step.Rows[row], tokens[at]
	right := t.err == nil && t.token == s.draft.token
	l.counters.drafts.Add(1)
	s.draft.judge(right, s.generated(), l.drafter.costs.of(len(f.step.Rows)))
	if err := l.sched.Computed(batch.Row{ID: r.ID, Start: r.Start, Length: 1, Sample: true}); err != nil {
		return false, err
	}
	f.keepState(s, row, right)
	if !right {
		l.rewind(s)
		l.deliver(s, f, tokens, at)
		return false, nil
	}
	l.counters.rightDrafts.Add(1)
	l.deliver(s, f, tokens, at)
	if l.byID[s.id] != s { // it ended with that token
		return false, nil
	}
	if err := l.sched.Computed(batch.Row{ID: r.ID, Start: r.Start + 1, Length: 1, Sample: true}); err != nil {
		return false, err
	}
	l.blocks.save(s)
	return true, nil
}

// deliverSeconds gives sequences the tokens after their right drafts, of which these are the
// logits.
func (l *loop) deliverSeconds(of []*sequence, logits [][]float32) {
	for i, t := range l.runner.samplers.sampleRows(of, logits) {
		if errors.Is(t.err, constraint.ErrPending) {
			l.park(of[i], t.logits)
			continue
		}
		l.accept(of[i], t, false)
	}
}

// drafting is what the draft head gets of a step: the states before its rows, as the step
// before it computes them or as they are known. The states of its last tokens are wanted.
func (r *runner) drafting(s tensor.Scope, f, before *inflightStep) (d nn.Drafting) {
	values := make([]float32, len(f.step.Rows)*r.hidden)
	var rows, from []int
	n := 0
	for i, row := range f.step.Rows {
		if at := before.stateOf(row.ID); at >= 0 {
			rows, from = append(rows, i), append(from, at)
		} else if q := r.byID[row.ID]; q.draft.at == row.Start {
			copy(values[i*r.hidden:], q.draft.state)
		}
		d.Drafted = append(d.Drafted, row.Drafts > 0)
		f.stateRows = append(f.stateRows, len(d.Wanted))
		for j := n + row.Length - row.Drafts - 1; j < n+row.Length; j++ {
			d.Wanted = append(d.Wanted, j)
		}
		n += row.Length
	}
	d.Before = s.From(values, len(f.step.Rows), r.hidden)
	if len(rows) > 0 {
		d.Before = s.Place(d.Before, rows, s.Rows(before.states, from))
	}
	return d
}

// stateOf is the row of the state of a sequence's newest token; -1 if the step has none.
func (f *inflightStep) stateOf(id batch.ID) int {
	if f == nil || f.states == nil {
		return -1
	}
	for i, r := range f.step.Rows {
		if r.ID == id {
			return f.stateRows[i]
		}
	}
	return -1
}

// readStates reads the states of a step, from which later tokens are drafted.
func (r *runner) readStates(f *inflightStep) {
	if f.states == nil {
		return
	}
	f.hidden = make([]float32, f.states.Shape()[0]*r.hidden)
	f.scope.Read(f.states, f.hidden)
	if f.scope.Err() != nil {
		f.hidden = nil // later tokens have no drafts
	}
}

// keepState notes the state of the newest token of a row, or of its draft.
func (f *inflightStep) keepState(s *sequence, row int, draft bool) {
	if f.hidden == nil {
		return
	}
	r, at := f.step.Rows[row], f.stateRows[row]
	s.draft.at = r.Start + r.Length - r.Drafts
	if draft {
		at, s.draft.at = at+1, s.draft.at+1
	}
	width := len(f.hidden) / f.states.Shape()[0]
	s.draft.state = append(s.draft.state[:0], f.hidden[at*width:(at+1)*width]...)
}
