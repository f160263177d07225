package memory

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// The tests' Mac: 106 GiB under Balanced have a ceiling of 100, a soft mark of
// 90, a hard mark of 95; levels end below 87.5 and 92.5.
const total = 106

// polls is an enforcer with a clock that advances one second per poll.
type polls struct {
	*Enforcer
	now time.Time
}

func newPolls() *polls { return &polls{NewEnforcer(), start()} }

// see polls the engines, with foreign GiB used by other programs.
func (p *polls) see(foreign float64, engines ...EngineReading) Decision {
	p.now = p.now.Add(time.Second)
	r := mac(total, foreign, engines...)
	r.Now = p.now
	return p.Poll(r)
}

// pinned is an Always engine that answers and stays within its own limit.
func pinned(gibs float64) EngineReading {
	return with(engine("pinned", gibs, 0), func(e *EngineReading) { always(e); busy(e) })
}

// short writes actions as "evict a, abort b".
func short(d Decision) string {
	names := map[Step]string{StepTrim: "trim", StepEvict: "evict", StepAbort: "abort", StepCancelLoad: "cancel", StepUnload: "unload"}
	var out []string
	for _, a := range d.Actions {
		out = append(out, names[a.Step]+" "+a.Key.UID)
	}
	return strings.Join(out, ", ")
}

func wantShort(t *testing.T, when string, d Decision, level v1alpha1.PressureLevel, actions string) {
	t.Helper()
	if d.Level != level || short(d) != actions {
		t.Errorf("%s: %s with [%s], want %s with [%s] (%s)", when, d.Level, short(d), level, actions, d.Because)
	}
}

func TestGaugeIsTheLargestOfThree(t *testing.T) {
	for name, set := range map[string]func(e *EngineReading, n int64){
		"active":    func(e *EngineReading, n int64) { e.Active = n },
		"footprint": func(e *EngineReading, n int64) { e.Footprint = n },
		"accounted": func(e *EngineReading, n int64) { e.Accounted = n },
	} {
		e := with(engine("a", 1, 0), func(e *EngineReading) { always(e); e.Limit = 0; set(e, 91*gib) })
		if e.Gauge() != 91*gib {
			t.Errorf("%s: gauge %d", name, e.Gauge())
		}
		wantShort(t, name, newPolls().see(0, e), v1alpha1.PressureSoft, "")
	}
}

func TestLevelsRiseAndFallWithHysteresis(t *testing.T) {
	const n, s, h, e = v1alpha1.PressureNormal, v1alpha1.PressureSoft, v1alpha1.PressureHard, v1alpha1.PressureEmergency
	type step struct {
		gibs float64
		want v1alpha1.PressureLevel
	}
	for name, steps := range map[string][]step{
		"up and down through all":                        {{10, n}, {89, n}, {91, s}, {96, h}, {103, e}, {94, h}, {92, s}, {87, n}},
		"at the mark is not over it":                     {{90, n}, {95, s}},
		"just below a mark the level is kept":            {{91, s}, {89, s}, {88, s}, {87.4, n}},
		"hard is kept above 92.5":                        {{96, h}, {94, h}, {93, h}, {92.4, s}},
		"a level that is not needed for five polls ends": {{91, s}, {89, s}, {89, s}, {89, s}, {89, s}, {89, n}},
		"a spike starts the five polls again":            {{91, s}, {89, s}, {89, s}, {91, s}, {89, s}, {89, s}, {89, s}, {89, s}, {89, n}},
		"over the fixed ceiling for two polls":           {{101, h}, {101, e}},
		"over the fixed ceiling for one":                 {{101, h}, {99, h}, {101, h}},
		"2 GiB over it at once":                          {{102.1, e}},
		"at the fixed ceiling for two polls":             {{100, h}, {100, h}},
		"exactly 2 GiB over it":                          {{102, h}},
		"an emergency ends well below the ceiling":       {{103, e}, {99, e}, {97, h}},
		"straight down":                                  {{103, e}, {10, n}},
	} {
		p := newPolls()
		for i, step := range steps {
			d := p.see(0, with(pinned(step.gibs), func(e *EngineReading) { e.Limit = 0 }))
			if d.Level != step.want {
				t.Errorf("%s: poll %d with %.1f GiB is %s, want %s (%s)", name, i+1, step.gibs, d.Level, step.want, d.Because)
			}
		}
	}
}

func TestMarksOfLargeMacsExceedTheReservations(t *testing.T) {
	for _, ceiling := range []int64{4, 16, 100, 240, 300, 464, 512, 2000} {
		for _, p := range []footprint.Policy{footprint.Safe, footprint.Balanced, footprint.Aggressive, footprint.Custom} {
			c := ceiling * gib
			soft, hard := footprint.SoftMark(c, p), footprint.HardMark(c)
			if soft >= hard || hard >= c || soft < c*84/100 {
				t.Errorf("%d GiB under %s: soft %d, hard %d", ceiling, p, soft>>30, hard>>30)
			}
		}
	}
}

// The last engine stays.
func TestSoftPressurePausesPromptsAndEvictsIdleEngines(t *testing.T) {
	p := newPolls()
	if d := p.see(0, pinned(60), engine("a", 10, 9), engine("b", 10, 1)); d.PausePrefill || d.Headroom != 15*gib {
		t.Errorf("prompts pause below the mark, or headroom %d: %+v", d.Headroom, d)
	}
	d := p.see(0, pinned(72), engine("a", 10, 9), engine("b", 10, 1))
	wantShort(t, "above the mark", d, v1alpha1.PressureSoft, "evict a")
	if !d.PausePrefill || d.Actions[0].Reason != v1alpha1.ReclaimSoftPressure || d.Headroom != 3*gib {
		t.Errorf("%+v", d)
	}
	d = p.see(0, pinned(72), with(engine("a", 10, 9), stopping), engine("b", 10, 1))
	wantShort(t, "while it ends", d, v1alpha1.PressureSoft, "")
	d = p.see(0, pinned(82), engine("b", 10, 1))
	wantShort(t, "the last one stays", d, v1alpha1.PressureSoft, "")
	d = p.see(0, pinned(72), engine("b", 10, 1))
	wantShort(t, "below it", d, v1alpha1.PressureNormal, "")
	if d.PausePrefill {
		t.Error("prompts still pause")
	}
}

func TestEvictionAimsBelowTheSoftMark(t *testing.T) {
	// 4 GiB are over 87.5, 1.5 over the mark: the engine of 2 is not enough.
	d := newPolls().see(0, pinned(79.5), engine("small", 2, 9), engine("a", 5, 5), engine("b", 5, 1))
	wantShort(t, "", d, v1alpha1.PressureSoft, "evict a")
}

