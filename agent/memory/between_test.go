package memory

import (
	"testing"
	"time"
)

// between is the engine in the polls that count, claims in those in between.
func between(p *polls, engine, claims EngineReading, others ...EngineReading) (out []Action) {
	out = p.see(0, append([]EngineReading{engine}, others...)...).Actions
	out = append(out, p.soon(append([]EngineReading{claims}, others...)...).Actions...)
	return append(out, p.soon(append([]EngineReading{engine}, others...)...).Actions...)
}

// TestAnEngineOverItsLimitInBetweenPollsIsEnded: it knows of each poll, and causes some itself. The
// prompts of all wait from such a poll to the next one.
func TestAnEngineOverItsLimitInBetweenPollsIsEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		accounted int64
		change    func(*polls, *EngineReading) // of the claims
		drains    bool
	}{
		"at ease":                    {accounted: 12, change: nil, drains: false},
		"under hard pressure":        {accounted: 86, change: nil, drains: false},
		"in an emergency":            {accounted: 110, change: nil, drains: false},
		"its drain lasts":            {accounted: 86, change: nil, drains: true},
		"its pool was returned then": {accounted: 86, change: (*polls).justTrimmed, drains: false},
	} {
		t.Run(name, func(t *testing.T) {
			p, aborted := newPolls(), false
			for n := range 2 * stopPolls {
				engine := overLimit(2)
				engine.Stopping, engine.Lasting = tc.drains, tc.drains
				claims := with(engine, func(e *EngineReading) {
					if e.Accounted = tc.accounted * gib; tc.change != nil {
						tc.change(p, e)
						e.TrimAcknowledged = p.now.Add(time.Second)
					}
				})
				for _, a := range between(p, engine, claims, pinned(10)) {
					switch {
					case a.Step == StepTrim:
					case a.Key.UID != "over":
						t.Fatalf("second %d: %+v", n, a)
					case a.Step == StepAbort:
						aborted = true
					case a.Step == StepKill && tc.drains, a.Step == StepUnload:
						if !aborted || n > 10 && !tc.drains {
							t.Errorf("second %d, its requests were aborted: %v: %+v", n, aborted, a)
						}
						return
					}
				}
			}
			t.Errorf("it was not ended; its requests were: %v", aborted)
		})
	}
}

// TestOneReadingOverItsLimitIsNoReasonToEndAnEngine, nor to abort its requests.
func TestOneReadingOverItsLimitIsNoReasonToEndAnEngine(t *testing.T) {
	p := newPolls()
	for n := range 300 {
		claims := overLimit(8)
		if n%5 == 0 {
			claims = overLimit(11)
		}
		if got := between(p, overLimit(8), claims, pinned(10)); len(got) > 0 {
			t.Fatalf("second %d: %+v", n, got)
		}
	}
}
