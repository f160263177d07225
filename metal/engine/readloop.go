package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// readers is what the loop of an engine that reads alone touches.
type readers struct {
	e        *Engine
	model    *loadedModel
	all      []*reading
	failures int
}

// place is one input of one request.
type place struct {
	of *reading
	at int
}

// serveReadings computes passes until the engine drains or breaks.
func (e *Engine) serveReadings(m *loadedModel) error {
	defer e.closes()
	l := &readers{e: e, model: m}
	for {
		draining, aborting := l.take()
		if aborting {
			e.countCancelled(l.abort(&Refusal{Kind: Cancelled, Message: "the engine is stopping and the request did not finish in time"}))
			return nil
		}
		l.reap()
		pass := l.next()
		if e.limits.now().PausePrefill && !draining {
			pass = nil
		}
		if len(pass) > 0 {
			if err := l.compute(pass); err != nil {
				l.abort(&Refusal{Kind: Internal, Message: "the engine failed: " + err.Error()})
				return err
			}
			continue
		}
		if draining && len(l.all) == 0 {
			return nil
		}
		<-e.wake
	}
}

// take takes what came in.
func (l *readers) take() (draining, aborting bool) {
	e := l.e
	e.mu.Lock()
	l.all = append(l.all, e.readings...)
	chores := e.chores
	e.readings, e.chores = nil, nil
	draining, aborting = e.state == Draining, e.aborting
	e.mu.Unlock()
	l.publish()
	attend(l, chores)
	return draining, aborting
}

// reap ends requests whose callers went away.
func (l *readers) reap() {
	for _, r := range slices.Clone(l.all) {
		if r.cancelled.Load() {
			l.end(r, &Refusal{Kind: Cancelled, Message: "the request was cancelled"})
		}
	}
}

// next are the inputs of the next pass: one of each request in turn, so that a
// long list holds nobody up, until they are as many tokens as the back end takes
// at once. What a decoder keeps of them fits what was promised.
func (l *readers) next() []place {
	room := embed.PassTokens(l.e.opts.Backend)
	begun := make(map[*reading]int, len(l.all))
	var out []place
	blocks := 0
	for more := true; more; {
		more = false
		for _, r := range l.all {
			at := r.begun + begun[r]
			if at == len(r.inputs) {
				continue
			}
			n := len(r.inputs[at].IDs)
			blocks += l.blocks(n)
			if len(out) > 0 && (n > room || l.full(len(out)+1, blocks)) {
				return out
			}
			out, room, more = append(out, place{r, at}), room-n, true
			begun[r]++
		}
	}
	return out
}

// blocks of the cache that so many tokens take in a decoder.
func (l *readers) blocks(tokens int) int {
	size := l.model.reader.BlockTokens()
	if size == 0 {
		return 0
	}
	return (tokens + size - 1) / size
}

// full says that so many inputs are more than a decoder's promise.
func (l *readers) full(inputs, blocks int) bool {
	size := l.model.reader.BlockTokens()
	return size > 0 && (inputs > l.e.opts.Sequences || blocks*size > l.model.cacheTokens)
}

// compute runs one pass, smaller where memory is short, and hands out what comes
// of it. The error is of a back end that fails again and again.
func (l *readers) compute(pass []place) error {
	pass, refusal := l.portion(pass)
	if refusal != nil {
		l.end(pass[0].of, refusal)
		return nil
	}
	out, err := l.run(pass)
	if errors.Is(err, tensor.ErrMemory) {
		if n, rerr := l.e.reclaim(); rerr == nil && n > 0 || len(pass) > 1 {
			out, err = l.run(pass[:1])
			pass = pass[:1]
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return nil // aborting: the next turn ends everything
	case errors.Is(err, tensor.ErrMemory):
		r := l.e.room(l.model.serving)
		l.end(pass[0].of, l.e.overLimit(0, r.held, r.limit))
		return nil
	case err != nil:
		return l.failed(pass, err)
	}
	l.failures = 0
	for i, p := range pass {
		p.of.out, p.of.begun = append(p.of.out, out[i]), p.of.begun+1
	}
	for _, p := range pass {
		if p.of.begun == len(p.of.inputs) {
			l.end(p.of, nil)
		}
	}
	return nil
}

func (l *readers) run(pass []place) ([][]float32, error) {
	inputs := make([]embed.Input, len(pass))
	for i, p := range pass {
		inputs[i] = p.of.inputs[p.at]
	}
	l.e.steps.Add(1)
	l.e.leak()
	return l.model.reader.Compute(l.e.hard, inputs)
}

// portion is as much of a pass as there is room for now: all of it, half as many
// inputs, and so on. The refusal is of a single input without room, after what is
// pooled was reclaimed.
func (l *readers) portion(pass []place) ([]place, *Refusal) {
	e, s := l.e, l.model.serving
	reclaimed := false
	for {
		inputs := make([]embed.Input, len(pass))
		for i, p := range pass {
			inputs[i] = p.of.inputs[p.at]
		}
		needed, r, refusal := e.weigh(s, &active{prompt: e.passTokens(inputs)}, footprint.Prefill{New: int64(e.passTokens(inputs)), Chunk: int64(e.opts.Backend.Chunk())})
		switch {
		case refusal != nil:
			return pass, refusal
		case r.fits(needed) && (reclaimed || r.pooled == 0 || r.fits(needed+r.pooled)):
			return pass, nil
		case !reclaimed && r.pooled > 0:
			reclaimed = true
			if _, err := e.reclaim(); err != nil {
				e.log.Error("could not free pooled memory", "error", err.Error())
			}
		case r.fits(needed):
			return pass, nil
		case len(pass) > 1:
			pass = pass[:len(pass)/2]
			e.guard.throttled.Add(1)
		default:
			return pass, e.overLimit(needed, r.held, r.limit)
		}
	}
}

// failed ends the requests of a pass that the back end could not compute.
func (l *readers) failed(pass []place, err error) error {
	l.e.log.Error("pass failed", "inputs", len(pass), "error", err.Error())
	for _, p := range pass {
		l.end(p.of, &Refusal{Kind: Internal, Message: "the back end failed: " + err.Error()})
	}
	if l.failures++; l.failures >= failuresInARow {
		return fmt.Errorf("%w: %d passes in a row: %w", ErrBackend, l.failures, err)
	}
	return nil
}

// end finishes a request, once.
func (l *readers) end(r *reading, refusal *Refusal) {
	at := slices.Index(l.all, r)
	if at < 0 {
		return
	}
	l.all = slices.Delete(l.all, at, at+1)
	l.e.release()
	l.publish()
	r.ended <- refusal
}

// abort ends every request.
func (l *readers) abort(r *Refusal) int {
	n := len(l.all)
	for _, one := range slices.Clone(l.all) {
		l.end(one, r)
	}
	return n
}

// publish says how many requests there are: as many run as sequences were
// promised, the others wait.
func (l *readers) publish() {
	running := min(len(l.all), l.e.opts.Sequences)
	l.e.running.Store(int64(running))
	l.e.queued.Store(int64(len(l.all) - running))
}
