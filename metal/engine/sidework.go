package engine

import "time"

// sideWork is what the loop does between two steps for one request: restoring its prefix, or
// computing layers of its image. While there are others (see blocks.others), each of the two takes no more
// time than their steps do: after a part of it, steps take as long before the next one. It belongs to the loop.
type sideWork struct {
	// owed is how long steps take before more is done, and ended when the last part was done.
	owed  time.Duration
	ended time.Time
}

// waits reports whether steps come first. They do not without others.
func (w *sideWork) waits(others int) bool { return w != nil && others > 0 && w.owed > 0 }

// did counts a part that began then, while there are this many others.
func (w *sideWork) did(began time.Time, others int) {
	if w == nil {
		return
	}
	if w.ended = time.Now(); others > 0 {
		w.owed += w.ended.Sub(began)
	}
}

// forgive owes nothing more, as there is no step to compute. It reports whether something was owed.
func (w *sideWork) forgive() bool {
	if w == nil || w.owed == 0 {
		return false
	}
	w.owed = 0
	return true
}

// stepped counts a step that was completed now. The time of one in flight may contain that of a part.
func (w *sideWork) stepped(took time.Duration) {
	if w != nil {
		w.owed = max(0, w.owed-min(took, time.Since(w.ended)))
	}
}
