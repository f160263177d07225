package store

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// minPace is the least pace of a download in bytes per second, over paceWindow. A slower
	// one makes room for those that wait, and continues later.
	minPace    = 64 << 10
	paceWindow = time.Minute
	// maxGap is how much of the time between two reads counts: a source that is silent for
	// longer fails by itself, and files are verified meanwhile.
	maxGap = 30 * time.Second
	// fullTurn is how long a download may receive before it makes room for one of a
	// namespace with fewer slots, also if it keeps the pace. It continues where it stopped.
	fullTurn = time.Minute
)

// maxLastTurns is more namespaces than a Mac downloads for at a time.
const maxLastTurns = 512

// errYielded cancels a slow or long download while others wait; it continues in another turn.
var errYielded = errors.New("the download is slow or long, and others wait")

// slots bound the number of downloads at a time. No namespace can use all of
// them, so that slow or endless sources of one do not block the downloads of
// others. Slow and long downloads of several namespaces together make room.
type slots struct {
	most   int
	pace   int64         // minPace
	window time.Duration // paceWindow
	now    func() time.Time

	mu      sync.Mutex     // guards what follows, and the turns
	running map[*turn]bool // all that have begun
	waiting []*turn        // in the order of their arrival
	// begun counts the turns, and lastTurn is that of each namespace.
	begun    int64
	lastTurn map[string]int64
}

// turn is a download that waits until begun is closed, and then has a slot until it ends.
type turn struct {
	slots *slots
	// wanted returns the namespaces that want it, by name; none if that is unknown. namespace is
	// charged for it.
	wanted    func() []string
	namespace string
	begun     chan struct{}
	yield     context.CancelCauseFunc // nil until it has begun

	bytes   int64 // gained in this window
	active  time.Duration
	whole   time.Duration // active since it has begun
	last    time.Time
	slow    bool // in the last complete window
	yielded bool
}

func newSlots(most int) *slots {
	return &slots{most: most, pace: minPace, window: paceWindow, now: time.Now, running: map[*turn]bool{}, lastTurn: map[string]int64{}}
}

// acquire waits for a slot, which end returns. The context of the turn ends with errYielded
// if the download is slow and others wait.
func (t *slots) acquire(ctx context.Context, wanted func() []string) (within context.Context, w *turn, err error) {
	within, cancel := context.WithCancelCause(ctx)
	w = &turn{slots: t, wanted: wanted, begun: make(chan struct{}), yield: cancel, last: t.now()}
	t.change(func() { t.waiting = append(t.waiting, w) })
	select {
	case <-w.begun:
		return within, w, nil
	case <-ctx.Done():
	}
	w.end()
	return nil, nil, context.Cause(ctx)
}

// end returns the slot, or stops waiting for one.
func (w *turn) end() {
	w.slots.change(func() {
		delete(w.slots.running, w)
		w.slots.waiting = slices.DeleteFunc(w.slots.waiting, func(o *turn) bool { return o == w })
	})
	w.yield(nil)
}

// gained counts bytes from the source.
func (w *turn) gained(n int) {
	w.slots.mu.Lock()
	now := w.slots.now()
	gap := min(now.Sub(w.last), maxGap)
	w.active += gap
	w.whole += gap
	w.last = now
	w.bytes += int64(n)
	complete := w.active >= w.slots.window
	if complete {
		w.slow = w.bytes < int64(w.active.Seconds()*float64(w.slots.pace))
		w.active, w.bytes = 0, 0
	}
	w.slots.mu.Unlock()
	if complete {
		w.slots.look()
	}
}

// change changes the running and waiting downloads, and starts what may run then:
// the oldest one of the namespace with the fewest slots, of these the one that had no turn for
// longest. If any still waits, a slow one makes room, or a long one of a namespace with more
// slots.
func (t *slots) change(what func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	what()
	if len(t.lastTurn) > maxLastTurns {
		maps.DeleteFunc(t.lastTurn, func(namespace string, _ int64) bool { return !t.knows(namespace) })
	}
	for len(t.running) < t.most {
		at := t.next()
		if at < 0 {
			return
		}
		w := t.waiting[at]
		t.waiting = slices.Delete(t.waiting, at, at+1)
		t.running[w] = true
		t.begun++
		t.lastTurn[w.namespace] = t.begun
		w.last = t.now()
		close(w.begun)
	}
	at := t.next()
	if at < 0 {
		return
	}
	for w := range t.running {
		if w.yielded { // its slot will be free soon
			return
		}
	}
	if w := t.leaves(t.waiting[at].namespace); w != nil {
		w.yielded = true
		w.yield(errYielded)
	}
}

// knows reports whether a namespace has a download.
func (t *slots) knows(namespace string) bool {
	for w := range t.running {
		if w.namespace == namespace {
			return true
		}
	}
	return slices.ContainsFunc(t.waiting, func(w *turn) bool { return w.namespace == namespace })
}

// look starts what may run now.
func (t *slots) look() { t.change(func() {}) }

// used returns how many slots each namespace has.
func (t *slots) used() map[string]int {
	used := map[string]int{}
	for w := range t.running {
		used[w.namespace]++
	}
	return used
}

// leaves returns the download that makes room for one of a namespace; nil if none has to.
func (t *slots) leaves(waits string) (long *turn) {
	used := t.used()
	for w := range t.running {
		switch {
		case w.slow:
			return w
		case w.whole < fullTurn || used[w.namespace] <= used[waits]:
		case long == nil || used[w.namespace] > used[long.namespace] || used[w.namespace] == used[long.namespace] && w.whole > long.whole:
			long = w
		}
	}
	return long
}

// next is the index of the waiting download that may run next; -1 if there is none.
func (t *slots) next() int {
	used := t.used()
	next := -1
	for i, w := range t.waiting {
		w.charge(used)
		if used[w.namespace] < t.share(w.namespace) && (next < 0 || t.before(w, t.waiting[next], used)) {
			next = i
		}
	}
	return next
}

// before reports whether a download runs before one that has waited for longer.
func (t *slots) before(a, b *turn, used map[string]int) bool {
	return cmp.Or(used[a.namespace]-used[b.namespace], cmp.Compare(t.lastTurn[a.namespace], t.lastTurn[b.namespace])) < 0
}

// charge charges a waiting download to the namespace with the fewest slots of those that want it.
// Otherwise one whose slots are used up would make the others wait with it.
func (w *turn) charge(used map[string]int) {
	if all := w.wanted(); len(all) > 0 {
		w.namespace = slices.MinFunc(all, func(a, b string) int { return used[a] - used[b] })
	}
}

// share is how many slots a namespace may use; an unknown one may use all.
func (t *slots) share(namespace string) int {
	if namespace == "" {
		return t.most
	}
	return max(1, t.most-1)
}
