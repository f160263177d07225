package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/metal/wire"
)

// request is a client's request. World.mu guards the fields after began.
type request struct {
	id, replica string
	pool        *pool.Pool
	ctx         context.Context
	cancel      context.CancelFunc
	began       time.Time

	hold *pool.Hold
	held bool // by the client: it was not given back
	busy bool // a stream runs under it
	pid  int  // of the engine it holds
	ends int
}

// open makes a request; an id is used once.
func (w *World) open(id, replica string) (*request, error) {
	if w.stop == nil {
		return nil, fmt.Errorf("no agent runs %w", errNotThere)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.requests[id] != nil {
		return nil, fmt.Errorf("there is a request %s already", id)
	}
	r := &request{id: id, replica: replica, pool: w.pool, began: time.Now()}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	w.requests[id] = r
	return r, nil
}

// acquire waits for the hold; it reports whether there is one.
func (w *World) acquire(r *request, epoch int64) bool {
	h, err := r.pool.Acquire(r.ctx, r.replica, epoch)
	if err != nil {
		w.end(r, "refused: %v", err)
		return false
	}
	w.mu.Lock()
	gone := r.ctx.Err() != nil
	if !gone {
		r.hold, r.held = h, true
		if l := w.tally.lives[reclaimID(r.replica, h.Epoch(), h.Load())]; l != nil {
			r.pid = l.pid
		}
	}
	w.mu.Unlock()
	if gone { // in the instant in which it was granted
		h.Release()
		w.end(r, "hung up")
		return false
	}
	w.diary.write(r.id, "holds %s, load %d", r.replica, h.Load())
	return true
}

// generate runs one request with the hold and returns how it ended.
func (w *World) generate(r *request, h *pool.Hold, tokens int64, unread bool) string {
	s, err := h.Generate(r.ctx, &wire.GenerateRequest{Id: r.id, Input: &wire.GenerateRequest_Prompt{Prompt: "p"}, MaxTokens: tokens})
	if err != nil {
		return told(err)
	}
	defer s.Close()
	if unread {
		<-r.ctx.Done()
		return "was never read"
	}
	made := 0
	for {
		ev, err := s.Recv()
		if err != nil {
			return fmt.Sprintf("%s, after %d tokens", told(err), made)
		}
		made += len(ev.GetDelta().GetTokens())
		if f := ev.GetFinished(); f != nil {
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				return fmt.Sprintf("finished and went on: %v", err)
			}
			if why := f.GetError(); why != nil {
				return fmt.Sprintf("ended after %d tokens: %s, %s", made, why.GetCode(), why.GetMessage())
			}
			return fmt.Sprintf("finished, %d tokens", made)
		}
	}
}

// told is an error as a client sees it.
func told(err error) string {
	if r := wire.RefusalOf(err); r != nil {
		return fmt.Sprintf("refused: %s, %s", r.GetCode(), r.GetMessage())
	}
	switch {
	case errors.Is(err, context.Canceled):
		return "hung up"
	case errors.Is(err, pool.ErrEngineLost):
		return "lost: the engine ended"
	}
	return "failed: " + err.Error()
}

// release gives the hold back, once.
func (w *World) release(r *request) {
	w.mu.Lock()
	h := r.hold
	r.held, r.hold = false, nil
	w.mu.Unlock()
	if h != nil {
		h.Release()
	}
}

// end is the one end of a request.
func (w *World) end(r *request, format string, args ...any) {
	w.mu.Lock()
	r.ends++
	w.mu.Unlock()
	w.diary.write(r.id, format, args...)
}

// whole is a request from its hold to its end.
func (w *World) whole(r *request, epoch, tokens int64, unread bool) {
	if !w.acquire(r, epoch) {
		return
	}
	how := w.generate(r, r.hold, tokens, unread)
	w.release(r)
	w.end(r, "%s", how)
}

