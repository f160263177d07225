package memory

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/metal/footprint"
)

const gib = footprint.GiB

func ledgerOf(total int64) *Ledger {
	l := NewLedger()
	l.SetHost(footprint.Host{Total: total})
	return l
}

func TestLedgerWithoutAHostRefusesReservations(t *testing.T) {
	if err := NewLedger().Reserve(Key{"a", 1}, 1); err == nil {
		t.Error("a byte was promised of an unknown machine")
	}
}

func TestReservationsNeverExceedTheCapacity(t *testing.T) {
	l := ledgerOf(64 * gib) // capacity 52.2 GiB
	if err := l.Reserve(Key{"a", 1}, 30*gib); err != nil {
		t.Fatal(err)
	}
	err := l.Reserve(Key{"b", 1}, 30*gib)
	var noRoom *NoRoomError
	if !errors.As(err, &noRoom) || noRoom.Reserved != 30*gib || !strings.Contains(err.Error(), "needs 30.0 GiB, but 30.0 GiB of 52.2 GiB") {
		t.Fatalf("got %v", err)
	}
	if err := l.Reserve(Key{"c", 1}, math.MaxInt64); err == nil {
		t.Error("an absurd reservation wrapped around")
	}
	if err := l.Reserve(Key{"d", 1}, 0); err == nil {
		t.Error("a reservation of unknown size was taken")
	}
	l.Release(Key{"a", 1})
	if err := l.Reserve(Key{"b", 1}, 30*gib); err != nil {
		t.Errorf("after the release: %v", err)
	}
}

func TestAskingTwiceReservesOnce(t *testing.T) {
	l := ledgerOf(64 * gib)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if err := l.Reserve(Key{"a", 1}, 30*gib); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if a := l.Account(); a.Reserved != 30*gib || len(a.Holders) != 1 {
		t.Errorf("%+v", a)
	}
}

func TestEpochsAreDifferentHolders(t *testing.T) {
	l := ledgerOf(64 * gib)
	_ = l.Reserve(Key{"a", 1}, 10*gib)
	_ = l.Reserve(Key{"a", 2}, 10*gib)
	l.Release(Key{"a", 1})
	if a := l.Account(); a.Reserved != 10*gib {
		t.Errorf("%+v", a)
	}
}

func TestShrunkCapacityKeepsReservationsAndRefusesNewOnes(t *testing.T) {
	l := ledgerOf(64 * gib)
	_ = l.Reserve(Key{"a", 1}, 40*gib)
	l.SetHost(footprint.Host{Total: 64 * gib, Explicit: 20 * gib})
	if a := l.Account(); a.Reserved != 40*gib || a.Limits.Ceiling != 20*gib {
		t.Errorf("%+v", a)
	}
	if err := l.Reserve(Key{"b", 1}, 1); err == nil {
		t.Error("promised above the capacity")
	}
	l.Restore(Key{"c", 1}, gib)
	if a := l.Account(); a.Reserved != 41*gib {
		t.Errorf("an adopted engine's bytes are not booked: %+v", a)
	}
}
