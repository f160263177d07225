//go:build !race

package v1alpha1

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestSurgeAndUnavailableAreResolvedAsOfADeployment: a surge rounds up, what may
// be missing rounds down, and both at zero would never replace anything.
func TestSurgeAndUnavailableAreResolvedAsOfADeployment(t *testing.T) {
	of := func(text string) *intstr.IntOrString {
		if text == "" {
			return nil
		}
		v := intstr.Parse(text)
		return &v
	}
	for _, tc := range []struct {
		maxSurge, maxUnavailable string
		wanted                   int
		surge, unavailable       int
	}{
		{wanted: 3, surge: 1, unavailable: 0},
		{maxSurge: "0", maxUnavailable: "1", wanted: 3, surge: 0, unavailable: 1},
		{maxSurge: "2", maxUnavailable: "2", wanted: 3, surge: 2, unavailable: 2},
		{maxSurge: "25%", maxUnavailable: "25%", wanted: 4, surge: 1, unavailable: 1},
		{maxSurge: "25%", maxUnavailable: "25%", wanted: 5, surge: 2, unavailable: 1},
		{maxSurge: "25%", maxUnavailable: "25%", wanted: 1, surge: 1, unavailable: 0},
		{maxSurge: "0%", maxUnavailable: "25%", wanted: 3, surge: 0, unavailable: 1},
		{maxSurge: "0", maxUnavailable: "10%", wanted: 5, surge: 0, unavailable: 1},
		{maxSurge: "100%", maxUnavailable: "0", wanted: 7, surge: 7, unavailable: 0},
		{maxSurge: "250%", maxUnavailable: "100%", wanted: 2, surge: 5, unavailable: 2},
		{maxSurge: "10%", maxUnavailable: "10%", wanted: 0, surge: 0, unavailable: 1},
		{maxSurge: "what", maxUnavailable: "-3", wanted: 2, surge: 1, unavailable: 0},
	} {
		surge, unavailable := RolloutSpec{MaxSurge: of(tc.maxSurge), MaxUnavailable: of(tc.maxUnavailable)}.Bounds(tc.wanted)
		if surge != tc.surge || unavailable != tc.unavailable {
			t.Errorf("%q and %q of %d: %d and %d, want %d and %d", tc.maxSurge, tc.maxUnavailable, tc.wanted, surge, unavailable, tc.surge, tc.unavailable)
		}
	}
}
