package engine

import "time"

// sideAccount counts what the loop does between two steps for one request: restoring its prefix, or
// computing layers of its image. While there are others (see blocks.others), both together take no more
// time than their steps do: after a part of one, steps take as long before the next part, which is of the
// other if that waits. It belongs to the loop.
type sideAccount struct {
	// owed is how long steps take before more is done, and ended when the last part was done.
	owed  time.Duration
	ended time.Time
	all   []*sideWork
	last  *sideWork
}

// sideWork is one kind of that work.
type sideWork struct {
	*sideAccount
	// waiting is for how many more steps it counts as waiting, unless it says so again: its request may end.
	waiting int
}

// newSideWork returns kinds of work that share an account.
func newSideWork() (restores, images *sideWork) {
	a := &sideAccount{}
	a.all = []*sideWork{{sideAccount: a}, {sideAccount: a}}
	return a.all[0], a.all[1]
}

// waits reports whether steps or the other work come first. They do not without others.
func (w *sideWork) waits(others int) bool {
	if w == nil || others == 0 {
		return false
	}
	w.waiting = 2
	for _, o := range w.all {
		if o != w && o.waiting > 0 && w.last == w {
			return true
		}
	}
	return w.owed > 0
}

// did counts a part that began then, while there are this many others.
func (w *sideWork) did(began time.Time, others int) {
	if w == nil {
		return
	}
	w.last, w.waiting = w, 0
	if w.ended = time.Now(); others > 0 {
		w.owed += w.ended.Sub(began)
	}
}

// forgive owes nothing more, as there is no step to compute. It reports whether something waited.
func (w *sideWork) forgive() bool {
	if w == nil {
		return false
	}
	waited := w.owed > 0
	for _, o := range w.all {
		waited = waited || o.waiting > 0
		o.waiting = 0
	}
	w.owed = 0
	return waited
}

// stepped counts a step that was completed now. The time of one in flight may contain that of a part.
func (w *sideWork) stepped(took time.Duration) {
	if w == nil {
		return
	}
	w.owed = max(0, w.owed-min(took, time.Since(w.ended)))
	for _, o := range w.all {
		o.waiting = max(0, o.waiting-1)
	}
}
