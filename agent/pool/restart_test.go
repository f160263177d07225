package pool

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestPressureSetsBackForLongerEachTime, up to a limit, until half an hour has passed without it.
func TestPressureSetsBackForLongerEachTime(t *testing.T) {
	e, now := &entry{}, time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	why := journal.Refusal{Reason: v1alpha1.ReasonNoRoom}
	for i, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute} {
		e.setBack(why, now)
		if got := e.restart.Sub(now); got != want || !e.setBackNow(now.Add(want-1)) || e.setBackNow(now.Add(want)) {
			t.Errorf("time %d: set back for %s, want %s", i+1, got, want)
		}
		now = now.Add(time.Minute)
	}
	now = now.Add(29*time.Minute - time.Second)
	if e.setBack(why, now); e.restart.Sub(now) != 20*time.Second {
		t.Errorf("after almost half an hour: set back for %s", e.restart.Sub(now))
	}
	now = now.Add(30 * time.Minute)
	if e.setBack(why, now); e.restart.Sub(now) != 10*time.Second {
		t.Errorf("after half an hour: set back for %s", e.restart.Sub(now))
	}
}
