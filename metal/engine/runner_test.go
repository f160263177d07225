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
		"alone":                       {step(100, false), 90, 109, nil, 9},
		"the first of several":        {first, -50, 16, second, 8},
		"one of several":              {second, 16, 24, last, 8},
		"the last of several":         {last, 24, 25, nil, 8},
		"one, where the device waits": {&inflightStep{began: at(2), started: at(3), ahead: true}, 10, 30, step(11, true), 20},
		"one, where the host takes longer over the next": {second, 16, 34, &inflightStep{began: at(16), started: at(34)}, 8},
		"the last, and the device is slow":               {&inflightStep{began: at(2), started: at(3), ahead: true}, 10, 30, nil, 20},
	} {
		if got := c.f.duration(at(c.completed), at(c.now), c.next); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("%s took %v, want %d ms", name, got, c.want)
		}
	}
}
