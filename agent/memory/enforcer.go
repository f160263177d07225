package memory

import (
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Enforcer derives from each poll what is to be done. It is not safe for
// concurrent use, has no clock and does nothing itself.
type Enforcer struct {
	// Pause between two victims; 0 takes all that are needed at once (M12).
	Pause time.Duration

	level v1alpha1.PressureLevel
}

// NewEnforcer begins at PressureNormal and has asked nobody.
func NewEnforcer() *Enforcer { return &Enforcer{level: v1alpha1.PressureNormal} }

// Poll decides on one reading. Callers poll every second while an engine is
// active, and do what the decision says before they read again.
func (e *Enforcer) Poll(r Reading) Decision {
	c := CeilingOf(r)
	return Decision{Level: e.level, Ceiling: c.Bytes, Term: c.Term, Dynamic: c.Dynamic}
}
