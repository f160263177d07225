package memory

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// mac returns a reading of a Mac of that many GiB under Balanced, with foreign
// bytes in active pages and the given engines.
func mac(total, foreign float64, engines ...EngineReading) Reading {
	r := Reading{Now: start(), HostKnown: true, Policy: footprint.Balanced, Engines: engines}
	r.Host.Total = int64(total * float64(gib))
	r.Limits = footprint.LimitsOf(footprint.Host{Total: r.Host.Total, Policy: r.Policy})
	return withForeign(r, foreign)
}

// withForeign sets how much other programs use, in active pages, or wired if it
// is negative; half of the rest is free and half inactive.
func withForeign(r Reading, foreign float64) Reading {
	r.Host.Foreign = int64(max(foreign, -foreign) * float64(gib))
	var own int64
	for _, e := range r.Engines {
		own += e.Footprint
	}
	left := max(0, r.Host.Total-own-r.Host.Foreign)
	r.Host.Free, r.Host.Inactive, r.Host.Active = left-left/2, left/2, max(1, int64(foreign*float64(gib)))
	return r
}

// ledgerFor returns a ledger with reservations for the reading's engines.
func ledgerFor(r Reading) *Ledger {
	l := NewLedger()
	l.limits = r.Limits
	for _, e := range r.Engines {
		l.Restore(e.Key, e.Reserved)
	}
	return l
}

func want(gibs float64) Want { return Want{Key: Key{"new", 1}, Bytes: int64(gibs * float64(gib))} }

func noRoom(t *testing.T, err error) *NoRoomError {
	t.Helper()
	var short *NoRoomError
	if !errors.As(err, &short) {
		t.Fatalf("got %v, want no room", err)
	}
	for name, n := range map[string]int64{"needed": short.Needed, "reserved": short.Reserved, "in use": short.InUse, "available": short.Available, "capacity": short.Capacity} {
		if n < 0 {
			t.Errorf("%s is %d: never negative", name, n)
		}
	}
	return short
}

// The two refusals are distinct errors, with figures.
func TestTooLargeDiffersFromNoRoomNow(t *testing.T) {
	r := mac(106, 0, with(engine("pinned", 60, 9), always)) // ceiling 100, capacity 90
	l := ledgerFor(r)
	now := noRoom(t, l.Admit(want(60), r))
	if now.Final || now.Needed != 60*gib || now.Reserved != 60*gib || now.Capacity != 90*gib || now.Available != 30*gib || len(now.Victims) > 0 || now.Pending {
		t.Errorf("%+v", now)
	}
	if s := now.Error(); s != "needs 60.0 GiB, but 60.0 GiB of 90.0 GiB are already reserved (ceiling 100.0 GiB, bound by Static)" {
		t.Error(s)
	}
	final := noRoom(t, l.Admit(want(91), r))
	if !final.Final || !strings.Contains(final.Error(), "needs 91.0 GiB, but this Mac can reserve at most 90.0 GiB") || !strings.Contains(final.Error(), "even when nothing else is loaded") {
		t.Errorf("%v", final)
	}
	if err := l.Admit(want(30), r); err != nil {
		t.Errorf("what fits: %v", err)
	}
	if a := l.Account(); a.Reserved != 90*gib {
		t.Errorf("%+v", a)
	}
}

func TestLoadThatFitsExactlyIsAdmitted(t *testing.T) {
	empty := mac(106, 0)
	if err := ledgerFor(empty).Admit(Want{Key: Key{"new", 1}, Bytes: empty.Limits.Capacity}, empty); err != nil {
		t.Errorf("the whole capacity: %v", err)
	}
	shared := mac(106, 0, with(engine("pinned", 60, 9), always))
	if short := noRoom(t, ledgerFor(shared).Admit(Want{Key: Key{"new", 1}, Bytes: shared.Limits.Capacity}, shared)); short.Final {
		t.Errorf("a model as large as the capacity never fits: %v", short)
	}
	full := mac(64, 40)
	room := footprint.SoftMark(24*gib, footprint.Balanced)
	if err := ledgerFor(full).Admit(Want{Key: Key{"new", 1}, Bytes: room}, full); err != nil {
		t.Errorf("all of the free memory: %v", err)
	}
	noRoom(t, ledgerFor(full).Admit(Want{Key: Key{"new", 1}, Bytes: room + 1}, full))
}

