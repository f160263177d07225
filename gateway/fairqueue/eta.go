package fairqueue

import "time"

const (
	// paceTurns is the number of served requests over which the pace of a queue is
	// measured.
	paceTurns = 16
	// paceLeast is how many samples are needed for an estimate.
	paceLeast = 3
	// paceKept is how long the pace of an empty queue is remembered.
	paceKept = 10 * time.Second
)

// pace measures the time between served requests of a queue.
type pace struct {
	times []time.Time // of the last served requests, oldest first
}

func (p *pace) served(now time.Time) {
	if len(p.times) == paceTurns {
		p.times = append(p.times[:0], p.times[1:]...)
	}
	p.times = append(p.times, now)
}

// resume starts a new measurement, unless the last request was served recently.
func (p *pace) resume(now time.Time) {
	if p.old(now) {
		p.times = nil
	}
}

func (p *pace) old(now time.Time) bool {
	return len(p.times) == 0 || now.Sub(p.times[len(p.times)-1]) > paceKept
}

// each returns the time per request. It grows while no request is served.
func (p *pace) each(now time.Time) (time.Duration, bool) {
	if len(p.times) < paceLeast {
		return 0, false
	}
	return now.Sub(p.times[0]) / time.Duration(len(p.times)-1), true
}

// Position returns the place of an entry: 1 is served next. It is exact while no request
// enters or leaves, every entry can be served and the flows run equally many requests. Flows that
// run more than this one will at its turn are served after it.
func (q *Queue) Position(e *Entry) int {
	mine := e.flow
	if mine == nil {
		return 0
	}
	before := mine.place(e)
	turn, running := mine.tag+uint64(before), before
	if q.Runs != nil {
		running += q.Runs(e)
	}
	position := 1 + before
	for _, f := range mine.queue.flows {
		if f == mine || f.tag > turn || len(f.entries) == 0 {
			continue
		}
		if q.Runs != nil && q.Runs(f.entries[0]) > running {
			continue
		}
		ahead := turn - f.tag // turns strictly before this one
		if f.order < mine.order {
			ahead++
		}
		position += min(len(f.entries), int(ahead))
	}
	return position
}

// ETA estimates how long an entry still waits, from the recent pace; known is false while
// there is none.
func (q *Queue) ETA(e *Entry, now time.Time) (eta time.Duration, known bool) {
	if e.flow == nil {
		return 0, false
	}
	each, known := e.flow.queue.pace.each(now)
	return time.Duration(q.Position(e)) * each, known
}