// Below an emergency, pooled memory that an engine returns anyway is no gain.
func TestVictimIsMeasuredWithoutItsPool(t *testing.T) {
	pooled := func(held, pool float64) EngineReading {
		return with(engine("pooled", held, 9), func(e *EngineReading) {
			e.Pooled = int64(pool * float64(gib))
			e.Active, e.Accounted = e.Footprint-e.Pooled, e.Footprint-e.Pooled
		})
	}
	wantShort(t, "4.5 GiB are over", newPolls().see(0, pinned(82), pooled(10, 8), engine("a", 8, 1)), v1alpha1.PressureSoft, "trim pooled, evict a")
	wantShort(t, "in an emergency", newPolls().see(0, pinned(98), pooled(20, 17), engine("a", 5, 1)), v1alpha1.PressureEmergency, "evict pooled, evict a")
}

func TestUnrelievableSoftPressureDoesNotPauseForever(t *testing.T) {
	quiet := with(pinned(91), func(e *EngineReading) { e.Holds, e.Requests = 0, 0 })
	p := newPolls()
	for i := range stuckPolls - 1 {
		if d := p.see(0, quiet); !d.PausePrefill {
			t.Fatalf("poll %d does not pause", i+1)
		}
	}
	if d := p.see(0, quiet); d.PausePrefill || d.Level != v1alpha1.PressureSoft {
		t.Errorf("nothing runs and nothing can be evicted, yet prompts wait: %+v", d)
	}
	if d := p.see(0, pinned(91)); d.PausePrefill {
		t.Error("the first prompt that was let through stops the next")
	}
	if d := p.see(0, pinned(96)); !d.PausePrefill {
		t.Error("hard pressure does not pause")
	}
	p = newPolls()
	for range 3 * stuckPolls {
		if d := p.see(0, pinned(91)); !d.PausePrefill {
			t.Fatal("requests run that will end, yet prompts are let through")
		}
	}
}

// Requests that wait for their prompts, or an answer without end, keep an engine from being idle.
func TestSoftPressureThatLastsLetsPromptsThrough(t *testing.T) {
	waiting := with(pinned(91), func(e *EngineReading) { e.Holds, e.Requests = 1, 1 })
	p := newPolls()
	for poll := 1; p.see(0, waiting).PausePrefill; poll++ {
		if poll > 2*softPolls {
			t.Fatalf("prompts still wait after %d polls, with a request that waits", poll)
		}
	}
	if d := p.see(0, waiting); d.PausePrefill || d.Level != v1alpha1.PressureSoft {
		t.Errorf("the next prompt waits again: %+v", d)
	}
	if !p.see(0, pinned(96)).PausePrefill {
		t.Error("hard pressure does not pause")
	}
}

// TestHardPressureByOtherProgramsLetsPromptsThrough when it lasts: they may use the memory for days.
func TestHardPressureByOtherProgramsLetsPromptsThrough(t *testing.T) {
	p := newPolls()
	crowd := func() Decision { return p.see(-104, pinned(20)) }
	for poll := 1; crowd().PausePrefill; poll++ {
		if poll > 2*softPolls {
			t.Fatalf("prompts still wait after %d polls", poll)
		}
	}
	if d := crowd(); d.PausePrefill || d.Level != v1alpha1.PressureHard || d.Headroom != 0 {
		t.Errorf("%+v, want prompts let through, for which there is no more room than before", d)
	}
	if !p.see(0, pinned(96)).PausePrefill {
		t.Error("hard pressure by the engines themselves does not pause")
	}
}

// All idle engines, then requests of engines over their limit, then loads.
func TestHardPressureEscalates(t *testing.T) {
	over := func(e *EngineReading) { e.Limit = e.Gauge() - gib }
	farOver := func(e *EngineReading) { e.Limit = e.Gauge() - 9*gib }
	requests := func(uid string, gibs float64, n int64, limit func(*EngineReading)) EngineReading {
		return with(engine(uid, gibs, 0), func(e *EngineReading) { always(e); limit(e); e.Requests = n })
	}
	loads := func(uid string, gibs float64, priority int32) EngineReading {
		return with(engine(uid, gibs, 0), func(e *EngineReading) { loading(e); e.Priority = priority })
	}
	load := with(engine("load", 5, 0), loading)
	for name, tc := range map[string]struct {
		engines []EngineReading
		want    string
	}{
		"an evicted engine is not asked for a pool":   {engines: []EngineReading{pinned(86), with(engine("a", 10, 1), func(e *EngineReading) { e.Pooled = gib / 8 }), with(pinned(1), func(e *EngineReading) { e.Key.UID, e.Pooled = "asked", gib/8 })}, want: "trim asked, evict a"},
		"the last idle engine is evicted":             {engines: []EngineReading{pinned(86), engine("a", 10, 1)}, want: "evict a"},
		"an engine that is ending is waited for":      {engines: []EngineReading{pinned(86), with(engine("a", 10, 1), stopping), load}, want: ""},
		"the requests of who is over its limit":       {engines: []EngineReading{with(pinned(91), over), load}, want: "abort pinned"},
		"the busiest of two over their limit":         {engines: []EngineReading{with(pinned(50), over), with(with(engine("b", 46, 0), over), func(e *EngineReading) { always(e); e.Requests = 7 })}, want: "abort b"},
		"idle engines and requests":                   {engines: []EngineReading{with(pinned(98), over), engine("a", 1, 1)}, want: "evict a, abort pinned"},
		"no requests where idle engines are enough":   {engines: []EngineReading{with(pinned(90), over), engine("a", 9, 1)}, want: "evict a"},
		"a load if no engine is over its limit":       {engines: []EngineReading{pinned(91), load}, want: "cancel load"},
		"the least important load":                    {engines: []EngineReading{pinned(86), with(load, func(e *EngineReading) { e.Priority = 1 }), with(engine("other", 5, 0), loading)}, want: "cancel other"},
		"no load below the hard mark, idle ones gone": {engines: []EngineReading{pinned(85), load, engine("a", 6, 1)}, want: "evict a"},
		"no engine within its limit":                  {engines: []EngineReading{pinned(96)}, want: ""},
		"an idle engine that is the first":            {engines: []EngineReading{engine("a", 10, 1), pinned(86)}, want: "evict a"},
		"no idle engine where one that ends suffices": {engines: []EngineReading{pinned(80), with(engine("a", 10, 1), stopping), engine("b", 6, 1)}, want: ""},
		"the busiest of two, which is the first":      {engines: []EngineReading{requests("a", 46, 7, over), requests("b", 50, 1, over)}, want: "abort a"},
		"the busiest of two, which is the last":       {engines: []EngineReading{requests("a", 50, 1, over), requests("b", 46, 7, over)}, want: "abort b"},
		"as busy, further over its limit":             {engines: []EngineReading{requests("a", 50, 1, over), requests("b", 46, 1, farOver), requests("c", 0.1, 1, over)}, want: "abort b"},
		"as busy, further over its limit, the first":  {engines: []EngineReading{requests("a", 46, 1, farOver), requests("b", 50, 1, over)}, want: "abort a"},
		"not one within its limit that is the first":  {engines: []EngineReading{pinned(46), requests("b", 50, 1, over)}, want: "abort b"},
		"the least important load, which is larger":   {engines: []EngineReading{pinned(86), loads("a", 6, 0), loads("b", 4, 1)}, want: "cancel a"},
		"the least important load, which is smaller":  {engines: []EngineReading{pinned(86), loads("a", 6, 1), loads("b", 4, 0)}, want: "cancel b"},
		"a load over its limit is cancelled":          {engines: []EngineReading{pinned(91), with(loads("a", 6, 0), func(e *EngineReading) { over(e); e.Holds = 1 })}, want: "cancel a"},
		"the only load, however important":            {engines: []EngineReading{pinned(91), loads("a", 6, 5)}, want: "cancel a"},
		"the larger load, which is the first":         {engines: []EngineReading{pinned(86), loads("a", 6, 0), loads("b", 4, 0)}, want: "cancel a"},
		"the larger load, which is the last":          {engines: []EngineReading{pinned(86), loads("a", 4, 0), loads("b", 6, 0)}, want: "cancel b"},
	} {
		wantShort(t, name, newPolls().see(0, tc.engines...), v1alpha1.PressureHard, tc.want)
	}
}