func TestRefusalLeavesTheLedgerUnchanged(t *testing.T) {
	r := mac(64, 60)
	l := ledgerFor(r)
	if err := l.Admit(want(10), r); err == nil {
		t.Fatal("admitted without free memory")
	}
	if a := l.Account(); a.Reserved != 0 || len(a.Holders) != 0 {
		t.Errorf("%+v", a)
	}
}

func TestIdleEnginesAreEvictedToAdmit(t *testing.T) {
	capacity := float64(mac(64, 0).Limits.Capacity) / float64(gib) // 52.2 of a ceiling of 58
	for name, tc := range map[string]struct {
		engines []EngineReading
		want    []Key
		pending bool
	}{
		"the one that covers it":                  {engines: []EngineReading{engine("small", 5, 9), engine("large", 40, 1)}, want: []Key{{"large", 1}}, pending: false},
		"several where none covers it":            {engines: []EngineReading{engine("a", 22, 9), engine("b", 12, 1), engine("c", 15, 1)}, want: []Key{{"a", 1}, {"b", 1}}, pending: false},
		"none where all of them are not enough":   {engines: []EngineReading{engine("a", 5, 9), with(engine("b", 40, 1), busy)}, want: nil, pending: false},
		"none of a higher priority":               {engines: []EngineReading{with(engine("a", 45, 9), func(e *EngineReading) { e.Priority = 1 })}, want: nil, pending: false},
		"none where one is ending that covers it": {engines: []EngineReading{engine("a", 20, 9), with(engine("b", 25, 1), stopping)}, want: nil, pending: true},
		"the one that covers it exactly":          {engines: []EngineReading{with(engine("a", capacity-30, 9), always), engine("b", 20, 9)}, want: []Key{{"b", 1}}, pending: false},
		"none where one that ends is exactly it":  {engines: []EngineReading{with(engine("a", capacity-30, 9), always), with(engine("b", 20, 9), stopping)}, want: nil, pending: true},
	} {
		r := mac(64, 0, tc.engines...)
		short := noRoom(t, ledgerFor(r).Admit(want(30), r))
		if !cmp.Equal(short.Victims, tc.want) || short.Pending != tc.pending || short.Final {
			t.Errorf("%s: victims %v, pending %v", name, short.Victims, short.Pending)
		}
	}
}

func TestReservationCountsWhenGaugesReadZero(t *testing.T) {
	unseen := with(engine("pinned", 60, 9), func(e *EngineReading) { always(e); e.Active, e.Footprint = 0, 0 })
	r := mac(106, 0, unseen)
	if short := noRoom(t, ledgerFor(r).Admit(want(60), r)); short.Reserved != 60*gib {
		t.Errorf("%+v", short)
	}
	// Without a reservation too, accounted bytes count.
	l := NewLedger()
	l.limits = r.Limits
	short := noRoom(t, l.Admit(want(60), r))
	if short.InUse != 60*gib || short.Available != 30*gib || !strings.Contains(short.Error(), "engines use 60.0 GiB more") {
		t.Errorf("%v: %+v", short, short)
	}
}

func TestUseBeyondTheReservationCounts(t *testing.T) {
	leaking := with(engine("leaking", 30, 9), func(e *EngineReading) { always(e); e.Reserved = 20 * gib })
	r := mac(64, 0, leaking) // capacity 52.2
	l := ledgerFor(r)
	if err := l.Admit(want(25), r); err == nil {
		t.Error("25 GiB were reserved in addition to 30 GiB in use of 52.2")
	}
	if err := l.Admit(want(22), r); err != nil {
		t.Error(err)
	}
}

// The ceiling fell below the reservation of one engine: it is not loaded again
// only to be canceled.
func TestReservationBeyondTheCapacityIsNotLoaded(t *testing.T) {
	l := ledgerFor(mac(64, 0))
	if err := l.Admit(want(44), mac(64, 0)); err != nil {
		t.Fatal(err)
	}
	l.SetHost(footprint.Host{Total: 64 * gib, Explicit: 30 * gib, Policy: footprint.Balanced})
	short := noRoom(t, l.Admit(want(44), mac(64, 0)))
	if !short.Final || short.Needed != 44*gib || short.Capacity != 27*gib || !strings.Contains(short.Error(), "27.0 GiB") {
		t.Errorf("%+v", short)
	}
}

