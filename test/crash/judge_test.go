package main

import (
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

func TestEveryPointOfALifeIsACase(t *testing.T) {
	all := cases()
	for _, p := range pool.FaultPoints() {
		if !slices.ContainsFunc(all, func(s step) bool { return s.point == p }) {
			t.Errorf("no case dies at %s", p)
		}
	}
	for _, s := range all {
		if s.loads() != (s.way == deployed || s.way == asked) {
			t.Errorf("%s cannot be", s)
		}
	}
}

func node(total int64, all ...v1alpha1.Reclaim) *v1alpha1.MacNode {
	n := &v1alpha1.MacNode{}
	n.Status.Reclaims, n.Status.Memory.FreedBytesTotal = all, total
	return n
}

func reclaim(id, uid string, load, freed int64) v1alpha1.Reclaim {
	return v1alpha1.Reclaim{ID: id, ReplicaUID: uid, Load: load, FreedBytes: &freed}
}

func TestFreedBytesAreCountedOnce(t *testing.T) {
	old := reclaim("a/1/1", "a", 1, 100)
	for name, test := range map[string]struct {
		now   *v1alpha1.MacNode
		freed int64
		want  string // in the error; empty for none
	}{
		"nothing yet":            {node(100, old), 0, ""},
		"once":                   {node(150, reclaim("a/1/2", "a", 2, 50), old), 50, ""},
		"the total counts twice": {node(200, reclaim("a/1/2", "a", 2, 50), old), 50, "grew by 100"},
		"the total counts not":   {node(100, reclaim("a/1/2", "a", 2, 50), old), 50, "grew by 0"},
		"one load has two":       {node(200, reclaim("a/2/2", "a", 2, 50), reclaim("a/1/2", "a", 2, 50), old), 0, "two reclaims"},
		"of another":             {node(100, reclaim("b/1/1", "b", 1, 0), old), 0, ""},
		"unknown is not counted": {node(100, v1alpha1.Reclaim{ID: "a/1/2", ReplicaUID: "a", Load: 2}, old), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			freed, err := sum(node(100, old), test.now, "a")
			if freed != test.freed || (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%d bytes, error %v", freed, err)
			}
		})
	}
}

func TestFreedBytesAreThoseOfProc(t *testing.T) {
	for freed, ok := range map[int64]bool{0: false, 95: true, 100: true, 105: true, 106: false, 200: false} {
		if err := checkFreed(freed, 100); (err == nil) != ok {
			t.Errorf("%d of 100: %v", freed, err)
		}
	}
	if checkFreed(0, 0) == nil {
		t.Error("nothing was read and that is well")
	}
}

func TestOneEngineIsNeitherNoneNorTwo(t *testing.T) {
	for n := range 3 {
		if err := checkOneEngine(make([]fleet.Engine, n), nil); (err == nil) != (n == 1) {
			t.Errorf("%d: %v", n, err)
		}
	}
}