func TestHardPressureAbortsAnEngineOnce(t *testing.T) {
	over := with(pinned(96), func(e *EngineReading) { e.Limit = 95 * gib })
	p := newPolls()
	wantShort(t, "at once", p.see(0, over), v1alpha1.PressureHard, "abort pinned")
	wantShort(t, "while its requests end", p.see(0, over), v1alpha1.PressureHard, "")
}

func TestCancelledLoadHasAReason(t *testing.T) {
	d := newPolls().see(0, pinned(91), with(engine("load", 5, 0), loading))
	if len(d.Actions) != 1 || d.Actions[0].Reason != v1alpha1.ReclaimLoadCancelled || d.Actions[0].Because == "" {
		t.Errorf("%+v", d.Actions)
	}
}

func TestFallingDynamicCeilingAbortsNoRequest(t *testing.T) {
	over := with(pinned(20), func(e *EngineReading) { e.Limit = 0; e.Requests = 9 })
	load := with(engine("load", 2, 0), loading)
	p := newPolls()
	d := p.see(-104, over, load)
	wantShort(t, "a dip", d, v1alpha1.PressureHard, "")
	if d.Term != footprint.Dynamic || d.Dynamic != d.Ceiling || !d.PausePrefill {
		t.Errorf("%+v", d)
	}
	wantShort(t, "after it", p.see(10, over, load), v1alpha1.PressureNormal, "")
	wantShort(t, "another dip", p.see(-104, over, load), v1alpha1.PressureHard, "")
	wantShort(t, "a load is canceled if it lasts", p.see(-104, over, load), v1alpha1.PressureHard, "cancel load")
	for range 20 {
		wantShort(t, "never the requests", p.see(-104, over), v1alpha1.PressureHard, "")
	}
}

// A back end's memory pool is part of its footprint.
func TestPooledMemoryIsReclaimedFirst(t *testing.T) {
	pooled := func(held, pool float64) EngineReading {
		return with(engine("pinned", held, 0), func(e *EngineReading) {
			always(e)
			busy(e)
			e.Limit, e.Pooled = 0, int64(pool*float64(gib))
			e.Active, e.Accounted = e.Footprint-e.Pooled, e.Footprint-e.Pooled
		})
	}
	p := newPolls()
	wantShort(t, "without pressure no engine is asked", p.see(0, pooled(60, 20), engine("a", 20, 1)), v1alpha1.PressureNormal, "")
	for range 2 * trimPolls {
		p.see(0, pooled(60, 20), engine("a", 20, 1))
	}
	wantShort(t, "over the mark with the pool alone", p.see(0, pooled(76, 20), engine("a", 20, 1)), v1alpha1.PressureNormal, "trim pinned")
	for i := range 4 {
		wantShort(t, fmt.Sprint("the request is ", i+1, " polls old"), p.see(0, pooled(76, 20), engine("a", 10, 1), engine("b", 10, 2)), v1alpha1.PressureNormal, "")
	}
	wantShort(t, "five polls: what is held counts, and it is asked again", p.see(0, pooled(76, 20), engine("a", 10, 1), engine("b", 10, 2)),
		v1alpha1.PressureHard, "trim pinned, evict b")
	for name, cannot := range map[string]func(*EngineReading){"loads": loading, "stops": stopping} {
		unable := with(pooled(91, 20), func(e *EngineReading) { e.Requests, e.Holds = 0, 0; cannot(e) })
		wantShort(t, "one that "+name+" cannot return its pool", newPolls().see(0, unable), v1alpha1.PressureSoft, "")
	}
	wantShort(t, "asking again does not restart the wait", p.see(0, pooled(76, 20), engine("a", 10, 1), with(engine("b", 10, 2), stopping)), v1alpha1.PressureHard, "")
}

func TestEvictionWaitsForAReadingAfterTheTrim(t *testing.T) {
	p := newPolls()
	acknowledged := func(ago time.Duration) EngineReading {
		return with(engine("a", 6, 1), func(e *EngineReading) { e.TrimAcknowledged = p.now.Add(time.Second - ago) })
	}
	wantShort(t, "0.4 s", p.see(0, pinned(92), acknowledged(400*time.Millisecond)), v1alpha1.PressureHard, "")
	wantShort(t, "0.5 s", p.see(0, pinned(92), acknowledged(500*time.Millisecond)), v1alpha1.PressureHard, "evict a")
	p = newPolls()
	p.see(0, pinned(104), acknowledged(100*time.Millisecond))
	wantShort(t, "in an emergency too", p.see(0, pinned(104), acknowledged(100*time.Millisecond)), v1alpha1.PressureEmergency, "")
}

