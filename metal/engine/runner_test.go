package engine

import (
	"testing"
	"time"
)

// TestDurationIsThatOfAStepByItself: steps of 8 ms for the host and 1 ms for
// the device are built on one another; the first completes when the second is built,
// the last as soon as it is waited for.
func TestDurationIsThatOfAStepByItself(t *testing.T) {
	began := time.Now()
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	step := func(from int, ahead bool) *inflightStep {
		return &inflightStep{began: at(from), started: at(from + 8), ahead: ahead}
	}
	first, second, last := step(0, false), step(8, true), step(16, true)
	for name, c := range map[string]struct {
		f              *inflightStep
		completed, now int
		next           *inflightStep
		want           int
	}{
		"alone":                       {f: step(100, false), completed: 90, now: 109, want: 9},
		"the first of several":        {f: first, completed: -50, now: 16, next: second, want: 8},
		"one of several":              {f: second, completed: 16, now: 24, next: last, want: 8},
		"the last of several":         {f: last, completed: 24, now: 25, want: 8},
		"one, where the device waits": {f: &inflightStep{began: at(2), started: at(3), ahead: true}, completed: 10, now: 30, next: step(11, true), want: 20},
		"one, where the host takes longer over the next": {f: second, completed: 16, now: 34, next: &inflightStep{began: at(16), started: at(34)}, want: 8},
		"the last, and the device is slow":               {f: &inflightStep{began: at(2), started: at(3), ahead: true}, completed: 10, now: 30, want: 20},
	} {
		if got := c.f.duration(at(c.completed), at(c.now), c.next); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("%s took %v, want %d ms", name, got, c.want)
		}
	}
}
