package memory

import (
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Ceiling is the limit of what a Mac's engines may use together at one moment, in
// bytes.
type Ceiling struct {
	// Fixed is the limit of the machine and the administrator.
	Fixed int64
	// Dynamic is the limit by the system's memory now; DynamicKnown is false
	// under the Custom policy and where the system does not report page counts.
	Dynamic      int64
	DynamicKnown bool
	// Bytes is the smaller of both, and Term what sets it.
	Bytes int64
	Term  footprint.Term
	// Soft and Hard are the pressure marks of Bytes.
	Soft, Hard int64
}

// activePercent is the share of the active pages that counts as available in the
// dynamic ceiling: the system compresses them if it must. The constants are those
// of the reference server.
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

// CeilingOf returns the ceiling that pressure is measured against: min(fixed, own
// footprints + free + inactive + active x ratio), all from one reading.
func CeilingOf(r Reading) Ceiling {
	return ceilingOf(r, r.Host.Active/100*activePercent(r.Policy))
}

// loadCeiling returns the ceiling for a load: active pages do not count, because
// the compressor cannot keep up with a load of GiB/s.
func loadCeiling(r Reading) Ceiling { return ceilingOf(r, 0) }

func ceilingOf(r Reading, active int64) Ceiling {
	c := Ceiling{Fixed: r.Limits.Ceiling, Bytes: r.Limits.Ceiling, Term: r.Limits.Term}
	// Under Custom the administrator's number is the only limit. On a system that
	// reports neither active nor inactive pages the dynamic term would be too
	// small.
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

// settled is the engine's gauge without its pooled bytes: soft and hard pressure
// use it while the engine may still return its pool. Of one that is not asked for
// its pool all of the gauge counts. The pool is the engine's own figure:
// no more than half of its limit is believed, many times what an engine may keep.
func (e EngineReading) settled() int64 {
	if !e.returnsPool() {
		return e.Gauge()
	}
	pooled := max(0, e.Pooled)
	if e.Limit > 0 {
		pooled = min(pooled, e.Limit/2)
	}
	return max(e.Active, e.Footprint-pooled, e.Accounted)
}

// formatBytes formats a figure for people.
func formatBytes(n int64) string { return v1alpha1.FormatBytes(n) }

// use adds up the gauges of all engines.
func use(engines []EngineReading) (sum int64) {
	for _, e := range engines {
		sum += e.counted()
	}
	return sum
}

// believed is a figure of the engine as far as it counts with those of others: an engine that was
// taken over claims any, so that beyond its limit only the kernel's figure counts.
func (e EngineReading) believed(n int64) int64 {
	if e.Limit <= 0 || !e.FootprintKnown {
		return n
	}
	return min(n, max(e.Footprint, e.Limit))
}

// counted is the engine's gauge as far as it counts with those of others.
func (e EngineReading) counted() int64 { return e.believed(e.Gauge()) }