func TestForeignMemoryCountsAgainstALoad(t *testing.T) {
	r := mac(64, 40) // 24 are free or inactive: soft mark 21.6
	l := ledgerFor(r)
	short := noRoom(t, l.Admit(want(22), r))
	if short.Term != footprint.Dynamic || short.Final || short.Ceiling != 24*gib || short.Available != footprint.SoftMark(24*gib, footprint.Balanced) {
		t.Errorf("%+v", short)
	}
	if s := short.Error(); s != "needs 22.0 GiB, but the Mac's free memory allows only 21.6 GiB now, in addition to 0 used by engines and 40.0 GiB by other programs (ceiling 24.0 GiB, bound by Dynamic)" {
		t.Error(s)
	}
	if err := l.Admit(want(21), r); err != nil {
		t.Error(err)
	}
	r.Policy = footprint.Custom // the administrator's number is the limit
	if err := ledgerFor(r).Admit(want(40), r); err != nil {
		t.Errorf("custom: %v", err)
	}
}

func TestActivePagesAreNotAvailableToALoad(t *testing.T) {
	r := mac(64, 40)
	r.Policy = footprint.Aggressive // 0.8 of the active pages count for pressure
	if c := CeilingOf(r); c.Term != footprint.Dynamic || c.Bytes < 55*gib {
		t.Errorf("pressure is judged by %+v", c)
	}
	if err := ledgerFor(r).Admit(want(30), r); err == nil {
		t.Error("a load was given pages that the compressor would have to free first")
	}
}

func TestIdleEnginesAreEvictedForALoad(t *testing.T) {
	r := mac(64, 30, engine("idle", 20, 9)) // 14 left
	short := noRoom(t, ledgerFor(r).Admit(want(20), r))
	if want := []Key{{"idle", 1}}; !cmp.Equal(short.Victims, want) || short.Term != footprint.Dynamic {
		t.Errorf("%+v", short)
	}
	r.Engines[0].TrimAcknowledged = r.Now.Add(-400 * time.Millisecond)
	if short = noRoom(t, ledgerFor(r).Admit(want(20), r)); !short.Pending || short.Victims != nil {
		t.Errorf("an engine is evicted while a returned pool still shows: %+v", short)
	}
	r.Engines[0].Stopping = true
	if short = noRoom(t, ledgerFor(r).Admit(want(20), r)); !short.Pending || short.Victims != nil {
		t.Errorf("%+v", short)
	}
}

func TestOnlyOtherLoadsCountAsGrowth(t *testing.T) {
	reserved := func(e *EngineReading) { e.Reserved = 20 * gib }
	serving := mac(64, 39, with(engine("serving", 1, 9), reserved)) // 24 left
	if err := ledgerFor(serving).Admit(want(20), serving); err != nil {
		t.Errorf("the unused reservation of an engine that serves: %v", err)
	}
	started := mac(64, 39, with(with(engine("new", 1, 0), reserved), loading))
	if err := ledgerFor(started).Admit(want(20), started); err != nil {
		t.Errorf("what the load itself will still take: %v", err)
	}
}

// The first load has not taken its memory yet.
func TestTwoLoadsDoNotShareTheSameFreeMemory(t *testing.T) {
	first := with(engine("first", 1, 0), func(e *EngineReading) { loading(e); e.Reserved = 15 * gib })
	r := mac(64, 39, first) // 24 left, of which 14 are still to be taken
	if err := ledgerFor(r).Admit(want(10), r); err == nil {
		t.Error("two loads were given the same memory")
	}
	if err := ledgerFor(r).Admit(want(7), r); err != nil {
		t.Error(err)
	}
	l := ledgerFor(r)
	if err := l.Admit(Want{Key: Key{"second", 1}, Bytes: 5 * gib}, r); err != nil {
		t.Fatal(err)
	}
	if err := l.Admit(want(7), r); err == nil {
		t.Error("a third load was given what the second is about to take")
	}
}