// hangUp is the client's going.
func (w *World) hangUp(r *request) {
	w.mu.Lock()
	silent := r.hold != nil && !r.busy
	r.held = false
	w.mu.Unlock()
	r.cancel()
	if silent {
		w.release(r)
		w.end(r, "hung up")
	}
}

// orphan ends the holds of clients that do nothing, when their agent ends.
func (w *World) orphan() {
	w.mu.Lock()
	var idle []*request
	for _, r := range w.requests {
		if r.hold != nil && !r.busy {
			idle = append(idle, r)
		}
	}
	w.mu.Unlock()
	for _, r := range idle {
		w.release(r)
		w.end(r, "the agent stopped")
	}
}

// hangUpAll disconnects all clients, in order.
func (w *World) hangUpAll() {
	w.mu.Lock()
	var open []*request
	for _, r := range w.requests {
		if r.ends == 0 {
			open = append(open, r)
		}
	}
	w.mu.Unlock()
	slices.SortFunc(open, func(a, b *request) int { return strings.Compare(a.id, b.id) })
	for _, r := range open {
		w.hangUp(r)
	}
}

func (w *World) request(a *arguments) (string, error) {
	replica, id := a.word(), a.word()
	count, tokens, unread := a.number("count", 1), a.number("tokens", 5), a.flag("unread")
	if err := a.done(); err != nil {
		return "", err
	}
	epoch := w.epoch(replica)
	for i := range count {
		name := id
		if count > 1 {
			name = fmt.Sprintf("%s.%d", id, i+1)
		}
		r, err := w.open(name, replica)
		if err != nil {
			return "", err
		}
		r.busy = true
		go w.whole(r, epoch, tokens, unread)
	}
	return "", nil
}

func (w *World) holdOnly(a *arguments) (string, error) {
	replica, id := a.word(), a.word()
	if err := a.done(); err != nil {
		return "", err
	}
	r, err := w.open(id, replica)
	if err != nil {
		return "", err
	}
	go w.acquire(r, w.epoch(replica))
	return "", nil
}

// withHold finds a hold that is idle.
func (w *World) withHold(a *arguments) (*request, error) {
	id := a.word()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.requests[id]
	if r == nil || r.hold == nil || r.busy {
		return nil, fmt.Errorf("%s is no idle hold %w", id, errNotThere)
	}
	return r, nil
}

func (w *World) use(a *arguments) (string, error) {
	r, err := w.withHold(a)
	tokens := a.number("tokens", 5)
	if err := errors.Join(err, a.done()); err != nil {
		return "", err
	}
	w.mu.Lock()
	r.busy = true
	h := r.hold
	w.mu.Unlock()
	go func() {
		how := w.generate(r, h, tokens, false)
		w.diary.write(r.id, "%s", how)
		w.mu.Lock()
		r.busy = false
		gone := !r.held
		w.mu.Unlock()
		if gone {
			w.release(r)
			w.end(r, "is over")
		}
	}()
	return "", nil
}

func (w *World) giveBack(a *arguments) (string, error) {
	r, err := w.withHold(a)
	if err := errors.Join(err, a.done()); err != nil {
		return "", err
	}
	w.release(r)
	w.end(r, "released")
	return "", nil
}

func (w *World) hang(a *arguments) (string, error) {
	id := a.word()
	if err := a.done(); err != nil {
		return "", err
	}
	w.mu.Lock()
	r := w.requests[id]
	over := r != nil && r.ends > 0
	w.mu.Unlock()
	switch {
	case r == nil:
		return "", fmt.Errorf("there is no request %s %w", id, errNotThere)
	case over:
		return "it is over already", nil
	}
	w.hangUp(r)
	return "", nil
}

// epoch that clients ask for: the newest.
func (w *World) epoch(replica string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(1, w.epochs[replica])
}

// errNotThere is wrapped where a command is about what is over.
var errNotThere = errors.New("(not there)")
