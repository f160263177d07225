package fleet

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Reclaimed are the reclaims that a Mac reports now and did not report before,
// with an error unless each load of a replica was reclaimed once and the Mac's
// total has grown by their sum.
func Reclaimed(before, now *v1alpha1.MacNode) ([]v1alpha1.Reclaim, error) {
	had := map[string]bool{}
	for _, r := range before.Status.Reclaims {
		had[r.ID] = true
	}
	var fresh []v1alpha1.Reclaim
	var errs []error
	var sum int64
	loads := map[string]bool{}
	for _, r := range now.Status.Reclaims {
		if had[r.ID] {
			continue
		}
		fresh = append(fresh, r)
		load := fmt.Sprintf("%d of replica %s", r.Load, r.ReplicaUID)
		if loads[load] {
			errs = append(errs, fmt.Errorf("two reclaims of load %s", load))
		}
		loads[load] = true
		if r.FreedBytes != nil {
			sum += *r.FreedBytes
		}
	}
	if grown := now.Status.Memory.FreedBytesTotal - before.Status.Memory.FreedBytesTotal; grown != sum {
		errs = append(errs, fmt.Errorf("the Mac's total of freed bytes grew by %d, its new reclaims add up to %d", grown, sum))
	}
	return fresh, errors.Join(errs...)
}

// CheckReclaims wants the reclaims that came between two readings of a Mac to be
// one for each replica in held, with about its bytes as read from /proc, and no
// other.
func CheckReclaims(before, now *v1alpha1.MacNode, held map[string]int64) error {
	fresh, err := Reclaimed(before, now)
	errs := []error{err}
	count := map[string]int{}
	for _, r := range fresh {
		count[r.ReplicaUID]++
		if want, known := held[r.ReplicaUID]; !known {
			errs = append(errs, fmt.Errorf("reclaim %s is of a replica that held nothing", r.ID))
		} else if r.FreedBytes == nil || !Near(*r.FreedBytes, want) {
			errs = append(errs, fmt.Errorf("reclaim %s freed %s bytes, /proc showed %d", r.ID, Bytes(r.FreedBytes), want))
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(held)) {
		if count[uid] != 1 {
			errs = append(errs, fmt.Errorf("%d reclaims of replica %s, want 1", count[uid], uid))
		}
	}
	return errors.Join(errs...)
}

// Near reports whether a figure is within 5 % of a reading of /proc.
func Near(n, read int64) bool { return read > 0 && 20*max(n-read, read-n) <= read }

// Bytes is a figure that may be unknown, for a message.
func Bytes(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}
