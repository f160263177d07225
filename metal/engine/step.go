package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// flight is a step on its way through the back end. Where the back end allows
// it, the next step is built on the tokens of this one before they are read,
// so that the host's work hides behind the device's. An end is then seen one
// step late: the row that was computed for nothing is dropped when it lands,
// and its memory returned then.
type flight struct {
	step  batch.Step
	scope tensor.Scope
	// out holds token ids where every row takes the largest logit, else logits;
	// nil where no row samples.
	out    tensor.Array
	argmax bool
	// began is when it was built, started when the back end had all of it; ahead
	// says that the step before it was not read by then.
	began, started time.Time
	ahead          bool
	// sampled requests are those whose rows yield a token, from the logits in the
	// rows last of out.
	sampled []batch.ID
	last    []int
	// spans has for each row of the step the logits that rank tokens of a prompt, and
	// ranked what came of them.
	spans  []span
	ranked []rankedRow
	// needed bytes of its pieces of prompts, as the guard estimates them.
	needed int64
	// counted says that the scheduler knows the tokens of this step already,
	// because the next one was built on them.
	counted bool
	// ended requests have a row here and no longer want it; the rows of those in again were
	// built on a token that is drawn once more.
	ended, again []*active
}

// begin computes a step whose pieces of prompts need so many bytes, or starts it
// where the next may be built on it.
func (l *looping) begin(step batch.Step, needed int64) error {
	f, err := l.launch(step, nil)
	if err != nil {
		return l.notLaunched(step, err)
	}
	f.needed = needed
	if l.steady(f) {
		l.flight = f
		return nil
	}
	return l.land(f)
}

// advance builds the next step on the one under way, where it can, and lands
// the latter.
func (l *looping) advance() error {
	f := l.flight
	l.flight = nil
	if !l.steady(f) {
		return l.land(f)
	}
	if err := l.count(f); err != nil {
		f.scope.Close()
		return err
	}
	pieces, needed, ok := l.following(f)
	if !ok {
		return l.land(f)
	}
	step := l.sched.Plan(pieces...)
	next, err := l.launch(step, f)
	if err == nil {
		next.needed = needed
		l.flight = next
		return l.land(f)
	}
	if landed := l.land(f); landed != nil {
		return landed
	}
	return l.notLaunched(step, err)
}

// notLaunched deals with a step that could not be built.
func (l *looping) notLaunched(step batch.Step, err error) error {
	if errors.Is(err, tensor.ErrMemory) {
		l.outOfMemory(step, err)
		return nil
	}
	return l.stepFailed(step, err)
}

// steady reports whether the next step's answers are those that this one yields and
// that are not known to end with it, whatever their tokens are; one that is an end is
// computed once more for nothing. Nothing else waits for this step to land: a cancel, what is remembered of a prompt, an answer of the
// agent, a state that is to be saved before it moves on.
func (l *looping) steady(f *flight) bool {
	if !l.e.opts.Backend.Ahead() || !f.argmax || f.out == nil || len(f.again) > 0 || len(l.fresh) > 0 || l.hold != nil || !l.sched.Steady(f.step) || l.stops(f.step) {
		return false
	}
	for _, r := range f.step.Rows {
		if l.active[r.ID] == nil { // it ended while this step was under way
			return false
		}
	}
	for _, a := range l.active {
		if a.cancelled.Load() {
			return false
		}
	}
	return true
}

// count tells the scheduler of a step whose tokens are not read yet.
func (l *looping) count(f *flight) error {
	f.counted = true
	for _, r := range f.step.Rows {
		if err := l.sched.Computed(r); err != nil {
			return err
		}
		if !r.Sample {
			continue
		}
		if err := l.sched.Grow(r.ID); err != nil {
			return err
		}
	}
	return nil
}

