package ref

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// workers are a fixed set of goroutines that share the tasks of one job at a
// time. The goroutine that calls run takes part as worker 0.
type workers struct {
	size    int
	current atomic.Pointer[job]
	stopped atomic.Bool
	helpers []*helper
	done    sync.WaitGroup
}

type helper struct {
	parked atomic.Bool
	wake   chan struct{}
}

// job is a number of independent tasks. A helper that comes late finds no task
// left, and job does not wait for it.
type job struct {
	work      func(worker, task int)
	total     int64
	next      atomic.Int64
	finished  atomic.Int64
	waiting   atomic.Bool
	completed chan struct{}
}

func startWorkers(size int) *workers {
	w := &workers{size: size}
	for i := 1; i < size; i++ {
		h := &helper{wake: make(chan struct{}, 1)}
		w.helpers = append(w.helpers, h)
		w.done.Add(1)
		go w.help(i, h)
	}
	return w
}

// stop ends the helpers and waits for them.
func (w *workers) stop() {
	if w.stopped.Swap(true) {
		return
	}
	for _, h := range w.helpers {
		h.wake <- struct{}{}
	}
	w.done.Wait()
}

// run calls work for every task in [0, total), each once, and returns when all
// are done. Tasks must not depend on one another.
func (w *workers) run(total int, work func(worker, task int)) {
	if total <= 1 || w.size == 1 {
		for t := range total {
			work(0, t)
		}
		return
	}
	j := &job{work: work, total: int64(total), completed: make(chan struct{}, 1)}
	w.current.Store(j)
	for _, h := range w.helpers[:min(len(w.helpers), total-1)] {
		if h.parked.CompareAndSwap(true, false) {
			h.wake <- struct{}{}
		}
	}
	j.take(0)
	j.wait()
}

// take works off tasks until none is left.
func (j *job) take(worker int) {
	for {
		t := j.next.Add(1) - 1
		if t >= j.total {
			return
		}
		j.work(worker, int(t))
		if j.finished.Add(1) == j.total && j.waiting.Load() {
			select {
			case j.completed <- struct{}{}:
			default:
			}
		}
	}
}

func (j *job) wait() {
	for i := range spins {
		if j.finished.Load() == j.total {
			return
		}
		if i%64 == 63 {
			runtime.Gosched()
		}
	}
	j.waiting.Store(true)
	for j.finished.Load() != j.total {
		<-j.completed
	}
}

func (w *workers) help(worker int, h *helper) {
	defer w.done.Done()
	var seen *job
	for {
		j := w.await(h, seen)
		if j == nil {
			return
		}
		seen = j
		j.take(worker)
	}
}

// await returns the next job, nil once stopped. It spins, then sleeps.
func (w *workers) await(h *helper, seen *job) *job {
	for i := range spins {
		if j := w.current.Load(); j != seen {
			return j
		}
		if i%64 == 63 {
			runtime.Gosched()
		}
	}
	for {
		h.parked.Store(true)
		if j := w.current.Load(); j != seen && h.parked.CompareAndSwap(true, false) {
			return j
		}
		<-h.wake // the goroutine that cleared parked sends one token; stop sends one too
		if w.stopped.Load() {
			return nil
		}
		if j := w.current.Load(); j != seen {
			return j
		}
	}
}
