package sim

import (
	"container/heap"
	"fmt"
	"time"
)

// epoch is when virtual time begins.
var epoch = time.Unix(1_800_000_000, 0)

// schedule is virtual time: what is to happen, in order.
type schedule struct {
	now  time.Time
	end  time.Time
	next events
	born int64 // numbers events, replicas and revisions
}

func newSchedule(length time.Duration) schedule {
	return schedule{now: epoch, end: epoch.Add(length)}
}

// in has something happen after a while.
func (s *schedule) in(d time.Duration, do func()) {
	heap.Push(&s.next, event{s.now.Add(d), s.number(), do})
}

func (s *schedule) every(d time.Duration, do func()) {
	var again func()
	again = func() {
		do()
		s.in(d, again)
	}
	s.in(d, again)
}

// step lets the next thing happen; false at the end.
func (s *schedule) step() bool {
	if len(s.next) == 0 || s.next[0].at.After(s.end) {
		return false
	}
	e := heap.Pop(&s.next).(event)
	s.now = e.at
	e.do()
	return true
}

// number is one that nothing else of this world has.
func (s *schedule) number() int64 {
	s.born++
	return s.born
}

// clock is the virtual time since the beginning.
func (s *schedule) clock() string {
	d := s.now.Sub(epoch)
	return fmt.Sprintf("%02d:%02d:%02d", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60)
}

// event is something that happens once.
type event struct {
	at    time.Time
	order int64
	do    func()
}

type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e events) Less(i, j int) bool {
	if !e[i].at.Equal(e[j].at) {
		return e[i].at.Before(e[j].at)
	}
	return e[i].order < e[j].order
}
func (e *events) Push(x any) { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
