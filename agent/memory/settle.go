package memory

import (
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Settled reports whether the host got back the memory of an engine: its logical
// bytes in use (wired, resident anonymous, compressed, swapped) fell by freed
// less settleTolerance. Both readings are of the same machine, before with the
// engine and now without it, while no other engine loads or serves.
func Settled(before, now probe.Host, freed int64) bool {
	return before.Used-now.Used >= max(0, freed-settleTolerance(freed))
}

// settleTolerance is max(2 GiB, 5 %) of what was freed, in bytes.
func settleTolerance(freed int64) int64 { return max(2*footprint.GiB, freed/20) }