func TestReservedLoadStillNeedsFreeMemory(t *testing.T) {
	r := mac(64, 40)
	l := ledgerFor(r)
	l.Restore(Key{"new", 1}, 30*gib)
	if err := l.Admit(want(1), r); err == nil {
		t.Error("a promise of 30 GiB was loaded into 24 free ones")
	}
	if a := l.Account(); a.Reserved != 30*gib {
		t.Errorf("the promise was touched: %+v", a)
	}
	r = withForeign(r, 0)
	if err := l.Admit(want(1), r); err != nil {
		t.Error(err)
	}
}

func TestSystemPressureDelaysALoad(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(r *Reading)
		want   string
	}{
		"its memory cannot be measured": {change: func(r *Reading) { r.HostKnown = false }, want: "could not be measured"},
		"its memory is critical":        {change: func(r *Reading) { r.Host.Pressure = probe.Critical }, want: "critical memory pressure"},
		"it is critically hot":          {change: func(r *Reading) { r.Host.Thermal = probe.Critical }, want: "critical thermal state"},
		"a warning does not":            {change: func(r *Reading) { r.Host.Pressure, r.Host.Thermal = probe.Warning, probe.Serious }, want: ""},
		"swap in use does not":          {change: func(r *Reading) { r.Host.SwapUsed = 9 * gib }, want: ""},
	} {
		r := mac(64, 0)
		tc.change(&r)
		err := ledgerFor(r).Admit(want(10), r)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || noRoom(t, err).Final) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAdmitRefusesAnUnknownSize(t *testing.T) {
	r := mac(64, 0)
	if err := ledgerFor(r).Admit(want(0), r); err == nil || !strings.Contains(err.Error(), "want more than zero") {
		t.Error(err)
	}
}

func TestCeilingNamesTheBindingTerm(t *testing.T) {
	for name, tc := range map[string]struct {
		policy  footprint.Policy
		foreign float64
		term    footprint.Term
		bytes   int64 // 0: not checked
	}{
		"an empty Mac":                           {policy: footprint.Balanced, foreign: 0, term: footprint.Static, bytes: 58 * gib},
		"safe counts a fifth of active pages":    {policy: footprint.Safe, foreign: 40, term: footprint.Dynamic, bytes: 32 * gib},
		"balanced counts half of them":           {policy: footprint.Balanced, foreign: 40, term: footprint.Dynamic, bytes: 44 * gib},
		"aggressive counts four fifths of them":  {policy: footprint.Aggressive, foreign: 40, term: footprint.Dynamic, bytes: 56 * gib},
		"custom has the administrator's number":  {policy: footprint.Custom, foreign: 60, term: footprint.Static, bytes: 62 * gib},
		"others' little memory does not bind it": {policy: footprint.Balanced, foreign: 10, term: footprint.Static, bytes: 58 * gib},
	} {
		r := mac(64, tc.foreign, engine("a", 10, 1))
		r.Policy = tc.policy
		r.Limits = footprint.LimitsOf(footprint.Host{Total: r.Host.Total, Policy: tc.policy})
		c := CeilingOf(r)
		if c.Term != tc.term || tc.bytes != 0 && (c.Bytes > tc.bytes || tc.bytes-c.Bytes > 200) {
			t.Errorf("%s: %+v", name, c)
		}
	}
	r := mac(64, 0, engine("a", 10, 1))
	r.Host.Free, r.Host.Inactive, r.Host.Active = gib, 20*gib, gib
	if c := CeilingOf(r); !c.DynamicKnown || c.Term != footprint.Dynamic {
		t.Errorf("more inactive than active pages: %+v", c)
	}
	r.Host.Free, r.Host.Inactive, r.Host.Active = gib, 0, 0
	if c := CeilingOf(r); c.DynamicKnown || c.Term != footprint.Static {
		t.Errorf("a system that reports no page counts: %+v", c)
	}
}

// inUse is an engine in use that has served for some minutes.
func inUse(uid, namespace string, gibs float64, minutes int) EngineReading {
	return with(engine(uid, gibs, 0), func(e *EngineReading) {
		busy(e)
		e.Namespace, e.ReadySince = namespace, start().Add(-time.Duration(minutes)*time.Minute)
		e.LoadBegan = e.ReadySince
	})
}