// launch builds a step; its input is known tokens, or what the step before it
// yields. Handles of everything but the result are gone when it returns.
func (l *looping) launch(step batch.Step, before *flight) (*flight, error) {
	l.makeWay()
	l.prepare()
	f := &flight{step: step, began: time.Now(), argmax: true, ahead: before != nil}
	var ids []int32
	var segments []tensor.Segment
	var rows []int
	n := 0
	for _, r := range step.Rows {
		a := l.active[r.ID]
		if before == nil || !r.Decode() { // else the step before yields it
			ids = append(ids, a.tokens[r.Start:r.Start+r.Length]...)
		}
		segments = append(segments, tensor.Segment{Request: tensor.RequestID(r.ID), Start: r.Start, Length: r.Length})
		first, ranked := a.ranked(r)
		f.spans = append(f.spans, span{first, ranked, len(rows)})
		for i := range ranked {
			rows = append(rows, n+first-r.Start+i)
			f.argmax = false
		}
		n += r.Length
		if r.Sample {
			f.sampled, f.last = append(f.sampled, r.ID), append(f.last, len(rows))
			rows = append(rows, n-1)
			f.argmax = f.argmax && a.devicePicks()
			a.constraint.prepare()
		}
	}
	l.e.steps.Add(1)
	l.e.leak()
	f.scope = l.e.opts.Backend.NewScope(l.e.hard)
	inner := f.scope.Child()
	defer inner.Close()
	out := l.model.model.Step(inner, l.model.cache, before.followed(inner, step, ids), segments, rows)
	if inner.Err() != nil {
		out = nil
	}
	if out != nil && f.argmax {
		out = inner.Argmax(out, l.vocabulary(out))
	}
	if out != nil {
		f.out = inner.Keep(out)
	}
	inner.Close() // before anything is computed: what nobody holds is reused
	if f.out != nil {
		f.scope.Start(f.out)
	}
	if err := f.scope.Err(); err != nil {
		f.scope.Close()
		return nil, err
	}
	f.started = time.Now()
	return f, nil
}

// devicePicks reports whether the next token is the largest logit, and nothing else
// of the logits is wanted.
func (a *active) devicePicks() bool {
	return a.params.Argmax() && a.logprobs == nil && a.constraint.onDevice() && a.ending.free(a.generated())
}

// followed are the token ids of a step: what the step before it yields for answers
// that go on, if it is built on one, and known ones behind them.
func (f *flight) followed(s tensor.Scope, step batch.Step, ids []int32) tensor.Array {
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

// vocabulary is how many of the logits stand for tokens.
func (l *looping) vocabulary(logits tensor.Array) int {
	return min(logits.Shape()[1], l.model.serving.tok.Size())
}

// land waits for a step and hands out what it yields.
func (l *looping) land(f *flight) error {
	defer f.scope.Close()
	pick, err := l.read(f)
	for _, a := range f.ended {
		if err == nil && a.staged {
			l.keepLast(a)
		}
		l.forget(a.id)
	}
	if err != nil {
		return l.stepFailed(f.step, err)
	}
	l.failures, l.relieved = 0, false
	row := -1
	var late []*active
	for i, r := range f.step.Rows {
		if r.Sample {
			row++
		}
		a := l.active[r.ID]
		if a == nil || slices.Contains(f.again, a) { // it ended while this step was under way, or its row counts for nothing
			continue
		}
		if !f.counted {
			if err := l.sched.Computed(r); err != nil {
				return err
			}
		}
		if f.ranked != nil && !l.tellRanked(a, f.ranked[i]) {
			continue
		}
		if end := r.Start + r.Length; a.progress && end <= a.prompt && a.generated() == 0 {
			a.stream.progressed(Progress{Processed: end, Cached: a.cached})
		}
		if l.flight == nil {
			l.keep(a)
		} else if l.due(a) {
			late = append(late, a)
		}
		if r.Sample {
			l.deliver(a, f, pick, row)
		}
	}
	l.keepLate(late)
	for _, a := range f.again {
		if l.active[a.id] == a {
			l.cutBack(a)
		}
	}
	l.timed(f)
	return nil
}

// drawAgain has the newest token of a request drawn once more, by the host and under a mask:
// the device drew one that does not go on with the request's form.
func (l *looping) drawAgain(a *active) error {
	a.constraint.masked = true
	if err := l.sched.Redo(a.id, len(a.tokens)); err != nil {
		return err
	}
	if l.flight != nil { // it writes after that token
		l.flight.again = append(l.flight.again, a)
		return nil
	}
	l.cutBack(a)
	return nil
}

// timed tells the pace, and the log where it wants steps, how long a step took,
// what is saved of it included.
func (l *looping) timed(f *flight) {
	now := time.Now()
	took := f.took(l.landed, now, l.flight)
	l.landed = now
	load := f.step.Load()
	if f.ranked == nil { // else it took longer than prompts do
		l.pace.Took(load, took)
	}
	if l.e.log.Enabled(context.Background(), slog.LevelDebug) {
		l.e.log.Debug("step", "answers", load.Answers, "promptTokens", load.Tokens, "prompts", len(f.step.Rows)-load.Answers, "seen", load.Seen, "past", load.Past, "waiting", l.sched.Waiting(),
			"ahead", f.ahead, "built", f.built().Microseconds(), "took", took.Microseconds())
	}
}

// built is how long the host took to hand a step to the back end.
func (f *flight) built() time.Duration { return f.started.Sub(f.began) }

// took is how long a step that lands now would have taken by itself, again and
// again: landed is when the one before it did, next the one that was built on it,
// if any. Where the device was done by the time that was built, it is not the next
// one's building that counts but its own. The first step of several waited while the
// next was built; the last was built while the one before it computed, and seems to
// take no time.
func (f *flight) took(landed, now time.Time, next *flight) time.Duration {
	between := now.Sub(landed)
	switch {
	case f.ahead && next != nil && 8*now.Sub(next.started) < between:
		return between - next.built() + f.built()
	case f.ahead && next != nil:
		return between
	case f.ahead:
		return max(between, f.built())
	case next != nil:
		return now.Sub(f.began) - next.built()
	}
	return now.Sub(f.began)
}

// deliver gives a request the token of its row.
func (l *looping) deliver(a *active, f *flight, pick picker, row int) {
	if a.echo.only {
		l.end(a, Finished{Reason: Length})
		return
	}
	p, err := pick(row)
	if errors.Is(err, errLate) {
		l.park(a, p.logits)
		return
	}
	if err == nil && f.argmax {
		fits, err := a.constraint.fits(p.token)
		if !fits && !a.constraint.loses(err) { // or it is not known: the host waits for it
			if err := l.drawAgain(a); err != nil {
				l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
			}
			return
		}
	}
	l.give(a, p, err, f.counted)
}

// give adds a drawn token to its answer, or ends that with the error of drawing; counted is
// set where the scheduler knows of the token.
func (l *looping) give(a *active, p picked, err error, counted bool) {
	a.parked = nil
	switch {
	case errors.Is(err, errWhole):
		l.flush(a, false)
		l.end(a, Finished{Reason: Stop})
		return
	case errors.Is(err, grammar.ErrWork), errors.Is(err, grammar.ErrAmbiguous):
		l.end(a, Finished{Err: invalid(a.constraint.param, "%v", err)})
		return
	case err != nil:
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: "cannot sample the model's output: " + err.Error()}})
		return
	}
	if !l.take(a, p) || counted {
		return
	}
	if err := l.sched.Grow(a.id); err != nil {
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
	}
}

