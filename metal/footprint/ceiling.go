package footprint

// Policy is how much of a Mac's memory is left to the system and its user.
type Policy string

// The policies, with the reference server's constants (requirements M11).
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
)

// Host is what the ceiling of a Mac is computed from, in bytes.
type Host struct {
	// Total memory of the machine.
	Total int64
	// MetalCap is iogpu.wired_limit_mb if set, else the device's recommended
	// working set; 0 means that there is none to heed.
	MetalCap int64
	// Explicit is the administrator's ceiling; 0 means none was given.
	Explicit int64
	// Policy; empty means Balanced.
	Policy Policy
}

// Limits are what a Mac's engines may use and what may be promised, in bytes.
type Limits struct {
	// Ceiling is the most that engines may use together.
	Ceiling int64
	// Term is what binds it.
	Term Term
	// Capacity is the most that may be reserved.
	Capacity int64
}

// LimitsOf computes the ceiling min(static, Metal cap, explicit) and the
// capacity max(soft fraction x ceiling, ceiling - 24 GiB), never below zero.
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
	soft := l.Ceiling * softPermille(h.Policy) / 1000
	l.Capacity = max(soft, l.Ceiling-24*GiB, 0)
	return l
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
