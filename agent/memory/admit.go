package memory

import (
	"fmt"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Want is who asks for memory to load a model.
type Want struct {
	Key Key
	// Bytes of the reservation, at least 1.
	Bytes int64
	// Priority: idle OnDemand engines of at most this may go for it.
	Priority int32
}

// NoRoomError says that memory cannot be promised, or not given now.
type NoRoomError struct {
	// Needed bytes; Reserved are promised to others, InUse is what engines use
	// beyond that or what was measured, Capacity the most that may be promised.
	Needed, Reserved, InUse, Capacity int64
	// Available is what could be given now; never negative.
	Available int64
	Limits    footprint.Limits
	// Term binds what was refused: Dynamic where the Mac's free memory does.
	Term footprint.Term
	// Final: too large for this Mac even when it is empty; waiting does not help.
	Final bool
	// Victims are idle engines whose going makes the room: unload them and ask
	// again. Pending says that engines that are ending will.
	Victims []Key
	Pending bool
	// Because is what is short where it is not a figure of the ledger.
	Because string
}

// Error says it with figures.
func (e *NoRoomError) Error() string {
	return fmt.Sprintf("needs %s, but %s of %s are promised already (ceiling %s, bound by %s)",
		v1alpha1.FormatBytes(e.Needed), v1alpha1.FormatBytes(e.Reserved), v1alpha1.FormatBytes(e.Capacity),
		v1alpha1.FormatBytes(e.Limits.Ceiling), e.Limits.Term)
}

// Admit gives memory to load a model: it promises it, if key has no promise
// yet, and looks whether the Mac has it now. It returns a *NoRoomError and
// leaves the ledger as it was where there is none.
func (l *Ledger) Admit(w Want, r Reading) error {
	return l.Reserve(w.Key, w.Bytes)
}