// picked is a token, and how likely it was where its request wants to know.
type picked struct {
	token  int32
	ranked *sample.Ranked
	// logits of a row whose mask is late.
	logits []float32
}

// picker chooses the token of a sampled row.
type picker func(row int) (picked, error)

// read waits for the results of a step.
func (l *looping) read(f *flight) (picker, error) {
	if f.out == nil {
		f.scope.Wait()
		return nil, f.scope.Err()
	}
	shape := f.out.Shape()
	if f.argmax {
		ids := make([]int32, shape[0])
		f.scope.ReadIDs(f.out, ids)
		return func(row int) (picked, error) {
			if ids[row] < 0 {
				return picked{}, fmt.Errorf("the largest logit is not a finite number: %w", sample.ErrLogits)
			}
			return picked{token: ids[row]}, nil
		}, f.scope.Err()
	}
	width, use := shape[1], l.vocabulary(f.out)
	flat := l.space(shape[0], width)
	f.scope.Read(f.out, flat)
	if err := f.scope.Err(); err != nil {
		return nil, err
	}
	logits := func(row int) []float32 { return flat[row*width:][:use] }
	if shape[0] > len(f.sampled) {
		l.rank(f, logits)
	}
	return l.draw(f, logits), nil
}

// space has room for rows of logits. It is kept for the next step, unless a prompt
// that was ranked made it larger than steps need.
func (l *looping) space(rows, width int) []float32 {
	if most := l.e.opts.Sequences * width; rows*width <= most && cap(l.logits) > most || cap(l.logits) < rows*width {
		l.logits = make([]float32, rows*width)
	}
	return l.logits[:rows*width]
}

// abandon gives up the step under way.
func (l *looping) abandon() {
	f := l.flight
	if f == nil {
		return
	}
	l.flight = nil
	f.scope.Close()
	for _, a := range f.ended {
		l.forget(a.id)
	}
}
