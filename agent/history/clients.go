package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/metal/wire"
)

// request is a client's request. clients.mu guards the fields after began.
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

// clients of the agent, and their requests.
type clients struct {
	diary   *diary
	agent   *agent
	desired *desired
	judge   *judge

	mu       sync.Mutex // guards requests
	requests map[string]*request
}

func newClients(d *diary, g *agent, j *judge) *clients {
	return &clients{diary: d, agent: g, desired: j.desired, judge: j, requests: map[string]*request{}}
}

// holding returns the requests with a hold of this agent's pool, by id and
// process.
func (c *clients) holding() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, r := range c.requests {
		if r.held && r.pool == c.agent.pool {
			out[r.id] = r.pid
		}
	}
	return out
}

// waiting returns the requests that did not end and hold nothing.
func (c *clients) waiting() (out []waiting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		if r.ends == 0 && !r.held {
			out = append(out, waiting{r.id, r.replica, r.began})
		}
	}
	return out
}

type waiting struct {
	id, replica string
	began       time.Time
}

// ends is how often each request ended.
func (c *clients) ends() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, r := range c.requests {
		out[r.id] = r.ends
	}
	return out
}

// open makes a request; an id is used once.
func (c *clients) open(id, replica string) (*request, error) {
	if !c.agent.running() {
		return nil, fmt.Errorf("no agent runs %w", errNotThere)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests[id] != nil {
		return nil, fmt.Errorf("there is a request %s already", id)
	}
	r := &request{id: id, replica: replica, pool: c.agent.pool, began: time.Now()}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	c.requests[id] = r
	return r, nil
}

// acquire waits for the hold; it reports whether there is one.
func (c *clients) acquire(r *request, epoch int64) bool {
	h, err := r.pool.Acquire(r.ctx, r.replica, epoch)
	if err != nil {
		c.end(r, "refused: %v", err)
		return false
	}
	pid := c.judge.process(r.replica, h.Epoch(), h.Load())
	c.mu.Lock()
	gone := r.ctx.Err() != nil
	if !gone {
		r.hold, r.held, r.pid = h, true, pid
	}
	c.mu.Unlock()
	if gone { // in the instant in which it was granted
		h.Release()
		c.end(r, "hung up")
		return false
	}
	c.diary.write(r.id, "holds %s, load %d", r.replica, h.Load())
	return true
}

// generate runs one request with the hold and returns how it ended.
func (c *clients) generate(r *request, h *pool.Hold, tokens int64, unread bool) string {
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
func (c *clients) release(r *request) {
	c.mu.Lock()
	h := r.hold
	r.held, r.hold = false, nil
	c.mu.Unlock()
	if h != nil {
		h.Release()
	}
}

// end is the one end of a request.
func (c *clients) end(r *request, format string, args ...any) {
	c.mu.Lock()
	r.ends++
	c.mu.Unlock()
	c.diary.write(r.id, format, args...)
}

// whole is a request from its hold to its end.
func (c *clients) whole(r *request, epoch, tokens int64, unread bool) {
	if !c.acquire(r, epoch) {
		return
	}
	how := c.generate(r, r.hold, tokens, unread)
	c.release(r)
	c.end(r, "%s", how)
}

// hangUp is the client's going.
func (c *clients) hangUp(r *request) {
	c.mu.Lock()
	silent := r.hold != nil && !r.busy
	r.held = false
	c.mu.Unlock()
	r.cancel()
	if silent {
		c.release(r)
		c.end(r, "hung up")
	}
}

// orphan ends the holds of clients that do nothing, when their agent ends.
func (c *clients) orphan() {
	c.mu.Lock()
	var idle []*request
	for _, r := range c.requests {
		if r.hold != nil && !r.busy {
			idle = append(idle, r)
		}
	}
	c.mu.Unlock()
	for _, r := range idle {
		c.release(r)
		c.end(r, "the agent stopped")
	}
}

// hangUpAll disconnects all clients, in order.
func (c *clients) hangUpAll() {
	c.mu.Lock()
	var open []*request
	for _, r := range c.requests {
		if r.ends == 0 {
			open = append(open, r)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(open, func(a, b *request) int { return strings.Compare(a.id, b.id) })
	for _, r := range open {
		c.hangUp(r)
	}
}

func (c *clients) request(a *arguments) (string, error) {
	replica, id := a.word(), a.word()
	count, tokens, unread := a.number("count", 1), a.number("tokens", 5), a.flag("unread")
	if err := a.done(); err != nil {
		return "", err
	}
	epoch := c.desired.epoch(replica)
	for i := range count {
		name := id
		if count > 1 {
			name = fmt.Sprintf("%s.%d", id, i+1)
		}
		r, err := c.open(name, replica)
		if err != nil {
			return "", err
		}
		r.busy = true
		go c.whole(r, epoch, tokens, unread)
	}
	return "", nil
}

func (c *clients) holdOnly(a *arguments) (string, error) {
	replica, id := a.word(), a.word()
	if err := a.done(); err != nil {
		return "", err
	}
	r, err := c.open(id, replica)
	if err != nil {
		return "", err
	}
	go c.acquire(r, c.desired.epoch(replica))
	return "", nil
}

// withHold finds a hold that is idle.
func (c *clients) withHold(a *arguments) (*request, error) {
	id := a.word()
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests[id]
	if r == nil || r.hold == nil || r.busy {
		return nil, fmt.Errorf("%s is no idle hold %w", id, errNotThere)
	}
	return r, nil
}

func (c *clients) use(a *arguments) (string, error) {
	r, err := c.withHold(a)
	tokens := a.number("tokens", 5)
	if err := errors.Join(err, a.done()); err != nil {
		return "", err
	}
	c.mu.Lock()
	r.busy = true
	h := r.hold
	c.mu.Unlock()
	go func() {
		how := c.generate(r, h, tokens, false)
		c.diary.write(r.id, "%s", how)
		c.mu.Lock()
		r.busy = false
		gone := !r.held
		c.mu.Unlock()
		if gone {
			c.release(r)
			c.end(r, "is over")
		}
	}()
	return "", nil
}

func (c *clients) giveBack(a *arguments) (string, error) {
	r, err := c.withHold(a)
	if err := errors.Join(err, a.done()); err != nil {
		return "", err
	}
	c.release(r)
	c.end(r, "released")
	return "", nil
}

func (c *clients) hang(a *arguments) (string, error) {
	id := a.word()
	if err := a.done(); err != nil {
		return "", err
	}
	c.mu.Lock()
	r := c.requests[id]
	over := r != nil && r.ends > 0
	c.mu.Unlock()
	switch {
	case r == nil:
		return "", fmt.Errorf("there is no request %s %w", id, errNotThere)
	case over:
		return "it is over already", nil
	}
	c.hangUp(r)
	return "", nil
}

// errNotThere is wrapped where a command is about what is over.
var errNotThere = errors.New("(not there)")
