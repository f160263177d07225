package guard

import (
	"sync"
	"sync/atomic"
)

// Limits are published by the agent, which watches the memory of the Mac. All are
// bytes.
type Limits struct {
	// Memory is the limit of the process, Cache the bytes that the back end may keep
	// pooled; 0 means unset.
	Memory, Cache int64
	// PausePrefill holds back new prompts; decoding continues.
	PausePrefill bool
	// Sequence grows; older publications are ignored.
	Sequence int64
	// Footprint is the kernel's most recent measurement of the process; 0 means not
	// measured.
	Footprint int64
	// Headroom is the additional memory that the Mac can give the process now,
	// regardless of the process's own limit. It is ignored unless
	// HeadroomKnown.
	Headroom      int64
	HeadroomKnown bool
	// HeadroomAnswered is the newest Status.HeadroomRequest that the agent has handled,
	// with or without success.
	HeadroomAnswered int64
	// CanMakeRoom is true if something idle could still be unloaded for this process.
	CanMakeRoom bool
}

// publication is one value of Limits with what the engine held when it came. It never
// changes: readers load the pointer once and see one publication whole.
type publication struct {
	Limits
	// beyond is what the process held in addition to the back end's account; 0 if no
	// footprint was measured.
	beyond int64
	// ceiling is what the process may hold by the headroom of the Mac; 0 if that is
	// unknown. It is fixed here, so that what the engine takes between two
	// publications is taken from it.
	ceiling int64
}

// limits hold the newest publication.
type limits struct {
	newest atomic.Pointer[publication]

	mu sync.Mutex
	// changed is closed by the next publication. It is guarded by mu, which also keeps
	// publications in order.
	changed chan struct{}
}

func newLimits() *limits {
	l := &limits{changed: make(chan struct{})}
	l.newest.Store(&publication{})
	return l
}

// now is the newest publication; before the first it is empty.
func (l *limits) now() *publication { return l.newest.Load() }

// next is closed when another publication comes.
func (l *limits) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// publish stores what complete makes of v, unless something newer is there already.
// apply is called in the order of publications; neither may block.
func (l *limits) publish(v Limits, complete func(Limits) *publication, apply func(*publication)) (newer bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v.Sequence <= l.now().Sequence {
		return false
	}
	p := complete(v)
	l.newest.Store(p)
	apply(p)
	close(l.changed)
	l.changed = make(chan struct{})
	return true
}

// reapply applies the newest publication once more, in its order.
func (l *limits) reapply(apply func(*publication)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	apply(l.now())
}