func TestEmergencyAbortsTheWorstEngineThenStopsIt(t *testing.T) {
	worst := with(engine("worst", 50, 0), func(e *EngineReading) { always(e); busy(e); e.Limit = 49 * gib })
	other := with(engine("other", 53, 0), func(e *EngineReading) { always(e); busy(e) })
	aborted := with(worst, func(e *EngineReading) { e.Requests = 0 })
	p := newPolls()
	wantShort(t, "at once", p.see(0, worst, other), v1alpha1.PressureEmergency, "abort worst")
	d := p.see(0, aborted, other)
	wantShort(t, "still over", d, v1alpha1.PressureEmergency, "unload worst")
	if d.Actions[0].Reason != v1alpha1.ReclaimOverLimit && d.Actions[0].Reason != v1alpha1.ReclaimEmergency {
		t.Errorf("%+v", d.Actions)
	}
	wantShort(t, "while it ends the other works on", p.see(0, with(aborted, stopping), other), v1alpha1.PressureEmergency, "")
	wantShort(t, "gone", p.see(0, other), v1alpha1.PressureNormal, "")
	// The abort was enough and is forgotten.
	p = newPolls()
	p.see(0, worst, other)
	wantShort(t, "below again", p.see(0, with(engine("worst", 30, 0), always), other), v1alpha1.PressureNormal, "")
	wantShort(t, "the next emergency begins with the requests", p.see(0, worst, other), v1alpha1.PressureEmergency, "abort worst")
}

func TestEmergencyWithinLimitsTakesTheLowestPriority(t *testing.T) {
	a := with(engine("a", 50, 0), func(e *EngineReading) { always(e); busy(e) })
	b := with(engine("b", 30, 0), func(e *EngineReading) { busy(e) })
	c := with(engine("c", 25, 0), func(e *EngineReading) { busy(e); e.Priority = 3 })
	p := newPolls()
	wantShort(t, "OnDemand before Always, low before high", p.see(0, a, b, c), v1alpha1.PressureEmergency, "abort b")
	small := with(engine("small", 10, 0), func(e *EngineReading) { busy(e); e.Priority = -1 })
	for name, engines := range map[string][]EngineReading{"first": {small, a, b, c}, "last": {a, b, c, small}} {
		wantShort(t, "the lowest, although it is small and the "+name, newPolls().see(0, engines...), v1alpha1.PressureEmergency, "abort small")
	}
	same := with(engine("same", 40, 0), busy)
	for name, engines := range map[string][]EngineReading{"first": {same, a, b}, "last": {a, b, same}} {
		wantShort(t, "the larger of equals, the "+name, newPolls().see(0, engines...), v1alpha1.PressureEmergency, "abort same")
	}
	beyond := with(engine("beyond", 3, 0), func(e *EngineReading) { always(e); busy(e); e.Reserved, e.Priority = 5*gib/2, 9 })
	wantShort(t, "one within its reservation last", newPolls().see(0, a, small, same, beyond), v1alpha1.PressureEmergency, "abort beyond")
	load := with(engine("load", 14, 0), loading)
	wantShort(t, "a load", newPolls().see(0, pinned(90), load), v1alpha1.PressureEmergency, "cancel load")
	wantShort(t, "not one that is ending", newPolls().see(0, with(engine("ending", 1, 0), stopping), pinned(103)), v1alpha1.PressureEmergency, "abort pinned")
	unlimited := with(engine("unlimited", 90, 0), func(e *EngineReading) { always(e); busy(e); e.Limit = 0 })
	wantShort(t, "without a limit of its own it is not over it", newPolls().see(0, unlimited, with(b, func(e *EngineReading) { e.Limit = 29 * gib })), v1alpha1.PressureEmergency, "abort b")
	done := func(e *EngineReading) { e.Requests = 0 }
	wantShort(t, "then it ends", p.see(0, a, with(b, done), c), v1alpha1.PressureEmergency, "unload b")
}

func TestEmergencyActsAfterOnePollOfGrace(t *testing.T) {
	pooled := with(pinned(104), func(e *EngineReading) {
		e.Limit, e.Pooled = 0, 20*gib
		e.Active, e.Accounted = 84*gib, 84*gib
	})
	p := newPolls()
	wantShort(t, "the pool covers it", p.see(0, pooled), v1alpha1.PressureEmergency, "trim pinned")
	wantShort(t, "once", p.see(0, pooled), v1alpha1.PressureEmergency, "abort pinned")
	p = newPolls()
	wantShort(t, "an idle engine covers it", p.see(0, pinned(90), engine("a", 14, 1)), v1alpha1.PressureEmergency, "evict a")
	ending := with(engine("a", 14, 1), stopping)
	for range 60 {
		wantShort(t, "it ends, and the others are untouched", p.see(0, pinned(90), ending), v1alpha1.PressureEmergency, "")
	}
	ending.Stuck = true
	wantShort(t, "it was killed and does not end", p.see(0, pinned(90), ending), v1alpha1.PressureEmergency, "abort pinned")
	p = newPolls()
	wantShort(t, "nothing covers it", p.see(0, pinned(102), engine("a", 1, 1)), v1alpha1.PressureEmergency, "evict a, abort pinned")
}

func TestEmergencyCutsADrainShort(t *testing.T) {
	draining := with(with(engine("draining", 14, 1), busy), stopping)
	p := newPolls()
	wantShort(t, "grace", p.see(0, pinned(90), draining), v1alpha1.PressureEmergency, "")
	wantShort(t, "then", p.see(0, pinned(90), draining), v1alpha1.PressureEmergency, "abort draining")
}

// Each end of an engine triggers a poll; ten ends in a moment do not count as ten
// seconds.
func TestExtraPollsDoNotShortenWaits(t *testing.T) {
	p := newPolls()
	between := func(engines ...EngineReading) Decision {
		p.now = p.now.Add(50*time.Millisecond - time.Second)
		return p.see(0, engines...)
	}
	wantShort(t, "over the fixed ceiling", p.see(0, pinned(101)), v1alpha1.PressureHard, "")
	for range 5 {
		wantShort(t, "and 50 ms later", between(pinned(101)), v1alpha1.PressureHard, "")
	}
	wantShort(t, "for two polls", p.see(0, pinned(101)), v1alpha1.PressureEmergency, "abort pinned")
	p = newPolls()
	wantShort(t, "the pool of one that is asked", p.see(0, pinned(90), engine("a", 14, 1)), v1alpha1.PressureEmergency, "evict a")
	for range 20 {
		wantShort(t, "it ends", between(pinned(90), with(engine("a", 14, 1), stopping)), v1alpha1.PressureEmergency, "")
	}
}

