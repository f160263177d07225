package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestRandomHistoriesKeepTheInvariants polls machines whose engines and other
// programs do anything, and checks the invariants of every decision.
func TestRandomHistoriesKeepTheInvariants(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 5))
		p, asked, aborted := newPolls(), map[Key]request{}, map[Key]bool{}
		spares := spares{engines: map[Key]int{}}
		for poll := range 100 {
			p.now = p.now.Add(time.Second)
			r := anyReading(random, p.now)
			d := p.Poll(r)
			spares.count(r)
			if err := spares.check(r, d); err != nil {
				t.Fatalf("seed %d, poll %d: %v\n%+v\n%+v", seed, poll, err, d, r)
			}
			if err := checkInvariants(r, d, poll, asked, aborted); err != nil {
				t.Fatalf("seed %d, poll %d: %v\n%+v\n%+v", seed, poll, err, d, r)
			}
		}
	}
}

// request for pooled bytes, and whether fewer were pooled at a poll since.
type request struct {
	poll     int
	pooled   int64
	returned bool
}

func anyReading(random *rand.Rand, now time.Time) Reading {
	var engines []EngineReading
	for _, uid := range []string{"a", "b", "c", "d", "e"} {
		if random.IntN(4) == 0 {
			continue
		}
		engines = append(engines, with(engine(uid, float64(random.IntN(40)), random.IntN(60)), func(e *EngineReading) {
			e.Active, e.Accounted = e.Footprint*int64(random.IntN(5))/4, e.Footprint*int64(random.IntN(5))/4
			e.Pooled, e.Cached = int64(random.IntN(3))*gib, int64(random.IntN(3))*gib
			e.Limit += int64(random.IntN(5)-3) * gib
			e.OnDemand, e.BusyKnown, e.Loading, e.Stopping = random.IntN(2) == 0, random.IntN(8) > 0, random.IntN(8) == 0, random.IntN(8) == 0
			e.Lasting, e.Stuck = e.Stopping && random.IntN(2) == 0, e.Stopping && random.IntN(4) == 0
			e.Holds, e.Requests = int64(random.IntN(3)/2), int64(random.IntN(3)/2)
			e.FootprintKnown = random.IntN(60) > 0
			e.HeadroomWanted = int64(random.IntN(6)/5) * 20 * gib
			e.Priority = int32(random.IntN(3))
			if random.IntN(3) == 0 {
				e.TrimAcknowledged = now.Add(-time.Duration(random.IntN(1500)) * time.Millisecond)
			}
		}))
	}
	r := mac(total, float64(random.IntN(80)-40), engines...)
	r.Now, r.HostKnown = now, random.IntN(30) > 0
	r.Host.Pressure = []string{"", probe.Normal, probe.Warning, probe.Critical}[random.IntN(4)]
	return r
}

// checkInvariants checks one decision; asked and aborted span the polls of a
// history.
func checkInvariants(r Reading, d Decision, poll int, asked map[Key]request, aborted map[Key]bool) error {
	if d.Headroom < 0 || d.Ceiling < 0 || d.Dynamic < 0 {
		return fmt.Errorf("a negative figure")
	}
	if blind(r) != "" && (len(d.Actions) > 0 || d.GuardInactive == "") {
		return fmt.Errorf("a blind poll acts or does not say so")
	}
	if d.Level == v1alpha1.PressureHard && !d.PausePrefill && d.GuardInactive == "" {
		return fmt.Errorf("prompts do not wait")
	}
	done := map[Key]bool{}
	if blind(r) == "" {
		for _, e := range r.Engines {
			if last, ok := asked[e.Key]; ok && e.Pooled < last.pooled {
				last.returned = true
				asked[e.Key] = last
			}
		}
	}
	for _, a := range d.Actions {
		e := r.Engines[slices.IndexFunc(r.Engines, func(e EngineReading) bool { return e.Key == a.Key })]
		if err := checkAction(e, a, d); err != nil {
			return err
		}
		if a.Step == StepTrim {
			if last, ok := asked[a.Key]; ok && !a.Cache && poll-last.poll < trimPolls && !last.returned {
				return fmt.Errorf("%s is asked again after %d polls", a.Key.UID, poll-last.poll)
			}
			if e.Pooled > 0 && !a.Cache {
				asked[a.Key] = request{poll: poll, pooled: e.Pooled}
			}
			continue
		}
		if done[a.Key] {
			return fmt.Errorf("two steps for %s", a.Key.UID)
		}
		done[a.Key] = true
		if a.Step == StepUnload && !aborted[a.Key] {
			return fmt.Errorf("%s is unloaded before its requests were ended", a.Key.UID)
		}
		if a.Step == StepAbort {
			aborted[a.Key] = true
		}
	}
	for k := range asked { // an engine that was gone for a poll starts over
		if !slices.ContainsFunc(r.Engines, func(e EngineReading) bool { return e.Key == k }) && blind(r) == "" {
			delete(asked, k)
			delete(aborted, k)
		}
	}
	return nil
}

// spares counts, for each engine and for the Mac, the polls in which a pool was returned just now,
// less the others.
type spares struct {
	engines map[Key]int
	mac     int
}

func (s *spares) count(r Reading) {
	if blind(r) != "" {
		return
	}
	next, any := map[Key]int{}, false
	for _, e := range r.Engines {
		just := unsettled(e, r.Now)
		next[e.Key], any = tally(s.engines[e.Key], just, maxSpared), any || just
	}
	s.engines, s.mac = next, tally(s.mac, any, maxSpared)
}

// check wants only trims for an engine that returned its pool just now, unless it has for more
// than maxSpared polls; for steps that are not for its own limit one of all engines must have.
func (s *spares) check(r Reading, d Decision) error {
	for _, a := range d.Actions {
		e := r.Engines[slices.IndexFunc(r.Engines, func(e EngineReading) bool { return e.Key == a.Key })]
		spared := s.mac
		if a.Step == StepAbort && rank(d.Level) < rank(v1alpha1.PressureHard) || a.Reason == v1alpha1.ReclaimOverLimit {
			spared = s.engines[a.Key]
		}
		if a.Step != StepTrim && unsettled(e, r.Now) && spared <= maxSpared {
			return fmt.Errorf("%s returned its pool just now", e.Key.UID)
		}
	}
	return nil
}

func checkAction(e EngineReading, a Action, d Decision) error {
	switch {
	case a.Because == "":
		return fmt.Errorf("no reason is given for %s", e.Key.UID)
	case a.Step == StepEvict && (!e.Idle() || !e.OnDemand):
		return fmt.Errorf("%s is evicted and is not idle, or pinned", e.Key.UID)
	case a.Step == StepKill && (e.Gauge() <= e.Limit || e.Stuck || !e.Stopping && d.Level != v1alpha1.PressureEmergency):
		return fmt.Errorf("%s is killed, and within its limit, stuck, or not to end", e.Key.UID)
	case a.Step == StepCancelLoad && !e.Loading, a.Step == StepUnload && (e.Loading || e.Stopping):
		return fmt.Errorf("%s is not in the state for step %d", e.Key.UID, a.Step)
	case a.Step == StepAbort && e.Stopping && d.Level != v1alpha1.PressureEmergency && e.Gauge() <= e.Limit:
		return fmt.Errorf("%s drains within its limit and is aborted without an emergency", e.Key.UID)
	case (a.Step == StepAbort || a.Step == StepUnload) && rank(d.Level) < rank(v1alpha1.PressureHard) && e.Gauge() <= e.Limit:
		return fmt.Errorf("%s is within its limit, and the Mac is at ease", e.Key.UID)
	}
	return nil
}