// pauses is an engine between two requests: it is idle, and was used just now.
func pauses(e *EngineReading) {
	e.Holds, e.Requests, e.LastUse = 0, 0, start().Add(1-BusyWait)
}

// Only an always-resident replica and a model of the same namespace have the memory of an engine
// between two requests.
func TestAnEngineBetweenRequestsIsInUseForOtherNamespaces(t *testing.T) {
	for name, tc := range map[string]struct {
		want Want
		used time.Duration // ago
		idle bool
	}{
		"another namespace":              {Want{Namespace: "mine"}, BusyWait - 1, false},
		"another namespace, later":       {Want{Namespace: "mine"}, BusyWait, true},
		"its own":                        {Want{Namespace: "other"}, 0, true},
		"for an always-resident replica": {Want{Namespace: "mine", Always: true}, 0, true},
	} {
		r := mac(106, 0, with(inUse("a", "other", 80, 5), func(e *EngineReading) { pauses(e); e.LastUse = start().Add(-tc.used) }))
		tc.want.Key, tc.want.Bytes = Key{"new", 1}, 30*gib
		if short := noRoom(t, ledgerFor(r).Admit(tc.want, r)); len(short.Victims) > 0 != tc.idle || len(short.Busy) > 0 || short.Pending {
			t.Errorf("%s: evicts %v, ends %v, pending %v", name, short.Victims, short.Busy, short.Pending)
		}
	}
}

// A load that has waited for a minute may end engines in use.
func TestBusyVictims(t *testing.T) {
	waits := func(change ...func(*Want)) Want {
		w := Want{Key: Key{"new", 1}, Bytes: 30 * gib, Namespace: "mine", Waits: BusyWait}
		for _, c := range change {
			c(&w)
		}
		return w
	}
	anyone := func(w *Want) { w.Always, w.Priority = true, anyPriority }
	for name, tc := range map[string]struct {
		want    Want
		engines []EngineReading // of 90 GiB
		victims string
	}{
		"one of another namespace":                       {waits(), []EngineReading{inUse("a", "other", 80, 5)}, "a"},
		"none before it waited":                          {waits(func(w *Want) { w.Waits-- }), []EngineReading{inUse("a", "other", 80, 5)}, ""},
		"none of its own namespace":                      {waits(), []EngineReading{inUse("a", "mine", 80, 5)}, ""},
		"none that has served for less than its tenure":  {waits(), []EngineReading{inUse("a", "other", 80, 4)}, ""},
		"one that followed others of its namespace":      {waits(), []EngineReading{with(inUse("a", "other", 80, 1), func(e *EngineReading) { e.Tenure = start().Add(-busyTenure) })}, "a"},
		"none that followed one just now":                {waits(), []EngineReading{with(inUse("a", "other", 80, 1), func(e *EngineReading) { e.Tenure = start().Add(time.Second - busyTenure) })}, ""},
		"none that loads":                                {waits(), []EngineReading{with(inUse("a", "other", 80, 14), loading)}, ""},
		"one that loads for longer than any model takes": {waits(), []EngineReading{with(inUse("a", "other", 80, 15), loading)}, "a"},
		"none of its own namespace that loads":           {waits(), []EngineReading{with(inUse("a", "mine", 80, 15), loading)}, ""},
		"none of a higher priority":                      {waits(), []EngineReading{with(inUse("a", "other", 80, 5), func(e *EngineReading) { e.Priority = 1 })}, ""},
		"none that is always resident":                   {waits(anyone), []EngineReading{with(inUse("a", "other", 80, 5), always)}, ""},
		"any for an always-resident replica":             {waits(anyone), []EngineReading{with(inUse("a", "mine", 80, 0), func(e *EngineReading) { e.Priority = 9 })}, "a"},
		"one that loads for an always-resident replica":  {waits(anyone), []EngineReading{with(inUse("a", "other", 80, 0), loading)}, "a"},
		"one that does not report":                       {waits(), []EngineReading{with(inUse("a", "other", 80, 5), func(e *EngineReading) { e.Holds, e.Requests, e.BusyKnown = 0, 0, false })}, "a"},
		"of the namespace that has most reserved":        {waits(), []EngineReading{inUse("a", "other", 30, 9), inUse("b", "more", 25, 5), inUse("c", "more", 25, 7)}, "c"},
		"as few as possible":                             {waits(func(w *Want) { w.Bytes = 50 * gib }), []EngineReading{inUse("a", "other", 10, 9), inUse("b", "other", 10, 9), inUse("c", "other", 50, 5)}, "c"},
		"several":                                        {waits(func(w *Want) { w.Bytes = 60 * gib }), []EngineReading{inUse("a", "other", 20, 9), inUse("b", "other", 25, 9), inUse("c", "other", 40, 5)}, "c b"},
		"none where all do not suffice":                  {waits(), []EngineReading{inUse("a", "other", 20, 9), with(inUse("b", "other", 65, 9), always)}, ""},
		"one that is idle between requests":              {waits(), []EngineReading{with(inUse("a", "other", 80, 5), pauses)}, "a"},
		"none such before it waited":                     {waits(func(w *Want) { w.Waits-- }), []EngineReading{with(inUse("a", "other", 80, 5), pauses)}, ""},
		"none such that has served for less":             {waits(), []EngineReading{with(inUse("a", "other", 80, 4), pauses)}, ""},
		"none such of a higher priority":                 {waits(), []EngineReading{with(inUse("a", "other", 80, 5), func(e *EngineReading) { pauses(e); e.Priority = 1 })}, ""},
		"only what idle ones do not free":                {waits(), []EngineReading{with(engine("idle", 15, 1), func(e *EngineReading) { e.Namespace = "other" }), inUse("a", "other", 12, 9), inUse("b", "other", 60, 5)}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			r := mac(106, 0, tc.engines...)
			short := noRoom(t, ledgerFor(r).Admit(tc.want, r))
			var got []string
			for _, k := range short.Busy {
				got = append(got, k.UID)
			}
			if s := strings.Join(got, " "); s != tc.victims || len(short.Victims) > 0 {
				t.Errorf("ends %q, want %q (idle ones: %v)", s, tc.victims, short.Victims)
			}
		})
	}
}

