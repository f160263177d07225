package memory

import (
	"cmp"
	"slices"
	"time"
)

const (
	// BusyWait is how long a load finds no memory before engines in use are ended
	// for it, and how long after its last request an OnDemand engine counts as in use for
	// an OnDemand model of another namespace: pauses between requests cost no tenure.
	BusyWait = time.Minute
	// busyTenure is how long an OnDemand engine serves before it is ended, in use,
	// for an OnDemand model of another namespace: two models that are always in use
	// alternate no faster. What engines of its namespace served just before counts.
	busyTenure = 5 * time.Minute
	// loadTenure is the same of one that loads: many times what the largest model takes. An
	// engine that was taken over may load for hours.
	loadTenure = 15 * time.Minute
)

// mayEnd reports whether an engine in use may be ended for the load: any OnDemand
// one for an always-resident replica, and for an OnDemand model one of another
// namespace that has served for busyTenure, or loaded for loadTenure. A drain
// that lasts is shortened in the same cases.
func (w Want) mayEnd(e EngineReading, now time.Time) bool {
	if w.Waits < BusyWait || !e.OnDemand || e.Stopping && !e.Lasting || e.Idle() && !w.spares(e, now) || e.Priority > w.Priority || e.Key == w.Key {
		return false
	}
	if w.Always || e.Namespace == w.Namespace {
		return w.Always
	}
	if e.Loading {
		return now.Sub(e.since(e.LoadBegan)) >= loadTenure
	}
	return now.Sub(e.since(e.ReadySince)) >= busyTenure
}

// spares reports whether an engine counts as in use for the load although it is idle.
func (w Want) spares(e EngineReading, now time.Time) bool {
	return !w.Always && e.Namespace != w.Namespace && now.Sub(e.LastUse) < BusyWait
}

// since returns the beginning of the engine's tenure, at own or before.
func (e EngineReading) since(own time.Time) time.Time {
	if !e.Tenure.IsZero() && e.Tenure.Before(own) {
		return e.Tenure
	}
	return own
}

// busyVictims picks engines in use whose end covers the deficit, as few as
// possible; none if all together do not. Those of the namespace whose OnDemand
// engines have most reserved come first: of these one that alone suffices, the
// longest ready, then the largest.
func busyVictims(w Want, r Reading, deficit int64, size func(EngineReading) int64) (keys []Key) {
	reserved := map[string]int64{}
	var open []EngineReading
	for _, e := range r.Engines {
		if e.OnDemand {
			reserved[e.Namespace] += e.Reserved
		}
		if w.mayEnd(e, r.Now) {
			open = append(open, e)
		}
	}
	slices.SortStableFunc(open, func(a, b EngineReading) int {
		if by := cmp.Compare(reserved[b.Namespace], reserved[a.Namespace]); by != 0 {
			return by
		}
		coversA, coversB := size(a) >= deficit, size(b) >= deficit
		switch {
		case coversA && coversB:
			return a.ReadySince.Compare(b.ReadySince)
		case coversA:
			return -1
		case coversB:
			return 1
		}
		return cmp.Compare(size(b), size(a))
	})
	var taken []EngineReading
	surplus := -deficit
	for _, e := range open {
		if surplus >= 0 {
			break
		}
		taken = append(taken, e)
		surplus += size(e)
	}
	if surplus < 0 {
		return nil
	}
	for _, e := range taken {
		if size(e) <= surplus { // a later one made it needless
			surplus -= size(e)
			continue
		}
		keys = append(keys, e.Key)
	}
	return keys
}