// First a trim, then an abort of its requests, then a stop. Other engines are
// not affected.
func TestEngineOverItsOwnLimitIsHandledAlone(t *testing.T) {
	leak := func(held, pool float64, requests int64) EngineReading {
		return with(engine("leak", held, 0), func(e *EngineReading) {
			e.Limit, e.Pooled, e.Requests, e.OnDemand = 10*gib, int64(pool*float64(gib)), requests, false
			e.Active, e.Accounted = e.Footprint-e.Pooled, e.Footprint-e.Pooled
		})
	}
	others := []EngineReading{engine("idle", 10, 99), pinned(10)}
	see := func(p *polls, e EngineReading) Decision {
		return p.see(0, append([]EngineReading{e}, others...)...)
	}
	p := newPolls()
	wantShort(t, "within it", see(p, leak(10, 3, 1)), v1alpha1.PressureNormal, "")
	wantShort(t, "over it by its pool", see(p, leak(12, 3, 1)), v1alpha1.PressureNormal, "trim leak")
	wantShort(t, "over it without its pool", see(p, leak(12, 0, 1)), v1alpha1.PressureNormal, "")
	wantShort(t, "again", see(p, leak(13, 0, 1)), v1alpha1.PressureNormal, "abort leak")
	wantShort(t, "the end of its requests takes one more poll", see(p, leak(13, 0, 1)), v1alpha1.PressureNormal, "")
	d := see(p, leak(13, 0, 0))
	wantShort(t, "it did not help", d, v1alpha1.PressureNormal, "unload leak")
	if d.PausePrefill || d.Actions[0].Reason != v1alpha1.ReclaimOverLimit || !strings.Contains(d.Actions[0].Because, "13.0 GiB, more than its own limit of 10.0 GiB") {
		t.Errorf("%+v", d)
	}
	wantShort(t, "while it ends", see(p, with(leak(13, 0, 0), stopping)), v1alpha1.PressureNormal, "")
	p = newPolls()
	see(p, leak(13, 0, 1))
	see(p, leak(13, 0, 1))
	wantShort(t, "it helped", see(p, leak(9, 0, 0)), v1alpha1.PressureNormal, "")
	wantShort(t, "and is forgotten", see(p, leak(13, 0, 1)), v1alpha1.PressureNormal, "")
	p = newPolls()
	p.see(0, leak(13, 0, 1), pinned(65), engine("idle", 10, 9), engine("more", 1, 1))
	p.see(0, leak(13, 0, 1), pinned(65), engine("idle", 10, 9), engine("more", 1, 1))
	p.see(0, leak(13, 0, 0), pinned(65), engine("idle", 10, 9), engine("more", 1, 1))
	wantShort(t, "its end is enough under soft pressure", p.see(0, leak(13, 0, 0), pinned(67), engine("idle", 10, 9), engine("more", 1, 1)), v1alpha1.PressureSoft, "unload leak")
	p = newPolls()
	wantShort(t, "over it by its pool, and not the first", p.see(0, pinned(10), leak(12, 3, 1)), v1alpha1.PressureNormal, "trim leak")
	p = newPolls()
	ending := with(engine("ending", 5, 0), stopping)
	p.see(0, ending, pinned(10), leak(13, 0, 1))
	wantShort(t, "its requests, and not the first", p.see(0, ending, pinned(10), leak(13, 0, 1)), v1alpha1.PressureNormal, "abort leak")
	p = newPolls()
	see(p, leak(13, 0, 1))
	see(p, leak(13, 0, 1))
	unknown := with(leak(13, 0, 0), func(e *EngineReading) { e.BusyKnown = false })
	wantShort(t, "its requests may not have ended", see(p, unknown), v1alpha1.PressureNormal, "")
	p = newPolls()
	see(p, with(leak(13, 0, 0), loading))
	wantShort(t, "a load over it is cancelled", see(p, with(leak(13, 0, 0), loading)), v1alpha1.PressureNormal, "cancel leak")
}

func TestFailedProbeKeepsTheLevelAndStopsNothing(t *testing.T) {
	idle := engine("idle", 20, 9)
	for name, tc := range map[string]struct {
		change func(r *Reading)
		want   string
	}{
		"the host":           {change: func(r *Reading) { r.HostKnown = false }, want: "the memory of this Mac could not be measured"},
		"the host, silently": {change: func(r *Reading) { r.Host = probe.Host{} }, want: "the memory of this Mac could not be measured"},
		"one engine":         {change: func(r *Reading) { r.Engines[0].FootprintKnown = false }, want: "the memory of replica pinned, epoch 1, could not be measured"},
	} {
		p := newPolls()
		p.see(0, pinned(91))
		for _, gibs := range []float64{10, 200} {
			r := mac(total, 0, pinned(gibs), idle, with(engine("over", 5, 0), func(e *EngineReading) { e.Limit = gib }))
			r.Now = p.now.Add(time.Second)
			tc.change(&r)
			for range 20 {
				d := p.Poll(r)
				wantShort(t, name, d, v1alpha1.PressureSoft, "")
				if d.GuardInactive != tc.want || !strings.Contains(d.Because, "keeping the level") || !d.PausePrefill || d.Headroom != 0 {
					t.Fatalf("%s: %+v", name, d)
				}
			}
		}
		if d := p.see(0, pinned(96), idle); d.GuardInactive != "" || short(d) != "evict idle" {
			t.Errorf("%s: the next reading that can see is not acted on: %+v", name, d)
		}
	}
}

// One engine that cannot be measured, which a model that took it over may see to,
// keeps the guard from the others for a while only.
func TestEngineThatCannotBeMeasuredDoesNotKeepTheGuardFromOthers(t *testing.T) {
	p := newPolls()
	hidden := with(engine("hidden", 20, 0), func(e *EngineReading) { e.Footprint, e.FootprintKnown = 0, false })
	over := with(engine("over", 60, 0), func(e *EngineReading) { busy(e); e.Limit = 10 * gib })
	for second := range 60 {
		d := p.see(0, hidden, over)
		if second < 29 && (d.GuardInactive == "" || len(d.Actions) > 0) {
			t.Fatalf("after %d s: %+v", second, d)
		}
		if second > 33 && (d.GuardInactive != "" || d.Headroom == 0 || !strings.Contains(d.Assumed, "hidden")) {
			t.Fatalf("after %d s: %+v", second, d)
		}
		if second > 33 && len(d.Actions) > 0 {
			if d.Actions[0].Key.UID != "over" {
				t.Errorf("%+v", d.Actions)
			}
			return
		}
	}
	t.Error("the engine over its limit is not handled")
}

