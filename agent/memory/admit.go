package memory

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// poolWait is how long a load waits for engines to return their pools before others are ended
// for it: an engine that was taken over returns a byte again and again.
const poolWait = 10 * settleTime

// Want asks for memory to load a model.
type Want struct {
	Key Key
	// Bytes of the reservation, at least 1.
	Bytes int64
	// Priority: OnDemand engines of at most this priority may be evicted for it.
	Priority int32
	// Always-resident replicas may take any OnDemand engine's memory, others that of
	// idle ones and, after a wait, of those of other namespaces than theirs.
	Always    bool
	Namespace string
	// Waits is for how long it has found no memory.
	Waits time.Duration
	// Claimed bytes are being freed for others, and count as reserved.
	Claimed int64
}

// NoRoomError reports that memory cannot be reserved, or is not available now.
// Figures are bytes and never negative.
type NoRoomError struct {
	// Needed is the size of the request. Reserved is what other keys have
	// reserved, InUse what engines use (in a refused reservation: beyond their
	// own reservations), Capacity the most that may be reserved.
	Needed, Reserved, InUse, Capacity int64
	// Available is what could be used now; Foreign is used by other programs.
	Available, Foreign int64
	// Ceiling is the limit that refused the request and Term what sets it: one of
	// Limits, or the dynamic term.
	Ceiling int64
	Limits  footprint.Limits
	Term    footprint.Term
	// Final: the request exceeds the capacity of this Mac even when it is empty;
	// waiting does not help.
	Final bool
	// Victims are idle engines whose eviction frees enough: unload them and ask
	// again. Pending is true if engines that are already ending free enough, or
	// an engine returned its pool just now: ask again and unload none. Busy are
	// engines in use now or lately, or with a drain that lasts, whose end frees what
	// idle ones do not, once the load has waited for it.
	Victims []Key
	Busy    []Key
	Pending bool
	// Because explains a refusal that no figure explains.
	Because string
}

// Error explains the refusal with its figures.
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

// Admit reserves the memory to load a model, unless the key has a reservation,
// and checks that the Mac has it now. On failure it returns a *NoRoomError and
// leaves the ledger unchanged. A key that has a reservation but no engine in the
// reading is taken to be about to load.
func (l *Ledger) Admit(w Want, r Reading) error {
	if w.Bytes < 1 {
		return fmt.Errorf("admit %d bytes for replica %s: want more than zero", w.Bytes, w.Key.UID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, ok := l.reserved[w.Key]; ok {
		w.Bytes = held
		if held > l.limits.Capacity { // the ceiling fell after the reservation: a load would only be canceled again
			return l.tooLarge(w)
		}
	} else if err := l.checkReservation(w, r); err != nil {
		return err
	}
	if err := l.checkAvailable(w, r); err != nil {
		return err
	}
	l.reserved[w.Key] = w.Bytes
	return nil
}

// CanAdmit reports whether a key without a reservation would get the memory, now or once other
// engines have ended for it. If it has waited for busyTenure, these include engines in use that
// have served for less.
func (l *Ledger) CanAdmit(w Want, r Reading) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.Waits >= busyTenure {
		r.Now = r.Now.Add(loadTenure)
	}
	var short *NoRoomError
	if err := l.checkReservation(w, r); errors.As(err, &short) {
		return short.Pending || len(short.Victims)+len(short.Busy) > 0
	}
	if err := l.checkAvailable(w, r); errors.As(err, &short) {
		return short.Pending || len(short.Victims)+len(short.Busy) > 0
	}
	return true
}

// checkReservation compares the sum of reservations with the capacity. Bytes that
// an engine uses beyond its reservation, or without one, count as reserved. The
// caller holds mu.
func (l *Ledger) checkReservation(w Want, r Reading) error {
	if w.Bytes > l.limits.Capacity {
		return l.tooLarge(w)
	}
	short := l.short(w)
	short.Reserved += w.Claimed
	for _, e := range r.Engines {
		short.InUse += max(0, e.counted()-l.reserved[e.Key])
	}
	left := l.limits.Capacity - short.Reserved - short.InUse
	short.Available = max(0, left)
	if w.Bytes > left {
		short.findRoom(w, r, w.Bytes-left, func(e EngineReading) int64 { return max(e.counted(), l.reserved[e.Key]) })
		return short
	}
	return nil
}

// short begins a refusal of w with the ledger's figures; the caller holds mu.
func (l *Ledger) short(w Want) *NoRoomError {
	return &NoRoomError{Needed: w.Bytes, Reserved: l.sum(), Capacity: l.limits.Capacity,
		Ceiling: l.limits.Ceiling, Limits: l.limits, Term: l.limits.Term}
}

// tooLarge refuses a request that exceeds the capacity of an empty Mac; the
// caller holds mu.
func (l *Ledger) tooLarge(w Want) *NoRoomError {
	short := l.short(w)
	short.Final, short.Available = true, max(0, l.limits.Capacity-short.Reserved)
	return short
}

// checkAvailable compares the request with the memory that the Mac has now, less
// what other loads will still take; the caller holds mu.
func (l *Ledger) checkAvailable(w Want, r Reading) error {
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
		return nil // the fixed ceiling was checked with the reservation
	}
	left := c.Soft - short.InUse - l.growth(w.Key, r.Engines) - w.Claimed
	short.Available, short.Ceiling = max(0, left), c.Bytes
	if w.Bytes > left {
		short.findRoom(w, r, w.Bytes-left, EngineReading.counted)
		if w.Waits < poolWait && slices.ContainsFunc(r.Engines, func(e EngineReading) bool { return unsettled(e, r.Now) }) {
			short.Pending, short.Victims, short.Busy = true, nil, nil
		}
		return short
	}
	return nil
}

// growth returns how many bytes other loads will still take: those in progress,
// and those that are admitted and have not begun; the caller holds mu.
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

// findRoom looks for engines whose end frees the deficit: those that end soon,
// then idle ones, then those in use. A drain that lasts is waited for if nothing
// else helps.
func (e *NoRoomError) findRoom(w Want, r Reading, deficit int64, size func(EngineReading) int64) {
	late := int64(0)
	for _, other := range r.Engines {
		switch {
		case other.Lasting:
			late += size(other)
		case other.Stopping:
			deficit -= size(other)
		}
	}
	if deficit <= 0 {
		e.Pending = true
		return
	}
	protect := []Key{w.Key}
	for _, other := range r.Engines {
		if w.spares(other, r.Now) {
			protect = append(protect, other.Key)
		}
	}
	keys, sum := victims(r.Engines, deficit, w.Priority, size, protect...)
	if sum >= deficit {
		e.Victims = keys
		return
	}
	e.Busy = busyVictims(w, r, deficit-sum, size)
	e.Pending = len(e.Busy) == 0 && sum+late >= deficit
}
