// Package memory decides about the memory of this Mac: every byte that may be
// given to engines is promised once, and what engines use is kept under the
// Mac's ceiling.
//
// It owns the ledger of reservations, the admission of loads, the levels of
// pressure and what each leads to, the choice of victims, and the judges of
// what is left over (stranded wired memory, gauges that disagree, residue). It
// measures nothing and does nothing: a Reading comes in, a Decision goes out,
// without a clock, a goroutine or a file. It refuses a reservation beyond the
// capacity, naming what was asked, what is promised and what is left; it gives
// nothing back before the caller saw the process end; it never takes an engine
// that is busy, or may be; and on a reading that failed it destroys nothing.
//
// # Ceilings and marks
//
// The fixed ceiling is min(RAM - reserve, Metal cap, administrator's number);
// metal/footprint has the constants. The dynamic one is own footprints + free
// + inactive + active x 0.2, 0.5 or 0.8 (Safe, Balanced, Aggressive; Custom
// has none), from one reading. Pressure is judged by the smaller of both:
//
//	soft       0.85 Safe and Custom, 0.90 Balanced, 0.925 Aggressive of the ceiling
//	hard       0.95 of the ceiling
//	emergency  2 GiB over the fixed ceiling, or anything over it for 2 polls
//
// These are the defaults of the reference server (oMLX). On ceilings beyond
// 240 GiB soft and hard are at least the ceiling less 24 and 12 GiB: what may
// be promised ends at the soft mark, and a well-packed Mac is not under
// pressure. Ours, and to be measured on Macs: a level is left 2.5 % of the
// ceiling below its mark at once, or anywhere below it after 5 polls, because
// a well-packed Mac may stand just below its mark for good; victims are taken
// until the use is 2.5 % below the soft mark.
//
// # What counts
//
// An engine's gauge is the largest of active bytes, kernel footprint and
// accounted bytes. Pools are asked for first: until a request is 5 polls old,
// soft and hard compare the gauge without the pool, and a pool that was
// returned and filled again is asked for again; nothing is destroyed on a
// reading less than 0.5 s after an engine returned its pool (footprints fall
// 0.25 to 0.5 s later); an emergency compares the whole gauge, with one poll
// of grace, for idle engines too, where pools, or engines that end anyway,
// cover the excess. Cached prompts are asked for before a model is evicted, and
// only where pools do not suffice.
//
//	soft       prompts wait; idle OnDemand engines go, but not the last one
//	hard       all idle OnDemand engines; then, above the hard mark of the fixed
//	           ceiling, the requests of the busiest engine over its own limit;
//	           else a load (also where the dynamic term is short for 2 polls)
//	emergency  the requests of the worst offender; the engine itself where the
//	           next reading is still over. Where engines that are ending suffice,
//	           the others are untouched, unless one does not end when killed
//
// An engine over its own limit is dealt with alone, at every level: its pool,
// its requests, itself, a poll apart. Prompts wait no longer where soft
// pressure has lasted 10 polls and nothing runs or can go that would end it.
//
// What the system says: critical memory pressure is soft pressure at least and
// holds loads back; where no figure shows what is short, one step is taken in
// 10 s; a warning is shown only, because the dynamic term sees
// what it warns of. A critical thermal state holds loads back. Swap in use is
// shown and said, and is no level: macOS keeps swap files long after the need.
//
// Loads are judged by the dynamic ceiling without active pages: the compressor
// does not follow a load of GiB/s. Bytes that no engine owns are missing from
// free memory, so they count against it.
//
// # Judges
//
// Settled wants the host's logical bytes to fall by what was freed less
// max(2 GiB, 5 %). Stranding: what stays wired when engines end or their
// footprints fall, over max(4 GiB, 2 % of RAM) in two observations 10 s apart;
// what is wired without such a fall belongs to other programs.
// Divergence: gauges apart by a tenth, at least 1 and at most 5 GiB, or over
// 1 GiB left where no model is loaded, for 10 s. The figures of 2 and 5 GiB and
// 5 % are the reference server's; the others are ours.
//
// Start reading at Enforcer.Poll, then Ledger.Admit and Victim.
package memory

import (
	"fmt"
	"sync"

	"metalfleet.dev/metalfleet/metal/footprint"
)

// Key names the holder of a reservation: one replica in one epoch.
type Key struct {
	UID   string
	Epoch int64
}

// Ledger holds the reservations. It is safe for concurrent use.
type Ledger struct {
	mu       sync.Mutex // guards what follows
	limits   footprint.Limits
	reserved map[Key]int64
}

// NewLedger begins with no reservation and no room, until SetHost.
func NewLedger() *Ledger { return &Ledger{reserved: map[Key]int64{}} }

// SetHost recomputes the limits. Reservations that were made stay, even above
// a capacity that shrank: they are promises, and only new ones are refused.
func (l *Ledger) SetHost(h footprint.Host) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limits = footprint.LimitsOf(h)
}

// Reserve promises bytes to key, or returns a *NoRoomError. Asking again for a
// key that has a reservation keeps the one it has. A promise says nothing of
// what the Mac has now: a load asks Admit.
func (l *Ledger) Reserve(key Key, bytes int64) error {
	if bytes < 1 {
		return fmt.Errorf("reserve %d bytes for replica %s: want more than zero", bytes, key.UID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.reserved[key]; ok {
		return nil
	}
	if err := l.promise(Want{Key: key, Bytes: bytes}, nil); err != nil {
		return err
	}
	l.reserved[key] = bytes
	return nil
}

// Restore books a reservation of a living engine that was adopted, whatever
// the capacity: its bytes are in use already.
func (l *Ledger) Restore(key Key, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved[key] = bytes
}

// Release ends a reservation. Callers have seen the process end.
func (l *Ledger) Release(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reserved, key)
}

// Account is what the ledger says at one moment.
type Account struct {
	Limits   footprint.Limits
	Reserved int64
	Holders  map[Key]int64
}

// Account copies the ledger.
func (l *Ledger) Account() Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := Account{Limits: l.limits, Reserved: l.sum(), Holders: make(map[Key]int64, len(l.reserved))}
	for k, v := range l.reserved {
		a.Holders[k] = v
	}
	return a
}

// sum adds up the reservations; the caller holds mu.
func (l *Ledger) sum() int64 {
	var n int64
	for _, v := range l.reserved {
		n += v
	}
	return n
}

// EngineLimit is the ceiling of one engine's process, from its reservation.
func EngineLimit(reserved int64) int64 { return footprint.EngineLimit(reserved) }
