package footprint

// Policy is how much of a Mac's memory is reserved for the system and its user.
type Policy string

// The policies, with the reference server's constants.
const (
	Safe       Policy = "Safe"
	Balanced   Policy = "Balanced"
	Aggressive Policy = "Aggressive"
	Custom     Policy = "Custom"
)

// Term names what binds a ceiling.
type Term string

// The terms of a ceiling.
const (
	Static   Term = "Static"
	MetalCap Term = "MetalCap"
	Explicit Term = "Explicit"
	// Dynamic is the limit by the system's free memory at this moment. It never
	// binds Limits: agent/memory computes it and gates loads and pressure by
	// it.
	Dynamic Term = "Dynamic"
)

// Host has the inputs of a Mac's ceiling, in bytes.
type Host struct {
	// Total memory of the machine.
	Total int64
	// MetalCap is iogpu.wired_limit_mb if set, else the device's recommended
	// working set; 0 means none.
	MetalCap int64
	// Explicit is the administrator's ceiling; 0 means none.
	Explicit int64
	// Policy; empty means Balanced.
	Policy Policy
}

// Limits are the memory that a Mac's engines may use and the memory that may be
// promised, in bytes.
type Limits struct {
	// Ceiling is the most that engines may use together.
	Ceiling int64
	// Term is the binding limit.
	Term Term
	// Capacity is the most that may be reserved.
	Capacity int64
}

// LimitsOf computes the ceiling min(static, Metal cap, explicit) and the
// capacity, which is the SoftMark, never below zero.
// The dynamic term of the ceiling gates loads and the enforcer only, so it is
// not part of what may be promised.
func LimitsOf(h Host) Limits {
	l := Limits{Ceiling: max(0, h.Total-reserve(h)), Term: Static}
	if h.MetalCap > 0 && h.MetalCap < l.Ceiling {
		l.Ceiling, l.Term = h.MetalCap, MetalCap
	}
	if h.Explicit > 0 && h.Explicit < l.Ceiling {
		l.Ceiling, l.Term = h.Explicit, Explicit
	}
	l.Capacity = SoftMark(l.Ceiling, h.Policy)
	return l
}

// SoftMark is where pressure begins under a ceiling, and the maximum that may
// be promised under it: a well-packed Mac is not under pressure by design. It
// is the policy's fraction of the ceiling, or the ceiling less 24 GiB if that
// is more, so that large Macs can hold large models.
func SoftMark(ceiling int64, p Policy) int64 {
	return max(ceiling/1000*softPermille(p)+ceiling%1000*softPermille(p)/1000, ceiling-24*GiB, 0)
}

// HardMark is where pressure becomes hard: 0.95 of the ceiling, or the ceiling
// less 12 GiB if that is more, so that it stays above every SoftMark.
func HardMark(ceiling int64) int64 {
	return max(ceiling/1000*950+ceiling%1000*950/1000, ceiling-12*GiB, 0)
}

// reserve is what is left to the system: 4 GiB below 24 GiB of memory (not
// under Custom), else 8, 6, 4 or 2 GiB.
func reserve(h Host) int64 {
	switch {
	case h.Policy == Custom:
		return 2 * GiB
	case h.Total < 24*GiB:
		return 4 * GiB
	case h.Policy == Safe:
		return 8 * GiB
	case h.Policy == Aggressive:
		return 4 * GiB
	default:
		return 6 * GiB
	}
}

func softPermille(p Policy) int64 {
	switch p {
	case Safe, Custom:
		return 850
	case Aggressive:
		return 925
	default:
		return 900
	}
}
