package memory

import (
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Ceiling is what a Mac's engines may use together at one moment, in bytes.
type Ceiling struct {
	// Fixed is what the machine and the administrator allow for good.
	Fixed int64
	// Dynamic is what the system's memory allows now; DynamicKnown is false
	// under Custom and where the system does not tell.
	Dynamic      int64
	DynamicKnown bool
	// Bytes is the smaller of both, and Term what binds it.
	Bytes int64
	Term  footprint.Term
	// Soft and Hard marks of Bytes.
	Soft, Hard int64
}

// activePercent is how much of the active pages the dynamic ceiling counts on:
// the system compresses them when it must. The reference server's constants.
func activePercent(p footprint.Policy) int64 {
	switch p {
	case footprint.Safe:
		return 20
	case footprint.Aggressive:
		return 80
	default:
		return 50
	}
}

// CeilingOf is the ceiling that pressure is judged by: min(fixed, own
// footprints + free + inactive + active x ratio), all of one reading.
func CeilingOf(r Reading) Ceiling {
	return ceilingOf(r, r.Host.Active/100*activePercent(r.Policy))
}

// loadCeiling is the ceiling that a load is judged by: active pages count
// nothing, because the compressor does not follow a load of GiB/s.
func loadCeiling(r Reading) Ceiling { return ceilingOf(r, 0) }

func ceilingOf(r Reading, active int64) Ceiling {
	c := Ceiling{Fixed: r.Limits.Ceiling, Bytes: r.Limits.Ceiling, Term: r.Limits.Term}
	// The administrator's number is all there is under Custom. A system that
	// tells neither active nor inactive pages would make the term too small.
	if r.Policy != footprint.Custom && r.HostKnown && r.Host.Active+r.Host.Inactive > 0 {
		c.Dynamic, c.DynamicKnown = r.Host.Free+r.Host.Inactive+active, true
		for _, e := range r.Engines {
			c.Dynamic += e.Footprint
		}
		if c.Dynamic < c.Bytes {
			c.Bytes, c.Term = max(0, c.Dynamic), footprint.Dynamic
		}
	}
	c.Soft, c.Hard = footprint.SoftMark(c.Bytes, r.Policy), footprint.HardMark(c.Bytes)
	return c
}

// settled is the engine's gauge once its pooled bytes are returned: what soft
// and hard pressure compare while it may still return them. An engine that
// loads or ends is not asked, and counts whole.
func (e EngineReading) settled() int64 {
	if e.Loading || e.Stopping {
		return e.Gauge()
	}
	return max(e.Active, e.Footprint-max(0, e.Pooled), e.Accounted)
}

// word is a figure for people.
func word(n int64) string { return v1alpha1.FormatBytes(n) }

// use adds up the gauges of all engines.
func use(engines []EngineReading) (sum int64) {
	for _, e := range engines {
		sum += e.Gauge()
	}
	return sum
}
