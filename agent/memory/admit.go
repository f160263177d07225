package memory

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/agent/probe"
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

// NoRoomError says that memory cannot be promised, or not given now. Figures
// are bytes and never negative.
type NoRoomError struct {
	// Needed bytes; Reserved are promised to others, InUse is what engines use
	// (for a promise: beyond what was promised to them), Capacity the most
	// that may be promised.
	Needed, Reserved, InUse, Capacity int64
	// Available is what could be given now; Foreign is used by other programs.
	Available, Foreign int64
	// Ceiling that Term binds: of Limits, or the dynamic one.
	Ceiling int64
	Limits  footprint.Limits
	Term    footprint.Term
	// Final: too large for this Mac even when it is empty; waiting does not help.
	Final bool
	// Victims are idle engines whose going makes the room: unload them and ask
	// again. Pending says that engines that are ending already will, or that
	// an engine returned its pool just now: look again, and unload nobody.
	Victims []Key
	Pending bool
	// Because is what is short where it is no figure.
	Because string
}

// Error says it with figures.
func (e *NoRoomError) Error() string {
	needs := "needs " + v1alpha1.FormatBytes(e.Needed)
	bound := fmt.Sprintf("(ceiling %s, bound by %s)", v1alpha1.FormatBytes(e.Ceiling), e.Term)
	switch {
	case e.Because != "":
		return fmt.Sprintf("%s, but this Mac loads no models now: %s", needs, e.Because)
	case e.Final:
		return fmt.Sprintf("%s, but this Mac can reserve at most %s %s: the model is too large for this Mac even when nothing else is loaded", needs, v1alpha1.FormatBytes(e.Capacity), bound)
	case e.Term == footprint.Dynamic:
		return fmt.Sprintf("%s, but the Mac's free memory allows only %s now, in addition to %s used by engines and %s by other programs %s", needs, v1alpha1.FormatBytes(e.Available), v1alpha1.FormatBytes(e.InUse), v1alpha1.FormatBytes(e.Foreign), bound)
	case e.InUse > 0:
		return fmt.Sprintf("%s, but %s of %s are already reserved and engines use %s more %s", needs, v1alpha1.FormatBytes(e.Reserved), v1alpha1.FormatBytes(e.Capacity), v1alpha1.FormatBytes(e.InUse), bound)
	}
	return fmt.Sprintf("%s, but %s of %s are already reserved %s", needs, v1alpha1.FormatBytes(e.Reserved), v1alpha1.FormatBytes(e.Capacity), bound)
}

// Admit gives memory to load a model: it promises it, if the key has no promise
// yet, and looks whether the Mac has it now. It returns a *NoRoomError and
// leaves the ledger as it was where there is none. Whoever holds a promise and
// is not among the reading's engines is about to load.
func (l *Ledger) Admit(w Want, r Reading) error {
	if w.Bytes < 1 {
		return fmt.Errorf("admit %d bytes for replica %s: want more than zero", w.Bytes, w.Key.UID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, ok := l.reserved[w.Key]; ok {
		w.Bytes = held
		if held > l.limits.Capacity { // the ceiling fell since: a load would only be cancelled again
			return l.tooLarge(w)
		}
	} else if err := l.promise(w, r.Engines); err != nil {
		return err
	}
	if err := l.give(w, r); err != nil {
		return err
	}
	l.reserved[w.Key] = w.Bytes
	return nil
}

// promise checks the sum of reservations against the capacity. What an engine
// uses beyond its reservation is gone for others too, and what an engine uses
// that nobody reserved is gone whole; the caller holds mu.
func (l *Ledger) promise(w Want, engines []EngineReading) error {
	if w.Bytes > l.limits.Capacity {
		return l.tooLarge(w)
	}
	short := l.short(w)
	for _, e := range engines {
		short.InUse += max(0, e.Gauge()-l.reserved[e.Key])
	}
	left := l.limits.Capacity - short.Reserved - short.InUse
	short.Available = max(0, left)
	if w.Bytes > left {
		short.room(w, engines, w.Bytes-left, func(e EngineReading) int64 { return max(e.Gauge(), l.reserved[e.Key]) })
		return short
	}
	return nil
}

// short begins a refusal by what may be promised; the caller holds mu.
func (l *Ledger) short(w Want) *NoRoomError {
	return &NoRoomError{Needed: w.Bytes, Reserved: l.sum(), Capacity: l.limits.Capacity,
		Ceiling: l.limits.Ceiling, Limits: l.limits, Term: l.limits.Term}
}

// tooLarge refuses what does not fit an empty Mac; the caller holds mu.
func (l *Ledger) tooLarge(w Want) *NoRoomError {
	short := l.short(w)
	short.Final, short.Available = true, max(0, l.limits.Capacity-short.Reserved)
	return short
}

// give checks what the Mac has now: bytes that no engine owns are gone for a
// load, and so is what other loads will still take; the caller holds mu.
func (l *Ledger) give(w Want, r Reading) error {
	short := &NoRoomError{Needed: w.Bytes, Reserved: l.sum(), InUse: use(r.Engines), Capacity: l.limits.Capacity, Limits: l.limits, Term: footprint.Dynamic, Foreign: r.Host.Foreign}
	switch {
	case !r.HostKnown:
		short.Because = "the memory of this Mac could not be measured"
		return short
	case r.Host.Pressure == probe.Critical:
		short.Because = "the system reports critical memory pressure"
		return short
	case r.Host.Thermal == probe.Critical:
		short.Because = "the system reports a critical thermal state"
		return short
	}
	c := loadCeiling(r)
	if c.Term != footprint.Dynamic {
		return nil // what binds for good was checked by the promise
	}
	left := c.Soft - short.InUse - l.growth(w.Key, r.Engines)
	short.Available, short.Ceiling = max(0, left), c.Bytes
	if w.Bytes > left {
		short.room(w, r.Engines, w.Bytes-left, EngineReading.Gauge)
		if slices.ContainsFunc(r.Engines, func(e EngineReading) bool { return unsettled(e, r.Now) }) {
			short.Pending, short.Victims = true, nil
		}
		return short
	}
	return nil
}

// growth is what other loads will still take: those that go on, and those that
// memory was given to and that are about to begin; the caller holds mu.
func (l *Ledger) growth(but Key, engines []EngineReading) (sum int64) {
	begun := make(map[Key]bool, len(engines))
	for _, e := range engines {
		begun[e.Key] = true
		if e.Loading && e.Key != but {
			sum += max(0, l.reserved[e.Key]-e.Gauge())
		}
	}
	for k, bytes := range l.reserved {
		if !begun[k] && k != but {
			sum += bytes
		}
	}
	return sum
}

// room looks for what would make it: engines that are ending, then idle ones.
func (e *NoRoomError) room(w Want, engines []EngineReading, deficit int64, size func(EngineReading) int64) {
	for _, other := range engines {
		if other.Stopping {
			deficit -= size(other)
		}
	}
	if deficit <= 0 {
		e.Pending = true
		return
	}
	if keys, sum := victims(engines, deficit, w.Priority, size, w.Key); sum >= deficit {
		e.Victims = keys
	}
}