func TestFailedPollKeepsTheCounters(t *testing.T) {
	p := newPolls()
	p.see(0, with(pinned(101), func(e *EngineReading) { e.Limit = 0 }))
	blind := mac(total, 0, pinned(101))
	blind.HostKnown = false
	p.Poll(blind)
	if d := p.see(0, with(pinned(101), func(e *EngineReading) { e.Limit = 0 })); d.Level != v1alpha1.PressureEmergency {
		t.Errorf("over the ceiling in two readings, with a failed one between: %s", d.Level)
	}
}

// Two engines are needed to cover the figure: both are evicted at once.
func TestVictimsCoverTheDeficitInOnePoll(t *testing.T) {
	engines := []EngineReading{pinned(70), engine("a", 9, 9), engine("b", 9, 8), engine("c", 9, 7)}
	wantShort(t, "hard", newPolls().see(0, engines...), v1alpha1.PressureHard, "evict a, evict b")
	wantShort(t, "an emergency", newPolls().see(0, pinned(90), engine("a", 6, 9), engine("b", 8, 8)), v1alpha1.PressureEmergency, "evict b, evict a")
}

// remembers returns e with that many GiB of cached prompts.
func remembers(e EngineReading, gibs float64) EngineReading {
	e.Cached = int64(gibs * float64(gib))
	return e
}

func TestCachesShrinkBeforeAModelIsEvicted(t *testing.T) {
	caches := func(d Decision) (of []string) {
		for _, a := range d.Actions {
			if a.Cache {
				of = append(of, a.Key.UID)
			}
		}
		return of
	}
	small, large := remembers(pinned(60), 12), remembers(with(pinned(20), func(e *EngineReading) { e.Key.UID = "large" }), 15)
	p := newPolls()
	d := p.see(0, small, large, engine("idle", 18, 9))
	wantShort(t, "the largest cache covers it", d, v1alpha1.PressureHard, "trim large")
	wantShort(t, "it has not answered", p.see(0, small, large, engine("idle", 18, 9)), v1alpha1.PressureHard, "")
	large.Cached, large.Footprint, large.Active, large.Accounted = 0, 5*gib, 5*gib, 5*gib
	wantShort(t, "it answered", p.see(0, small, large, engine("idle", 18, 9)), v1alpha1.PressureNormal, "")

	p = newPolls()
	silent := remembers(pinned(80), 12)
	wantShort(t, "asked", p.see(0, silent, engine("idle", 18, 9)), v1alpha1.PressureHard, "trim pinned")
	for range trimPolls - 1 {
		wantShort(t, "waits for the answer", p.see(0, silent, engine("idle", 18, 9)), v1alpha1.PressureHard, "")
	}
	wantShort(t, "asked again", p.see(0, silent, engine("idle", 18, 9)), v1alpha1.PressureHard, "trim pinned")
	answered := silent
	answered.TrimAcknowledged = p.now.Add(300 * time.Millisecond)
	wantShort(t, "it answers and drops nothing", p.see(0, answered, engine("idle", 18, 9)), v1alpha1.PressureHard, "evict idle")

	d = newPolls().see(0, remembers(pinned(80), 2), engine("idle", 18, 9))
	wantShort(t, "a cache that does not cover it", d, v1alpha1.PressureHard, "trim pinned, evict idle")
	if diff := cmp.Diff([]string{"pinned"}, caches(d)); diff != "" {
		t.Error(diff)
	}
	d = newPolls().see(0, remembers(pinned(91), 12))
	wantShort(t, "soft pressure that would evict nothing", d, v1alpha1.PressureSoft, "")
	d = newPolls().see(0, remembers(pinned(70), 12), engine("a", 11, 9), engine("b", 10, 1))
	wantShort(t, "soft pressure that would evict", d, v1alpha1.PressureSoft, "trim pinned")

	pooled := remembers(with(pinned(104), func(e *EngineReading) {
		e.Limit, e.Pooled = 0, 20*gib
		e.Active, e.Accounted = 84*gib, 84*gib
	}), 4)
	d = newPolls().see(0, pooled, engine("idle", 1, 9))
	wantShort(t, "an emergency that the pool covers", d, v1alpha1.PressureEmergency, "trim pinned")
	if of := caches(d); of != nil {
		t.Errorf("caches of %v are dropped", of)
	}
	p = newPolls()
	full := remembers(with(pinned(104), func(e *EngineReading) { e.Limit = 0 }), 20)
	wantShort(t, "an emergency that the cache covers", p.see(0, full, engine("idle", 1, 9)), v1alpha1.PressureEmergency, "trim pinned")
	wantShort(t, "it does not", p.see(0, full, engine("idle", 1, 9)), v1alpha1.PressureEmergency, "evict idle, abort pinned")
}

// Of several engines, one is asked for its pool and another for its cache.
func TestEachEngineIsAskedForWhatItHas(t *testing.T) {
	pool := with(pinned(40), func(e *EngineReading) { e.Key.UID, e.Pooled = "pool", gib/8 })
	cache := remembers(with(pinned(56), func(e *EngineReading) { e.Key.UID = "cache" }), 12)
	both := with(remembers(pinned(96), 12), func(e *EngineReading) { e.Pooled = gib / 8 })
	for name, tc := range map[string]struct {
		engines []EngineReading
		actions string
		cache   []bool // of each action
	}{
		"a pool and a cache": {engines: []EngineReading{pool, cache}, actions: "trim pool, trim cache", cache: []bool{false, true}},
		"both of one":        {engines: []EngineReading{both}, actions: "trim pinned", cache: []bool{true}},
	} {
		d := newPolls().see(0, tc.engines...)
		wantShort(t, name, d, v1alpha1.PressureHard, tc.actions)
		var got []bool
		for _, a := range d.Actions {
			got = append(got, a.Cache)
		}
		if diff := cmp.Diff(tc.cache, got); diff != "" {
			t.Errorf("%s: caches asked for (-want +got):\n%s", name, diff)
		}
	}
}

func TestNoRequestIsAbortedWhereCachesCoverTheDeficit(t *testing.T) {
	over := with(remembers(pinned(96), 12), func(e *EngineReading) { e.Limit = 95 * gib })
	wantShort(t, "the cache covers it", newPolls().see(0, over), v1alpha1.PressureHard, "trim pinned")
	over.Cached = gib / 2
	wantShort(t, "it does not", newPolls().see(0, over), v1alpha1.PressureHard, "trim pinned, abort pinned")
}

