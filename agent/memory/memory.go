// Package memory decides about the memory of this Mac: every byte that engines
// may use is reserved once, and their use stays under the Mac's ceiling.
//
// It owns the ledger of reservations, the admission of loads, the levels of
// pressure with their actions, the choice of victims, and the detection of
// leftovers (stranded wired memory, gauges that disagree, residue). It measures
// nothing and has no side effects: a Reading comes in, a Decision goes out,
// without a clock, a goroutine or a file. It refuses a reservation beyond the
// capacity with the figures; a reservation ends only after the caller observed
// the end of the process; an engine that is or may be busy is never evicted, except
// for a load that has waited for a minute (busyVictims); and on an incomplete
// reading it takes no action, unless it lasts and is of single engines.
//
// # Ceilings and marks
//
// The fixed ceiling is min(RAM - reserve, Metal cap, administrator's number);
// metal/footprint has the constants. The dynamic one is own footprints + free +
// inactive + active x 0.2, 0.5 or 0.8 (Safe, Balanced, Aggressive; Custom has
// none), from one reading. Pressure is measured against the smaller of both:
//
//	soft       0.85 Safe and Custom, 0.90 Balanced, 0.925 Aggressive of the ceiling
//	hard       0.95 of the ceiling
//	emergency  2 GiB over the fixed ceiling, or anything over it for 2 polls
//
// These are the defaults of the reference server (oMLX). On ceilings beyond 240
// GiB soft and hard are at least the ceiling less 24 and 12 GiB: reservations end
// at the soft mark, and a well-packed Mac is not under pressure. The rest is ours
// and still to be measured on Macs: a level ends at once 2.5 % of the ceiling
// below its mark, or after 5 polls anywhere below it, because a well-packed Mac
// may stay just below its mark; victims are taken until the use is 2.5 % below
// the soft mark.
//
// # What counts
//
// An engine's gauge is the largest of active bytes, kernel footprint and
// accounted bytes. Where figures of engines are added up, what one reports over its own
// limit counts only if its footprint shows it: an engine may claim anything. Pools are asked for first: until a request is 5 polls old,
// soft and hard compare the gauge without the pool, and a pool that was returned
// and filled again is asked for again. Within 0.5 s after an engine returned its
// pool nothing is evicted or aborted, because footprints fall 0.25 to 0.5 s
// later. An emergency compares the whole gauge, with one poll of grace if pools,
// or engines that end anyway, cover the excess. Cached prompts are asked for
// before a model is evicted, and only if pools do not suffice.
//
//	soft       prompts wait; idle OnDemand engines are evicted, but not the last one
//	hard       all idle OnDemand engines; then, above the hard mark of the fixed
//	           ceiling, the requests of the busiest engine over its own limit;
//	           else a load (also if the dynamic term is short for 2 polls)
//	emergency  the requests of the worst offender; the engine itself if the next
//	           reading is still over. If engines that are ending suffice, the
//	           others are untouched, unless one does not end when killed. Drains
//	           are cut short unless engines over their own limits suffice
//
// An engine over its own limit is handled alone, at every level: its pool, its
// requests, the engine, one step per poll, and SIGKILL if it grows, or stays over it,
// while it is to end, however long its drain may take. One that is over it in more than
// a quarter of its polls is ended too, or one that makes all prompts wait again within 5
// minutes although its requests were aborted. No other is evicted for what it holds over its
// limit. Prompts no longer wait after 10 polls of soft pressure if no engine runs or can
// be evicted that would end it, and after 60 in any case.
//
// System signals: critical memory pressure is at least soft pressure and delays
// loads; if no figure shows how much is missing, one step is taken every 10 s. A
// warning is only shown, because the dynamic term already accounts for it. A
// critical thermal state delays loads. Swap in use is shown and is no level:
// macOS keeps swap files long after the need.
//
// Loads are checked against the dynamic ceiling without active pages: the
// compressor cannot keep up with a load of GiB/s. Bytes that no engine owns are
// missing from free memory, so they count against it.
//
// # Leftovers
//
// Settled: the host's logical bytes must fall by what was freed less max(2 GiB, 5
// %). Stranding: memory that stays wired when engines end or their footprints
// fall, over max(4 GiB, 2 % of RAM) in two observations 10 s apart; memory that
// is wired without such a fall belongs to other programs. Divergence: gauges
// apart by a tenth, at least 1 and at most 5 GiB, or over 1 GiB left while no
// model is loaded, for 10 s. The figures of 2 and 5 GiB and 5 % are the reference
// server's; the others are ours.
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

// NewLedger returns a ledger without reservations, and without capacity until
// SetHost.
func NewLedger() *Ledger { return &Ledger{reserved: map[Key]int64{}} }

// SetHost recomputes the limits. Existing reservations stay, even above a
// capacity that shrank; only new ones are refused.
func (l *Ledger) SetHost(h footprint.Host) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limits = footprint.LimitsOf(h)
}

// Reserve reserves bytes for key, or returns a *NoRoomError. A key that has a
// reservation keeps it. Reserve does not check what memory the Mac has now; Admit
// does.
func (l *Ledger) Reserve(key Key, bytes int64) error {
	if bytes < 1 {
		return fmt.Errorf("reserve %d bytes for replica %s: want more than zero", bytes, key.UID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.reserved[key]; ok {
		return nil
	}
	if err := l.checkReservation(Want{Key: key, Bytes: bytes}, Reading{}); err != nil {
		return err
	}
	l.reserved[key] = bytes
	return nil
}

// Restore records the reservation of an adopted engine, regardless of the
// capacity: its bytes are in use already.
func (l *Ledger) Restore(key Key, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved[key] = bytes
}

// Release ends a reservation. Callers have observed the end of the process.
func (l *Ledger) Release(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reserved, key)
}

// Account is a copy of the ledger.
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

// EngineLimit returns the memory limit of one engine's process, from its
// reservation.
func EngineLimit(reserved int64) int64 { return footprint.EngineLimit(reserved) }
