//go:build !race

package placement

import (
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/bench/scenario/boundtest"
)

func TestEachKindOfPassPlacesWhatItHasTo(t *testing.T) {
	f := newFleet(1)
	if v, err := f.fill(t.Context()); err != nil || v["took"] <= 0 {
		t.Fatal(v, err)
	}
	for _, k := range kinds(f) {
		if n := f.pass(k.unplaced, func(*v1alpha1.ModelReplica, string) {}); n != k.placed {
			t.Errorf("%s: %d were placed, want %d", k.name, n, k.placed)
		}
	}
}

func TestBoundsOfPlacement(t *testing.T) {
	boundtest.Check(t, passFigures("x"), boundtest.Values{"x/p99": {49, 90, 49}}, map[string]boundtest.Values{"x: p99": {"x/p99": {50, 50, 1}}})
	boundtest.Check(t, readyFigures, nil, map[string]boundtest.Values{"median 1600 ms of 800 to 1900, want at most 1500": {"apply/ready": {900, 1600, 1700, 800, 1900}}})
}
