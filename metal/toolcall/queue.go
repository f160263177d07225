package toolcall

// queue holds symbols that are read next. What was read can be put back in front of the
// others without copying them.
type queue struct {
	all []symbol
	at  int // of the first in all
}

func (q *queue) len() int { return len(q.all) - q.at }

// mostSpare is how much room is kept for more, in symbols or bytes: what is read again once
// may be all of an answer.
const mostSpare = 4 << 10

// emptied is a slice without its elements, and without its memory if that is much.
func emptied[T any](s []T) []T {
	if cap(s) > mostSpare {
		return nil
	}
	return s[:0]
}

// pop returns the first symbol and removes it.
func (q *queue) pop() symbol {
	s := q.all[q.at]
	if q.at++; q.at == len(q.all) {
		q.all, q.at = emptied(q.all), 0
	}
	return s
}

func (q *queue) append(s ...symbol) { q.all = append(q.all, s...) }

// prepend puts symbols in front. If there is no room, it makes room for as many again as
// there are then, so that the cost of copying is shared by many calls.
func (q *queue) prepend(s []symbol) {
	if len(s) > q.at {
		room := 2*len(s) + q.len()
		all := make([]symbol, room+q.len())
		copy(all[room:], q.all[q.at:])
		q.all, q.at = all, room
	}
	q.at -= len(s)
	copy(q.all[q.at:], s)
}
