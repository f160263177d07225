// Package memory is the agent's ledger: every byte of this Mac that may be
// given to engines is promised once.
//
// It owns the reservations and the limits that follow from the machine and the
// administrator's policy. It refuses a reservation beyond the capacity, naming
// what was asked, what is promised and what is left, and it gives nothing back
// before the caller saw the process end. It measures nothing: figures come
// from the probe.
//
// Start reading at Ledger.Reserve.
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
		return fmt.Errorf("reserve %d bytes for replica %s: unknown is never zero", bytes, key.UID)
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

// EngineLimit is the ceiling of one engine's process: its reservation, which
// is an estimate, plus slack of a twentieth and at least 64 MiB.
func EngineLimit(reserved int64) int64 {
	return reserved + max(64*footprint.MiB, reserved/20)
}
