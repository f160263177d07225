package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/batch"
)

// errClosed is returned for a request that comes before the engine is ready or after it
// began to drain.
var errClosed = errors.New("the engine does not accept requests")

// loopControl is the part of a loop that tasks use.
type loopControl interface {
	// abortAll ends all requests and returns how many there were.
	abortAll(*Refusal) int
}

// task is run by the engine's own goroutine between two steps.
type task struct {
	do   func(loopControl)
	done chan struct{}
}

// runTasks runs the tasks that came in.
func runTasks(l loopControl, tasks []*task) {
	for _, t := range tasks {
		t.do(l)
		close(t.done)
	}
}

// admission passes requests and tasks from any goroutine to the loop, and limits how many
// requests there are. Every admitted request is released once.
type admission struct {
	// limit of requests that run or wait, of which queue more than sequences.
	limit, queue int
	// wake is signalled when the loop has something to look at.
	wake chan struct{}

	mu sync.Mutex
	// mu guards the fields after it. open is true while requests are admitted, running
	// while tasks are.
	open, running      bool
	draining, aborting bool
	sequences          []*sequence
	embeddings         []*embedding
	tasks              []*task
	admitted           int
	of                 map[string]int // admitted, by tenant
	nextID             int64
	cancelled          int
}

func newAdmission(sequences, queue int) *admission {
	return &admission{limit: sequences + queue, queue: queue, wake: make(chan struct{}, 1), of: map[string]int{}}
}

// start admits requests and tasks, unless the engine drains already. Both start at the same
// moment: an abort that follows a request must find it.
func (a *admission) start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open, a.running = !a.draining, true
}

// drain admits no more requests.
func (a *admission) drain() {
	a.mu.Lock()
	a.open, a.draining = false, true
	a.mu.Unlock()
	a.notify()
}

// abort has the loop end at once.
func (a *admission) abort() {
	a.mu.Lock()
	a.aborting = true
	a.mu.Unlock()
	a.notify()
}

// fail admits no more requests, and returns those that the loop has not taken.
func (a *admission) fail() ([]*sequence, []*embedding) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sequences, embeddings := a.sequences, a.embeddings
	a.open, a.sequences, a.embeddings = false, nil, nil
	return sequences, embeddings
}

// notify wakes the loop.
func (a *admission) notify() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// admit queues a request. The error is errClosed or a *Refusal.
func (a *admission) admit(s *sequence) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.enter(s.owner); err != nil {
		return err
	}
	a.nextID++
	s.id = batch.ID(a.nextID)
	cancelled := new(atomic.Bool) // and not s: a stream is open until its client has read all of it
	s.cancelled = cancelled
	s.stream.cancel = func() {
		cancelled.Store(true)
		a.notify()
	}
	a.sequences = append(a.sequences, s)
	return nil
}

// admitEmbedding queues a request for vectors or scores. The error is errClosed or a
// *Refusal.
func (a *admission) admitEmbedding(e *embedding) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.enter(e.tenant); err != nil {
		return err
	}
	a.embeddings = append(a.embeddings, e)
	return nil
}

// check returns the error that another request would get now, before it is read: that may take much
// work, and blocks of the disk.
func (a *admission) check(tenant string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.full(tenant)
}

// full is the error if too many requests are waiting for another one. It is called with mu held.
func (a *admission) full(tenant string) error {
	if !a.open {
		return errClosed
	}
	if free := a.limit - a.admitted; free <= a.keptFrom(tenant) {
		return &Refusal{Kind: QueueFull, Message: fmt.Sprintf("%d requests are already running or waiting", a.admitted), RetryAfter: retryAfter}
	}
	return nil
}

// enter counts one more request, unless too many are waiting. It is called with mu held.
func (a *admission) enter(tenant string) error {
	if err := a.full(tenant); err != nil {
		return err
	}
	a.admitted++
	a.of[tenant]++
	return nil
}

// keptFrom is how many free places are for tenants with fewer requests than this one: half as many
// as it has, but no more than half of those to wait in, so that it may fill all sequences, and a quarter
// of these for tenants without any. Gateways
// send more than there are places, and a tenant that found none would compete for each that gets
// free with all requests of the others. Without API keys there is one tenant.
func (a *admission) keptFrom(tenant string) int {
	if tenant == "" || a.of[tenant] == 0 {
		return 0
	}
	return min(a.of[tenant], a.queue)/2 + a.queue/4
}

// release makes room for another request.
func (a *admission) release(tenant string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.admitted--
	if a.of[tenant]--; a.of[tenant] == 0 {
		delete(a.of, tenant)
	}
}

// arrivals are what came in since the loop looked last, and whether it is to end.
type arrivals struct {
	sequences          []*sequence
	embeddings         []*embedding
	tasks              []*task
	draining, aborting bool
}

// take returns what came in.
func (a *admission) take() arrivals {
	a.mu.Lock()
	defer a.mu.Unlock()
	in := arrivals{a.sequences, a.embeddings, a.tasks, a.draining, a.aborting}
	a.sequences, a.embeddings, a.tasks = nil, nil, nil
	return in
}

// came reports whether requests of other owners came in since the loop looked last.
func (a *admission) came(owner string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.sequences, func(s *sequence) bool { return s.owner != owner })
}

// countCancelled counts requests that were cancelled because the engine stops.
func (a *admission) countCancelled(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancelled += n
}

func (a *admission) cancelledCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cancelled
}

// run has a task run by the loop between two steps, and waits for it until ctx ends. ran is
// false if nothing is served: there is no loop that could, and nothing to do.
func (a *admission) run(ctx context.Context, do func(loopControl)) (ran bool, err error) {
	t := &task{do: do, done: make(chan struct{})}
	a.mu.Lock()
	if !a.running {
		a.mu.Unlock()
		return false, nil
	}
	a.tasks = append(a.tasks, t)
	a.mu.Unlock()
	a.notify()
	select {
	case <-t.done:
		return true, nil
	case <-ctx.Done():
		return false, fmt.Errorf("wait for the end of a step: %w", ctx.Err())
	}
}

// stop admits no more tasks; those that are left have nothing to do. The loop calls it at
// its end.
func (a *admission) stop() {
	a.mu.Lock()
	rest := a.tasks
	a.running, a.tasks = false, nil
	a.mu.Unlock()
	for _, t := range rest {
		close(t.done)
	}
}
