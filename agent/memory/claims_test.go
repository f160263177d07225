package memory

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// claims changes an engine to one whose own figure is gibs, and not its footprint.
func claims(gibs int64) func(e *EngineReading) {
	return func(e *EngineReading) { always(e); busy(e); e.Active = gibs * gib }
}

// TestAClaimOverTheLimitCountsAgainstNoOtherEngine if the kernel's figure does not show it.
func TestAClaimOverTheLimitCountsAgainstNoOtherEngine(t *testing.T) {
	idle, draining := engine("idle", 20, 9), with(engine("draining", 10, 1), func(e *EngineReading) { busy(e); stopping(e) })
	asks := with(engine("asks", 1, 0), func(e *EngineReading) { always(e); busy(e); e.HeadroomWanted = 6 * gib })
	for _, gibs := range []int64{30, 50, 64, 120} {
		for name, change := range map[string]func(*EngineReading){
			"serves": func(*EngineReading) {}, "loads": loading, "ends": stopping, "is idle": func(e *EngineReading) { e.Holds, e.Requests = 0, 0 },
		} {
			liar := with(with(engine("liar", 1, 0), claims(gibs)), change)
			d := newPolls().see(0, liar, pinned(30), idle, draining, asks)
			wantShort(t, fmt.Sprintf("%s and claims %d GiB", name, gibs), d, v1alpha1.PressureNormal, "")
			if d.PausePrefill || d.Headroom < 32*gib {
				t.Errorf("%s and claims %d GiB: %+v", name, gibs, d)
			}
			r := mac(total, 0, liar, pinned(30), idle)
			if err := ledgerFor(r).Admit(want(30), r); err != nil {
				t.Errorf("%s and claims %d GiB: %v", name, gibs, err)
			}
		}
	}
}

// TestAClaimDoesNotStandForWhatAnotherEngineHolds: neither its end nor its excess is expected to free it.
func TestAClaimDoesNotStandForWhatAnotherEngineHolds(t *testing.T) {
	for name, change := range map[string]func(*EngineReading){"serves": func(*EngineReading) {}, "ends": stopping} {
		liar := with(with(engine("liar", 1, 0), claims(100)), change)
		over := with(engine("over", 110, 0), func(e *EngineReading) { always(e); busy(e); e.Limit = 10 * gib })
		wantShort(t, name, newPolls().see(0, liar, over), v1alpha1.PressureEmergency, "abort over")
		wantShort(t, name+", hard pressure", newPolls().see(0, liar, pinned(80), engine("idle", 17, 1)), v1alpha1.PressureHard, "evict idle")
	}
}

// TestDrainsLastIfEnginesOverTheirLimitsCauseTheEmergency: those end within a few polls.
func TestDrainsLastIfEnginesOverTheirLimitsCauseTheEmergency(t *testing.T) {
	draining := with(engine("draining", 10, 1), func(e *EngineReading) { busy(e); stopping(e); e.Lasting = true })
	p := newPolls()
	for range 3 {
		for _, a := range p.see(0, overLimit(80), pinned(20), draining).Actions {
			if a.Key.UID != "over" {
				t.Errorf("%+v", a)
			}
		}
	}
}

// turns plays engines that are over their limits in turns for half an hour: each in one poll of
// a round, and one of them in an extra poll at its end as well. Ended ones are removed.
func turns(n int, over func(e *EngineReading)) (paused time.Duration, others []Action) {
	p, ended := newPolls(), map[string]bool{}
	see := func(liar int, lasts time.Duration) {
		engines := []EngineReading{pinned(40), engine("idle", 10, 9), with(engine("draining", 5, 1), func(e *EngineReading) { busy(e); stopping(e); e.Lasting = true })}
		for i := range n {
			e := with(engine(fmt.Sprint("h", i), 0.5, 0), func(e *EngineReading) { always(e); busy(e); e.Reserved, e.Limit = gib, EngineLimit(gib) })
			if i == liar {
				over(&e)
			}
			if !ended[e.Key.UID] {
				engines = append(engines, e)
			}
		}
		r := mac(total, 0, engines...)
		r.Now = p.now
		d := p.Poll(r)
		if d.PausePrefill {
			paused += lasts
		}
		for _, a := range d.Actions {
			if a.Key.UID[0] != 'h' {
				others = append(others, a)
			}
			ended[a.Key.UID] = ended[a.Key.UID] || slices.Contains([]Step{StepUnload, StepKill}, a.Step)
		}
		p.now = p.now.Add(lasts)
	}
	for p.now.Sub(start()) < 30*time.Minute {
		for i := range n - 1 {
			see(i, time.Second)
		}
		see(-1, 2*time.Millisecond)
		see(n-1, time.Second)
	}
	return paused, others
}

// TestEnginesThatAreOverTheirLimitsInTurnsHoldNoPromptsBackForLong: each alone is within its limit
// in most polls.
func TestEnginesThatAreOverTheirLimitsInTurnsHoldNoPromptsBackForLong(t *testing.T) {
	for name, over := range map[string]func(*EngineReading){
		"they claim it":                       func(e *EngineReading) { e.Active = 100 * gib },
		"they cause an emergency":             func(e *EngineReading) { e.Footprint, e.Active = 60*gib, 60*gib },
		"they cause hard pressure":            func(e *EngineReading) { e.Footprint, e.Active = 42*gib, 42*gib },
		"they cause it, and own up to less":   func(e *EngineReading) { e.Footprint = 42 * gib },
		"they cause it, and claim that cache": func(e *EngineReading) { e.Footprint, e.Accounted, e.Cached = 60*gib, 60*gib, 59*gib },
	} {
		for _, n := range []int{4, 5, 8, 12, 20} {
			paused, others := turns(n, over)
			if paused > 3*time.Minute || len(others) > 0 {
				t.Errorf("%d engines, %s: prompts wait for %v of 30 min; others: %v", n, name, paused.Round(time.Second), others)
			}
		}
	}
}
