package memory

import (
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// overLimit is an engine with a limit of 10 GiB that holds held GiB and counts one request.
func overLimit(held float64) EngineReading {
	return with(engine("over", held, 0), func(e *EngineReading) { always(e); busy(e); e.Limit = 10 * gib })
}

// around is slightly more than the limit of overLimit, or slightly less.
func around(more bool) int64 {
	if more {
		return 10*gib + runawayStep/4
	}
	return 10*gib - runawayStep/4
}

// TestAnEngineOverItsLimitEndsAlthoughItsDrainLasts: its owner may give the drain a day.
func TestAnEngineOverItsLimitEndsAlthoughItsDrainLasts(t *testing.T) {
	for name, change := range map[string]func(poll int64, e *EngineReading){
		"it stays":                   func(int64, *EngineReading) {},
		"it grows slowly":            func(n int64, e *EngineReading) { e.Footprint += n * (runawayStep - 1) },
		"only its own figures do":    func(n int64, e *EngineReading) { e.Footprint, e.Accounted = 8*gib, 11*gib+n*(runawayStep-1) },
		"in two of three polls":      func(n int64, e *EngineReading) { e.Footprint = around(n%3 < 2) },
		"in every other poll":        func(n int64, e *EngineReading) { e.Footprint = around(n%2 == 0) },
		"it ends within a minute":    func(_ int64, e *EngineReading) { e.Lasting = false },
		"it keeps its pool":          func(_ int64, e *EngineReading) { e.Pooled = 2 * gib },
		"and its requests have gone": func(_ int64, e *EngineReading) { e.Holds, e.Requests = 0, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolls()
			aborted, killed := false, false
			for n := int64(0); n < 5*stopPolls && !killed; n++ {
				e := with(overLimit(12), func(e *EngineReading) {
					e.Stopping, e.Lasting, e.Active, e.Accounted = true, true, 8*gib, 8*gib
					change(n, e)
				})
				for _, a := range p.see(0, e, pinned(10)).Actions {
					aborted = aborted || a.Step == StepAbort
					if killed = a.Step == StepKill; killed && (n < stopPolls || !aborted && e.Requests > 0 || a.Reason != v1alpha1.ReclaimOverLimit) {
						t.Errorf("poll %d: %+v", n, a)
					}
				}
			}
			if !killed {
				t.Errorf("it was not ended; its requests were: %v", aborted)
			}
		})
	}
}

// TestAnEngineFarOverItsLimitIsKilledSoonInAnEmergency: it took more than the Mac has before it was
// measured, and its end would have time for all of that.
func TestAnEngineFarOverItsLimitIsKilledSoonInAnEmergency(t *testing.T) {
	for name, tc := range map[string]struct {
		held, others float64
		most         int
	}{
		"the Mac has no memory left":           {held: 30, others: 80, most: 2 * overPolls},
		"it has, and bytes beyond get no time": {held: 30, others: 10, most: stopPolls + 10},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolls()
			for n := 0; ; n++ {
				e := with(overLimit(tc.held), func(e *EngineReading) { e.Stopping = true })
				for _, a := range p.see(0, e, pinned(tc.others)).Actions {
					if a.Step == StepKill && a.Key == e.Key {
						return
					}
				}
				if n > tc.most {
					t.Fatal("it was not killed")
				}
			}
		})
	}
}

// TestADrainLastsIfTheEngineGivesBackWhatItIsAskedFor, be that its pool or its requests.
func TestADrainLastsIfTheEngineGivesBackWhatItIsAskedFor(t *testing.T) {
	for name, change := range map[string]func(poll int64, e *EngineReading){
		"its pool": func(n int64, e *EngineReading) {
			e.Pooled = n % 2 * 3 * gib
			e.Footprint += e.Pooled
		},
		"its requests": func(n int64, e *EngineReading) {
			if n < 4 {
				e.Footprint, e.Active, e.Accounted = 12*gib, 12*gib, 12*gib
			}
		},
		"now and then": func(n int64, e *EngineReading) {
			e.Footprint = around(n%8 < 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolls()
			for n := range int64(8 * stopPolls) {
				e := with(overLimit(8), func(e *EngineReading) {
					e.Stopping, e.Lasting = true, true
					change(n, e)
				})
				for _, a := range p.see(0, e, pinned(10)).Actions {
					if a.Step == StepKill {
						t.Fatalf("poll %d: %+v", n, a)
					}
				}
			}
		})
	}
}

// TestAnEngineThatIsOverItsLimitAgainAndAgainIsEnded: it knows when it is measured, and is within its
// limit in between. The others' prompts wait in each poll in which the Mac is short for it.
func TestAnEngineThatIsOverItsLimitAgainAndAgainIsEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		held         float64
		over, period int
	}{
		"in every other poll":                  {held: 11, over: 1, period: 2},
		"in two of three":                      {held: 11, over: 2, period: 3},
		"in one of three":                      {held: 11, over: 1, period: 3},
		"in three of four":                     {held: 11, over: 3, period: 4},
		"in every other, under hard pressure":  {held: 86, over: 1, period: 2},
		"in two of three, in an emergency":     {held: 96, over: 2, period: 3},
		"in every other poll, in an emergency": {held: 96, over: 1, period: 2},
	} {
		t.Run(name, func(t *testing.T) {
			p, aborted := newPolls(), false
			for n := range 200 {
				held := 8.0
				if n%tc.period < tc.over {
					held = tc.held
				}
				for _, a := range p.see(0, overLimit(held), pinned(10)).Actions {
					if a.Key.UID != "over" {
						t.Fatalf("poll %d: %+v", n, a)
					}
					if aborted = aborted || a.Step == StepAbort; a.Step == StepUnload || a.Step == StepKill {
						if !aborted {
							t.Errorf("poll %d: its requests were not aborted before: %+v", n, a)
						}
						return
					}
				}
			}
			t.Error("it was not ended")
		})
	}
}

// TestAnEngineThatAbortsBringBelowItsLimitStays, if that is seldom needed.
func TestAnEngineThatAbortsBringBelowItsLimitStays(t *testing.T) {
	for name, over := range map[string]func(poll int) bool{
		"two polls of ten":                 func(n int) bool { return n%10 < 2 },
		"a poll of five":                   func(n int) bool { return n%5 == 0 },
		"twenty seconds, every other poll": func(n int) bool { return n < servePolls && n%2 == 0 },
		"two of three for twenty seconds":  func(n int) bool { return n%120 < servePolls && n%3 < 2 },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolls()
			for n := range 1200 {
				held := 8.0
				if over(n) {
					held = 11
				}
				for _, a := range p.see(0, overLimit(held), pinned(10)).Actions {
					if a.Step != StepAbort {
						t.Fatalf("poll %d: %+v", n, a)
					}
				}
			}
		})
	}
}

// TestAnEmergencyAbortsTheRequestsOfOneEngineAtATime, also if the worst offender was over its
// own limit before it began.
func TestAnEmergencyAbortsTheRequestsOfOneEngineAtATime(t *testing.T) {
	p := newPolls()
	wantShort(t, "over its limit", p.see(0, overLimit(12), pinned(50)), v1alpha1.PressureNormal, "")
	wantShort(t, "an emergency", p.see(0, overLimit(55), pinned(50)), v1alpha1.PressureEmergency, "abort over")
	wantShort(t, "it did not help", p.see(0, with(overLimit(55), func(e *EngineReading) { e.Requests = 0 }), pinned(50)), v1alpha1.PressureEmergency, "unload over")
}
