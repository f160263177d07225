package waiting

import "time"

const (
	// paceTurns is how many turns back the pace of a queue is measured.
	paceTurns = 16
	// paceLeast is how many must be known before anything is told.
	paceLeast = 3
	// paceKept is how long a queue's pace is remembered while nobody waits.
	paceKept = 10 * time.Second
)

// pace is how fast the turns of a queue come.
type pace struct {
	times []time.Time // of the last turns, oldest first
}

func (p *pace) served(now time.Time) {
	if len(p.times) == paceTurns {
		p.times = append(p.times[:0], p.times[1:]...)
	}
	p.times = append(p.times, now)
}

// resume begins anew, unless the last turn was a moment ago.
func (p *pace) resume(now time.Time) {
	if p.old(now) {
		p.times = nil
	}
}

func (p *pace) old(now time.Time) bool {
	return len(p.times) == 0 || now.Sub(p.times[len(p.times)-1]) > paceKept
}

// each is the time of a turn; where turns have stopped coming, it grows.
func (p *pace) each(now time.Time) (time.Duration, bool) {
	if len(p.times) < paceLeast {
		return 0, false
	}
	return now.Sub(p.times[0]) / time.Duration(len(p.times)-1), true
}

// Position of a waiter: 1 is whose turn comes next. It is exact as long as
// nobody comes or leaves and everybody can be served.
func (r *Room) Position(w *Waiter) int {
	mine := w.flow
	if mine == nil {
		return 0
	}
	before := 0
	for mine.waiters[before] != w {
		before++
	}
	turn := mine.tag + uint64(before)
	position := 1 + before
	for _, f := range mine.queue.flows {
		if f == mine || f.tag > turn {
			continue
		}
		ahead := turn - f.tag // turns strictly before
		if f.order < mine.order {
			ahead++
		}
		position += min(len(f.waiters), int(ahead))
	}
	return position
}

// ETA is how long a waiter will wait at the pace of late; known is false while
// there is none.
func (r *Room) ETA(w *Waiter, now time.Time) (eta time.Duration, known bool) {
	if w.flow == nil {
		return 0, false
	}
	each, known := w.flow.queue.pace.each(now)
	return time.Duration(r.Position(w)) * each, known
}
