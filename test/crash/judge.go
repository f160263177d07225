package main

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// offBy is how far freed bytes may lie from the own reading of /proc.
const offBy = 0.05

// fresh are the reclaims of a replica that came between two looks at its Mac.
func fresh(before, now *v1alpha1.MacNode, uid string) []v1alpha1.Reclaim {
	had := map[string]bool{}
	for _, r := range before.Status.Reclaims {
		had[r.ID] = true
	}
	var out []v1alpha1.Reclaim
	for _, r := range now.Status.Reclaims {
		if !had[r.ID] && r.ReplicaUID == uid {
			out = append(out, r)
		}
	}
	return out
}

// sum adds up what the new reclaims of a replica freed and wants the Mac's
// total to have grown by just that.
func sum(before, now *v1alpha1.MacNode, uid string) (freed int64, err error) {
	loads := map[int64]bool{}
	for _, r := range fresh(before, now, uid) {
		if loads[r.Load] {
			return 0, fmt.Errorf("two reclaims of load %d", r.Load)
		}
		loads[r.Load] = true
		if r.FreedBytes != nil {
			freed += *r.FreedBytes
		}
	}
	if grown := now.Status.Memory.FreedBytesTotal - before.Status.Memory.FreedBytesTotal; grown != freed {
		return freed, fmt.Errorf("the Mac's total grew by %d bytes, the new reclaims freed %d", grown, freed)
	}
	return freed, nil
}

// checkFreed compares with an own reading.
func checkFreed(freed, own int64) error {
	if off := math.Abs(float64(freed)/float64(own) - 1); !(off <= offBy+1e-9) {
		return fmt.Errorf("%d bytes were freed, /proc said %d", freed, own)
	}
	return nil
}

// checkOneEngine wants one process, and no second one.
func checkOneEngine(engines []fleet.Engine, err error) error {
	if err == nil && len(engines) != 1 {
		err = fmt.Errorf("%d engines live, want 1: %v", len(engines), engines)
	}
	return err
}

// loadsOf counts the engines of a replica that went.
func loadsOf(node *v1alpha1.MacNode, uid string) int {
	return len(fresh(&v1alpha1.MacNode{}, node, uid))
}
