package register

import (
	"errors"
	"testing"
	"time"
)

// After the restore of a backup the Lease names an earlier start of this agent, which is gone.
func TestARestoredLeaseOfAnEarlierStartFencesNoAgent(t *testing.T) {
	c, now := leases(t), time.Now()
	earlier, l := start(t, c, "studio/a"), start(t, c, "studio/b")
	if err := earlier.renew(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	backup := read(t, c)
	for range 3 {
		now = now.Add(renewEvery)
		if err := l.renew(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	backup.ResourceVersion = read(t, c).ResourceVersion
	if err := c.Update(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		now = now.Add(renewEvery)
		if err := l.renew(t.Context(), now); err != nil {
			t.Fatalf("renewal %d: %v", i, err)
		}
	}
	if got := *read(t, c).Spec.HolderIdentity; got != l.holder {
		t.Errorf("%s holds the Lease", got)
	}
}

// A twin whose clock is slow is alive all the same: it takes the Lease back twice.
func TestATwinWithASlowClockIsNotTakenForARestoredLease(t *testing.T) {
	c, now := leases(t), time.Now()
	first, second := start(t, c, "studio/first"), start(t, c, "studio/second")
	first.shared = func() {}
	for i, step := range []struct {
		of   *lease
		late time.Duration
		want error
	}{{first, -time.Hour, nil}, {second, 0, nil}, {first, -time.Hour, nil}, {second, 0, nil}, {first, -time.Hour, nil}, {second, 0, ErrFenced}} {
		if err := step.of.renew(t.Context(), now.Add(time.Duration(i)*time.Second+step.late)); !errors.Is(err, step.want) {
			t.Fatalf("step %d: %v, want %v", i, err, step.want)
		}
	}
}