func TestSoftPressureKeepsOneOnDemandModel(t *testing.T) {
	d := newPolls().see(0, pinned(88), engine("a", 2, 9), engine("b", 2, 8), engine("c", 2, 7))
	wantShort(t, "three do not cover it", d, v1alpha1.PressureSoft, "evict a, evict b")
}

func TestRefilledPoolIsAskedForAgain(t *testing.T) {
	pool := func(gibs float64) EngineReading {
		return with(pinned(70+gibs), func(e *EngineReading) {
			e.Limit, e.Pooled = 0, int64(gibs*float64(gib))
			e.Active, e.Accounted = 70*gib, 70*gib
		})
	}
	idle := engine("idle", 2, 9)
	p := newPolls()
	wantShort(t, "asked", p.see(0, pool(25), idle), v1alpha1.PressureNormal, "trim pinned")
	wantShort(t, "returned", p.see(0, pool(0), idle), v1alpha1.PressureNormal, "")
	for range trimPolls {
		p.see(0, pool(0), idle)
	}
	wantShort(t, "full again", p.see(0, pool(25), idle), v1alpha1.PressureNormal, "trim pinned")
	for range trimPolls - 1 {
		wantShort(t, "it has time", p.see(0, pool(25), idle), v1alpha1.PressureNormal, "")
	}
	wantShort(t, "it keeps it", p.see(0, pool(25), idle), v1alpha1.PressureHard, "trim pinned, evict idle")

	p = newPolls()
	p.see(0, pool(25), idle)
	p.see(0, pool(0), idle)
	wantShort(t, "full again at once", p.see(0, pool(25), idle), v1alpha1.PressureNormal, "trim pinned")
}

func TestCriticalPressureOfTheSystemTakesOneStepAndLooks(t *testing.T) {
	p, engines := newPolls(), []EngineReading{pinned(10), engine("a", 9, 9), engine("b", 9, 8), engine("c", 9, 7)}
	critical := func(pause time.Duration) Decision {
		p.now = p.now.Add(pause)
		r := mac(total, 0, engines...)
		r.Now, r.Host.Pressure = p.now, probe.Critical
		return p.Poll(r)
	}
	wantShort(t, "one engine", critical(time.Second), v1alpha1.PressureSoft, "evict a")
	engines = []EngineReading{pinned(10), engine("b", 9, 8), engine("c", 9, 7)}
	for range 9 {
		wantShort(t, "then it looks", critical(time.Second), v1alpha1.PressureSoft, "")
	}
	wantShort(t, "it did not help", critical(time.Second), v1alpha1.PressureSoft, "evict b")
}

func TestEngineOverItsLimitIsFollowed(t *testing.T) {
	over := with(engine("over", 12, 9), func(e *EngineReading) { e.Limit = 10 * gib })
	if !newPolls().see(0, over).Follow || newPolls().see(0, engine("within", 12, 9)).Follow || !newPolls().see(0, pinned(91)).Follow {
		t.Error("Follow is not: over a limit, or under pressure")
	}
}

// The engines are within their limits, and the Mac is full.
func TestForeignMemoryRaisesPressure(t *testing.T) {
	engines := []EngineReading{pinned(20), engine("a", 10, 9), engine("b", 10, 1)}
	p := newPolls()
	wantShort(t, "no other engine", p.see(0, engines...), v1alpha1.PressureNormal, "")
	d := p.see(66, engines...)
	wantShort(t, "others use what is left, half of it spare", d, v1alpha1.PressureNormal, "")
	d = p.see(-66, engines...)
	wantShort(t, "none of it spare", d, v1alpha1.PressureHard, "evict a")
	if d.Term != footprint.Dynamic || d.Ceiling != 40*gib || !strings.Contains(d.Because, "bound by Dynamic") {
		t.Errorf("%+v", d)
	}
}

func TestSystemPressureRaisesTheLevel(t *testing.T) {
	for name, tc := range map[string]struct {
		pressure, thermal string
		level             v1alpha1.PressureLevel
		actions           string
	}{
		"critical":       {pressure: probe.Critical, thermal: "", level: v1alpha1.PressureSoft, actions: "evict a"},
		"a warning":      {pressure: probe.Warning, thermal: "", level: v1alpha1.PressureNormal, actions: ""},
		"normal":         {pressure: probe.Normal, thermal: "", level: v1alpha1.PressureNormal, actions: ""},
		"unknown":        {pressure: "", thermal: "", level: v1alpha1.PressureNormal, actions: ""},
		"critically hot": {pressure: probe.Normal, thermal: probe.Critical, level: v1alpha1.PressureNormal, actions: ""},
	} {
		r := mac(total, 0, pinned(10), engine("a", 9, 9), engine("b", 9, 1))
		r.Host.Pressure, r.Host.Thermal, r.Host.SwapUsed = tc.pressure, tc.thermal, 3*gib
		d := NewEnforcer().Poll(r)
		wantShort(t, name, d, tc.level, tc.actions)
		if tc.level != v1alpha1.PressureNormal && !strings.Contains(d.Because, "3.0 GiB of swap") {
			t.Error(d.Because)
		}
	}
	p := NewEnforcer()
	r := mac(total, 0, pinned(10), with(engine("a", 9, 9), stopping), engine("b", 9, 1), engine("c", 9, 1))
	r.Host.Pressure = probe.Critical
	wantShort(t, "one at a time", p.Poll(r), v1alpha1.PressureSoft, "")
}

