package memory

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// start is when the tests' readings begin.
func start() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// engine is a ready, idle OnDemand engine of that many GiB, last used minutes
// before start.
func engine(uid string, gibs float64, minutes int) EngineReading {
	bytes := int64(gibs * float64(gib))
	return EngineReading{
		Key: Key{UID: uid, Epoch: 1}, Footprint: bytes, FootprintKnown: true, Active: bytes, Accounted: bytes,
		Reserved: bytes, Limit: EngineLimit(bytes), OnDemand: true, BusyKnown: true, LastUse: start().Add(-time.Duration(minutes) * time.Minute),
	}
}

// with changes a copy of e.
func with(e EngineReading, change func(e *EngineReading)) EngineReading {
	change(&e)
	return e
}

func busy(e *EngineReading)     { e.Holds, e.Requests = 1, 1 }
func loading(e *EngineReading)  { e.Loading = true }
func stopping(e *EngineReading) { e.Stopping = true }
func always(e *EngineReading)   { e.OnDemand = false }

func TestVictimSelection(t *testing.T) {
	for name, tc := range map[string]struct {
		engines []EngineReading
		deficit int64
		want    string
	}{
		"the longest unused where any would do":                         {engines: []EngineReading{engine("new", 10, 1), engine("old", 10, 9)}, deficit: 5 * gib, want: "old"},
		"one that alone covers the deficit, before an older small one":  {engines: []EngineReading{engine("small", 2, 90), engine("large", 20, 1)}, deficit: 5 * gib, want: "large"},
		"the longest unused of those that cover it":                     {engines: []EngineReading{engine("small", 2, 90), engine("a", 20, 1), engine("b", 8, 5)}, deficit: 5 * gib, want: "b"},
		"one that covers it exactly, the first":                         {engines: []EngineReading{engine("exact", 5, 9), engine("large", 20, 1)}, deficit: 5 * gib, want: "exact"},
		"one that covers it exactly, the last":                          {engines: []EngineReading{engine("large", 20, 1), engine("exact", 5, 9)}, deficit: 5 * gib, want: "exact"},
		"the largest where none covers it":                              {engines: []EngineReading{engine("small", 2, 90), engine("a", 20, 1), engine("b", 8, 5)}, deficit: 50 * gib, want: "a"},
		"the longest unused of equally large ones that do not cover it": {engines: []EngineReading{engine("new", 2, 1), engine("old", 2, 9)}, deficit: 50 * gib, want: "old"},
		"the first if all else is equal":                                {engines: []EngineReading{engine("a", 2, 1), engine("b", 2, 1)}, deficit: gib, want: "a"},
		"no busy engine":                                                {engines: []EngineReading{with(engine("busy", 20, 9), busy), engine("idle", 1, 1)}, deficit: 5 * gib, want: "idle"},
		"no engine with a hold":                                         {engines: []EngineReading{with(engine("held", 20, 9), func(e *EngineReading) { e.Holds = 1 })}, deficit: gib, want: ""},
		"no engine with a request without a hold":                       {engines: []EngineReading{with(engine("asked", 20, 9), func(e *EngineReading) { e.Requests = 1 })}, deficit: gib, want: ""},
		"no engine that may be busy":                                    {engines: []EngineReading{with(engine("mute", 20, 9), func(e *EngineReading) { e.BusyKnown = false })}, deficit: gib, want: ""},
		"no loading engine":                                             {engines: []EngineReading{with(engine("loading", 20, 9), loading)}, deficit: gib, want: ""},
		"no ending engine":                                              {engines: []EngineReading{with(engine("ending", 20, 9), stopping)}, deficit: gib, want: ""},
		"no engine of a higher priority":                                {engines: []EngineReading{with(engine("important", 20, 9), func(e *EngineReading) { e.Priority = 6 })}, deficit: gib, want: ""},
		"one of the same priority":                                      {engines: []EngineReading{with(engine("equal", 20, 9), func(e *EngineReading) { e.Priority = 5 })}, deficit: gib, want: "equal"},
		"no protected engine":                                           {engines: []EngineReading{engine("self", 20, 9), engine("other", 1, 1)}, deficit: 5 * gib, want: "other"},
		"none of no engines":                                            {engines: nil, deficit: gib, want: ""},
	} {
		key, ok := Victim(tc.engines, tc.deficit, 5, Key{UID: "self", Epoch: 1})
		if key.UID != tc.want || ok != (tc.want != "") {
			t.Errorf("%s: got %q (%v), want %q", name, key.UID, ok, tc.want)
		}
	}
}

