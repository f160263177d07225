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
		{"", "", 3, 1, 0},
		{"0", "1", 3, 0, 1},
		{"2", "2", 3, 2, 2},
		{"25%", "25%", 4, 1, 1},
		{"25%", "25%", 5, 2, 1},
		{"25%", "25%", 1, 1, 0},
		{"0%", "25%", 3, 0, 1},
		{"0", "10%", 5, 0, 1},
		{"100%", "0", 7, 7, 0},
		{"250%", "100%", 2, 5, 2},
		{"10%", "10%", 0, 0, 1},
		{"what", "-3", 2, 1, 0},
	} {
		surge, unavailable := RolloutSpec{MaxSurge: of(tc.maxSurge), MaxUnavailable: of(tc.maxUnavailable)}.Bounds(tc.wanted)
		if surge != tc.surge || unavailable != tc.unavailable {
			t.Errorf("%q and %q of %d: %d and %d, want %d and %d", tc.maxSurge, tc.maxUnavailable, tc.wanted, surge, unavailable, tc.surge, tc.unavailable)
		}
	}
}
