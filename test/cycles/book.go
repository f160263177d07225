package main

import (
	"errors"
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// book counts what was freed, each reclaim once, apart from the agent.
type book struct {
	counted map[string]bool
	freed   int64
}

// count takes the new reclaims of a Mac: one for each engine whose own reading
// is given, by replica UID, and the Mac's total is their sum.
func (b *book) count(node *v1alpha1.MacNode, own map[string]int64) error {
	var errs []error
	fresh := map[string]int{}
	for _, r := range node.Status.Reclaims {
		if b.counted[r.ID] {
			continue
		}
		b.counted[r.ID] = true
		fresh[r.ReplicaUID]++
		if r.FreedBytes == nil {
			errs = append(errs, fmt.Errorf("reclaim %s does not know its bytes", r.ID))
			continue
		}
		b.freed += *r.FreedBytes
		read := own[r.ReplicaUID]
		if off := math.Abs(float64(*r.FreedBytes)/float64(read) - 1); !(off <= offBy) {
			errs = append(errs, fmt.Errorf("reclaim %s freed %d bytes, /proc said %d", r.ID, *r.FreedBytes, read))
		}
		if r.Exit != v1alpha1.ExitClean {
			errs = append(errs, fmt.Errorf("reclaim %s: exit %s, want %s", r.ID, r.Exit, v1alpha1.ExitClean))
		}
	}
	for uid := range own {
		if fresh[uid] != 1 {
			errs = append(errs, fmt.Errorf("%d reclaims of replica %s, want 1", fresh[uid], uid))
		}
		delete(fresh, uid)
	}
	if len(fresh) > 0 {
		errs = append(errs, fmt.Errorf("reclaims of replicas that were not loaded: %v", fresh))
	}
	if total := node.Status.Memory.FreedBytesTotal; total != b.freed {
		errs = append(errs, fmt.Errorf("the Mac counts %d freed bytes, its reclaims add up to %d", total, b.freed))
	}
	return errors.Join(errs...)
}

// within says whether an agent holds what it held when it was empty. Less is fine.
func within(now, empty int64) error {
	if float64(now) > float64(empty)*(1+tolerance) {
		return fmt.Errorf("it holds %d bytes, %d when it was empty: %+.1f %%, at most %+.0f %%", now, empty, 100*(float64(now)/float64(empty)-1), 100*tolerance)
	}
	return nil
}