func TestHeadroomForAPromptComesFromIdleEngines(t *testing.T) {
	asks := func(gibs float64) EngineReading {
		return with(pinned(60), func(e *EngineReading) { e.OnDemand, e.HeadroomWanted = true, int64(gibs*float64(gib)) })
	}
	idle := engine("idle", 20, 9)
	d := newPolls().see(0, asks(20), idle)
	wantShort(t, "more than is left", d, v1alpha1.PressureNormal, "evict idle")
	if d.Actions[0].Reason != v1alpha1.ReclaimHeadroom || d.PausePrefill {
		t.Errorf("%+v", d)
	}
	pooled := with(engine("pooled", 20, 0), func(e *EngineReading) { always(e); busy(e); e.Pooled = 3 * gib })
	wantShort(t, "pools are returned for it", newPolls().see(0, asks(20), pooled), v1alpha1.PressureNormal, "trim pooled")
	wantShort(t, "hard pressure comes first", newPolls().see(0, asks(60), pinned(20), engine("a", 16, 9), engine("b", 3, 1)), v1alpha1.PressureHard, "evict a")
	another := with(asks(20), func(e *EngineReading) { e.Key.UID = "another"; e.Footprint, e.Active, e.Accounted = gib, gib, gib })
	wantShort(t, "one engine is enough for two prompts", newPolls().see(0, asks(20), another, idle, engine("b", 5, 1)), v1alpha1.PressureNormal, "evict idle")
	wantShort(t, "not the first that asks", newPolls().see(0, engine("b", 5, 1), asks(20), idle), v1alpha1.PressureNormal, "evict idle")
	wantShort(t, "not for who is ending", newPolls().see(0, with(asks(20), stopping), idle), v1alpha1.PressureNormal, "")
	wantShort(t, "not for who is ending, small as it is", newPolls().see(0, with(engine("ending", 1, 0), func(e *EngineReading) { stopping(e); e.HeadroomWanted = 60 * gib }), pinned(60), idle), v1alpha1.PressureNormal, "")
	wantShort(t, "less than is left", newPolls().see(0, asks(14), idle), v1alpha1.PressureNormal, "")
	wantShort(t, "one that is ending will do", newPolls().see(0, asks(20), engine("other", 5, 9), with(engine("ending", 15, 1), stopping)), v1alpha1.PressureNormal, "")
	wantShort(t, "not from who is held", newPolls().see(0, asks(20), with(idle, busy)), v1alpha1.PressureNormal, "")
	wantShort(t, "not from who is more important", newPolls().see(0, asks(20), with(idle, func(e *EngineReading) { e.Priority = 1 })), v1alpha1.PressureNormal, "")
	wantShort(t, "not from itself", newPolls().see(0, with(asks(40), func(e *EngineReading) { e.Holds, e.Requests = 0, 0 })), v1alpha1.PressureNormal, "")
}

func TestPollIsDeterministicAndKeepsNothingOfEnginesThatAreGone(t *testing.T) {
	run := func() (all []Decision, e *Enforcer) {
		p := newPolls()
		for i := range 60 {
			gibs := 60 + 45*float64(i%20)/20
			all = append(all, p.see(float64(i%7), pinned(gibs), engine("a", 3, 9), engine(fmt.Sprint("e", i), 2, 5)))
		}
		p.see(0)
		return all, p.Enforcer
	}
	a, e := run()
	b, _ := run()
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
	if len(e.engines) != 0 {
		t.Errorf("%d engines are remembered", len(e.engines))
	}
}

// What was freed equals what was held.
func TestPressureEvictsAndTheModelReturns(t *testing.T) {
	p, l := newPolls(), NewLedger()
	serving, model, spare := pinned(70), engine("model", 15, 9), engine("spare", 2, 1)
	first := mac(total, 0, serving, model, spare)
	l.limits = first.Limits
	for _, e := range first.Engines {
		l.Restore(e.Key, e.Reserved)
	}
	wantShort(t, "no pressure", p.see(0, serving, model, spare), v1alpha1.PressureNormal, "")
	serving = pinned(80) // a long prompt
	serving.Limit = 0
	d := p.see(0, serving, model, spare)
	wantShort(t, "up", d, v1alpha1.PressureHard, "evict model")
	if err := l.Admit(Want{Key: Key{"model", 2}, Bytes: 15 * gib}, mac(total, 0, serving, model, spare)); err == nil {
		t.Error("a new load was admitted under pressure")
	}
	wantShort(t, "it ends", p.see(0, serving, with(model, stopping), spare), v1alpha1.PressureHard, "")
	l.Release(model.Key)
	wantShort(t, "gone", p.see(0, serving, spare), v1alpha1.PressureNormal, "")
	serving = pinned(70)
	quiet := mac(total, 0, serving, spare)
	if err := l.Admit(Want{Key: Key{"model", 2}, Bytes: 15 * gib}, quiet); err != nil {
		t.Errorf("it may not return: %v", err)
	}
	wantShort(t, "returned", p.see(0, serving, engine("model", 15, 0), spare), v1alpha1.PressureNormal, "")
	if a := l.Account(); a.Reserved != 87*gib {
		t.Errorf("%+v", a)
	}
}

func TestNoRoomIsAnErrorByType(t *testing.T) {
	err := fmt.Errorf("load replica: %w", &NoRoomError{Needed: 1, Final: true})
	var short *NoRoomError
	if !errors.As(err, &short) || !short.Final {
		t.Error(err)
	}
}

// An engine that grows through its abort and its unload is killed, before it has
// taken the memory of the Mac.
func TestEngineThatGrowsWhileItEndsIsKilled(t *testing.T) {
	p, held, ended := newPolls(), 0.2, false
	for poll := range 20 {
		bad := with(engine("bad", 0.2, 0), busy)
		if bad.Footprint = int64(held * float64(gib)); ended {
			stopping(&bad)
		}
		d := p.see(6, bad, engine("idle", 15, 30), pinned(30))
		for _, a := range d.Actions {
			switch {
			case a.Key != bad.Key:
				t.Errorf("poll %d: step %d for %s", poll, a.Step, a.Key.UID)
			case a.Step == StepUnload:
				ended = true
			case a.Step == StepKill:
				if held > 16 {
					t.Errorf("killed when it holds %.1f GiB", held)
				}
				return
			}
		}
		held += 3
	}
	t.Error("it is not killed")
}

func TestEngineThatEndsAndDoesNotGrowIsNotKilled(t *testing.T) {
	p := newPolls()
	for poll := range 20 {
		bad := with(engine("bad", 10, 0), busy)
		if bad.Limit = 5 * gib; poll > 3 {
			stopping(&bad)
		}
		for _, a := range p.see(6, bad, pinned(30)).Actions {
			if a.Step == StepKill {
				t.Fatalf("poll %d: %s", poll, a.Because)
			}
		}
	}
}

// What an engine holds over its own limit ends it, and no idle engine of others.
func TestNoEngineIsEvictedForOneThatIsOverItsLimit(t *testing.T) {
	for _, over := range []float64{10, 20, 30, 40} {
		p := newPolls()
		bad := with(engine("bad", 40, 0), func(e *EngineReading) { loading(e); always(e) })
		idle := []EngineReading{bad, engine("a", 15, 30), engine("b", 15, 20), engine("c", 15, 10)}
		for poll := range 5 {
			if poll == 2 {
				idle[0].Footprint = int64((40 + over) * float64(gib))
			}
			for _, a := range p.see(6, idle...).Actions {
				if a.Step == StepEvict {
					t.Errorf("%v GiB over its limit, poll %d: %s is evicted", over, poll, a.Key.UID)
				}
				if a.Step == StepCancelLoad {
					stopping(&idle[0])
				}
			}
		}
		if !idle[0].Stopping {
			t.Errorf("%v GiB over its limit, and its load continues", over)
		}
	}
}
