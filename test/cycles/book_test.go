package main

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func reclaim(id, uid string, freed int64) v1alpha1.Reclaim {
	r := v1alpha1.Reclaim{ID: id, ReplicaUID: uid, Exit: v1alpha1.ExitClean}
	if freed >= 0 {
		r.FreedBytes = &freed
	}
	return r
}

func mac1(total int64, all ...v1alpha1.Reclaim) *v1alpha1.MacNode {
	n := &v1alpha1.MacNode{}
	n.Status.Reclaims, n.Status.Memory.FreedBytesTotal = all, total
	return n
}

func TestEveryReclaimIsCountedOnceAndAgreesWithProc(t *testing.T) {
	earlier := reclaim("a/1/1", "a", 100)
	crashed := reclaim("a/1/2", "a", 100)
	crashed.Exit = v1alpha1.ExitCrashed
	for name, test := range map[string]struct {
		node *v1alpha1.MacNode
		own  map[string]int64
		want string // in the error; empty for none
	}{
		"one more":               {mac1(204, reclaim("a/1/2", "a", 104), earlier), map[string]int64{"a": 100}, ""},
		"nothing new":            {mac1(100, earlier), map[string]int64{}, ""},
		"none came":              {mac1(100, earlier), map[string]int64{"a": 100}, "0 reclaims"},
		"two came":               {mac1(300, reclaim("a/1/3", "a", 100), reclaim("a/1/2", "a", 100), earlier), map[string]int64{"a": 100}, "2 reclaims"},
		"of another":             {mac1(200, reclaim("b/1/1", "b", 100), earlier), map[string]int64{}, "not loaded"},
		"its bytes are unknown":  {mac1(100, reclaim("a/1/2", "a", -1), earlier), map[string]int64{"a": 100}, "does not know"},
		"too many bytes":         {mac1(206, reclaim("a/1/2", "a", 106), earlier), map[string]int64{"a": 100}, "/proc said 100"},
		"counted twice":          {mac1(300, reclaim("a/1/2", "a", 100), earlier), map[string]int64{"a": 100}, "counts 300"},
		"it did not end orderly": {mac1(200, crashed, earlier), map[string]int64{"a": 100}, "exit Crashed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := book{counted: map[string]bool{earlier.ID: true}, freed: 100}
			err := b.count(test.node, test.own)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestAnAgentMayHoldFivePercentMoreThanWhenItWasEmpty(t *testing.T) {
	for now, ok := range map[int64]bool{50: true, 100: true, 105: true, 106: false} {
		if err := within(now, 100); (err == nil) != ok {
			t.Errorf("%d of 100: %v", now, err)
		}
	}
}