func TestPinnedEngineIsNeverAVictim(t *testing.T) {
	pinned := with(engine("pinned", 20, 99), func(e *EngineReading) { always(e); e.IdleAfter = time.Second })
	if key, ok := Victim([]EngineReading{pinned}, gib, anyPriority); ok {
		t.Errorf("%v is evicted for others", key)
	}
	if keys := Expired([]EngineReading{pinned}, start()); len(keys) > 0 {
		t.Errorf("%v expired", keys)
	}
	if CanMakeRoom([]EngineReading{pinned}, anyPriority) {
		t.Error("a pinned engine counts as room")
	}
	ending := with(pinned, func(e *EngineReading) { e.Stopping = true })
	if !CanMakeRoom([]EngineReading{ending}, 0) {
		t.Error("what is ending makes no room")
	}
	if CanMakeRoom([]EngineReading{ending}, 0, ending.Key) {
		t.Error("an engine counts as room for itself")
	}
}

func TestIdleEngineExpires(t *testing.T) {
	tenMinutes := func(e *EngineReading) { e.IdleAfter = 10 * time.Minute }
	for name, tc := range map[string]struct {
		engine EngineReading
		want   bool
	}{
		"after its time to live":                 {engine: with(engine("a", 1, 10), tenMinutes), want: true},
		"not before":                             {engine: with(engine("a", 1, 9), tenMinutes), want: false},
		"never without a time to live":           {engine: engine("a", 1, 999), want: false},
		"not while it is held":                   {engine: with(with(engine("a", 1, 99), tenMinutes), func(e *EngineReading) { e.Holds = 1 }), want: false},
		"not while it answers":                   {engine: with(with(engine("a", 1, 99), tenMinutes), func(e *EngineReading) { e.Requests = 1 }), want: false},
		"not while it may be busy":               {engine: with(with(engine("a", 1, 99), tenMinutes), func(e *EngineReading) { e.BusyKnown = false }), want: false},
		"not while it loads":                     {engine: with(with(engine("a", 1, 99), tenMinutes), loading), want: false},
		"not twice":                              {engine: with(with(engine("a", 1, 99), tenMinutes), stopping), want: false},
		"not where its last use is unknown":      {engine: with(with(engine("a", 1, 0), tenMinutes), func(e *EngineReading) { e.LastUse = time.Time{} }), want: false},
		"its time restarting with its last hold": {engine: with(with(engine("a", 1, 99), tenMinutes), func(e *EngineReading) { e.LastUse = start().Add(-time.Minute) }), want: false},
	} {
		if got := len(Expired([]EngineReading{tc.engine}, start())) > 0; got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestVictimsCoverTheDeficit(t *testing.T) {
	engines := []EngineReading{engine("a", 4, 1), engine("b", 6, 2), engine("c", 2, 3)}
	keys, sum := victims(engines, 9*gib, anyPriority, EngineReading.Gauge)
	if want := []Key{{"b", 1}, {"a", 1}}; !cmp.Equal(keys, want) || sum != 10*gib {
		t.Errorf("got %v with %d, want %v: the largest first, then one that covers the rest", keys, sum, want)
	}
	if keys, sum := victims(engines, 10*gib, anyPriority, EngineReading.Gauge); len(keys) != 2 || sum != 10*gib {
		t.Errorf("got %v with %d, want those that cover it exactly", keys, sum)
	}
	if keys, sum := victims(engines, 99*gib, anyPriority, EngineReading.Gauge); len(keys) != 3 || sum != 12*gib {
		t.Errorf("got %v with %d, want all three", keys, sum)
	}
}
