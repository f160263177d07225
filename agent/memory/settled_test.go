package memory

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// justTrimmed reports that its pool was returned shortly before the poll after p.now, and has another one.
func (p *polls) justTrimmed(e *EngineReading) {
	e.Pooled, e.TrimAcknowledged = gib/1024, p.now.Add(900*time.Millisecond)
}

// soon polls the engines again, in an extra poll.
func (p *polls) soon(engines ...EngineReading) Decision {
	r := mac(total, 0, engines...)
	r.Now = p.now.Add(100 * time.Millisecond)
	return p.Poll(r)
}

// TestAnEngineThatReturnsItsPoolBeforeEachPollIsEnded: it chooses when it acknowledges a request, and its
// footprint may still fall for a moment after that.
func TestAnEngineThatReturnsItsPoolBeforeEachPollIsEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		held  float64
		other func(*polls) EngineReading
		twice bool // polls are forced in between
	}{
		"at ease":               {held: 12, other: nil, twice: false},
		"under hard pressure":   {held: 86, other: nil, twice: false},
		"in an emergency":       {held: 96, other: nil, twice: false},
		"with polls in between": {held: 86, other: nil, twice: true},
		"and so does another one": {held: 96, other: func(p *polls) EngineReading {
			return with(with(pinned(9), p.justTrimmed), func(e *EngineReading) { e.Key.UID = "two" })
		}, twice: false},
	} {
		t.Run(name, func(t *testing.T) {
			p, aborted := newPolls(), false
			for n := range 10 {
				engines := []EngineReading{with(overLimit(tc.held), p.justTrimmed), pinned(10)}
				if tc.other != nil {
					engines = append(engines, tc.other(p))
				}
				actions := p.see(0, engines...).Actions
				if tc.twice {
					engines[0].Pooled, engines[0].TrimAcknowledged = gib/512, time.Time{}
					actions = append(actions, p.soon(engines...).Actions...)
				}
				for _, a := range actions {
					switch {
					case a.Step == StepTrim:
					case a.Key.UID != "over" || n < maxSpared && !tc.twice:
						t.Fatalf("poll %d: %+v", n, a)
					case a.Step == StepAbort:
						aborted = true
					case a.Step == StepUnload && aborted:
						return
					}
				}
			}
			t.Errorf("it was not ended; its requests were: %v", aborted)
		})
	}
}

// TestEnginesThatReturnTheirPoolsBeforeEachPollKeepNoOtherFromBeingEvicted: they are within their limits,
// and prompts of all wait under pressure.
func TestEnginesThatReturnTheirPoolsBeforeEachPollKeepNoOtherFromBeingEvicted(t *testing.T) {
	for name, period := range map[string]int{"one": 1, "two by turns": 2} {
		p := newPolls()
		for n := 0; ; n++ {
			returns := func(turn int) EngineReading {
				e := with(pinned(10), func(e *EngineReading) { e.Key.UID = fmt.Sprint("returns", turn) })
				if n%period == turn {
					e = with(e, p.justTrimmed)
				}
				return e
			}
			if got := short(p.see(0, pinned(60), returns(0), returns(1), engine("idle", 12, 9), engine("other", 1, 1))); strings.Contains(got, "evict idle") {
				break
			}
			if n == 5 {
				t.Errorf("%s: no idle engine is evicted", name)
				break
			}
		}
	}
}

// TestALoadDoesNotWaitForPoolsForEver: an engine may return a byte of its pool again and again.
func TestALoadDoesNotWaitForPoolsForEver(t *testing.T) {
	r := mac(64, 30, engine("idle", 20, 9))
	r.Engines[0].TrimAcknowledged = r.Now.Add(-400 * time.Millisecond)
	w := want(20)
	w.Waits = poolWait
	if short := noRoom(t, ledgerFor(r).Admit(w, r)); short.Pending || len(short.Victims) != 1 {
		t.Errorf("%+v", short)
	}
}