// Room is kept for a load that has waited for long if others will have served for long enough.
func TestLongWaitsCountEnginesThatServeForLess(t *testing.T) {
	for name, tc := range map[string]struct {
		waits  time.Duration
		engine EngineReading // of 90 GiB
		want   bool
	}{
		"it has served for long enough": {BusyWait, inUse("a", "other", 80, 5), true},
		"it has not, a shorter wait":    {busyTenure - 1, inUse("a", "other", 80, 4), false},
		"it has not":                    {busyTenure, inUse("a", "other", 80, 0), true},
		"it pauses, a shorter wait":     {busyTenure - 1, with(inUse("a", "other", 80, 0), pauses), false},
		"it pauses":                     {busyTenure, with(inUse("a", "other", 80, 0), pauses), true},
		"it loads":                      {busyTenure, with(inUse("a", "other", 80, 0), loading), true},
		"it is of the same namespace":   {busyTenure, inUse("a", "mine", 80, 0), false},
		"it is of a higher priority":    {busyTenure, with(inUse("a", "other", 80, 0), func(e *EngineReading) { e.Priority = 1 }), false},
		"it is always resident":         {busyTenure, with(inUse("a", "other", 80, 0), always), false},
	} {
		r := mac(106, 0, tc.engine)
		w := Want{Key: Key{"new", 1}, Bytes: 30 * gib, Namespace: "mine", Waits: tc.waits}
		if got := ledgerFor(r).CanAdmit(w, r); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Memory that is freed for another load counts as reserved.
func TestClaimedMemoryIsKept(t *testing.T) {
	r := mac(106, 0)
	l := ledgerFor(r)
	w := want(50)
	w.Claimed = 50 * gib
	if short := noRoom(t, l.Admit(w, r)); short.Final || short.Available != 40*gib {
		t.Errorf("%+v", short)
	}
	w.Claimed = 40 * gib
	if err := l.Admit(w, r); err != nil {
		t.Error(err)
	}
}
