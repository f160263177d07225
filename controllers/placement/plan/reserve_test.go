//go:build !race

package plan

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestResidenciesThatChangeInOnePass: each counts with those before it, and their memory is available
// to others only when the change is written.
func TestResidenciesThatChangeInOnePass(t *testing.T) {
	to := v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand}
	replicas := []v1alpha1.ModelReplica{replica("a", 10*gib, on("m")), replica("b", 10*gib, on("m")), replica("c", 8*gib, on("m"), onDemand)}
	for text, want := range map[string]string{
		"onDemandOvercommitPercent: 180": "", // 18 of 1.8 x 10, 28 of 1.8 x 20
		"onDemandOvercommitPercent: 170": "m is at the limit of onDemandOvercommitPercent; delete",
		"default: {replicasPerMac: 64}":  "",
	} {
		s := NewSnapshot([]v1alpha1.MacNode{mac("m", 20*gib)}, replicas, now).Under(rules(t, text))
		for i := range 2 {
			if why := s.ChangeResidency(&replicas[i], to); !strings.HasPrefix(why, want) || (why == "") != (want == "") {
				t.Errorf("%q: %s: %q, want %q", text, replicas[i].Name, why, want)
			}
		}
		next := replica("d", 5*gib)
		if d := s.Pick(&next); d.Reason != v1alpha1.ReasonNoRoom {
			t.Errorf("%q: %s, %s", text, d.Reason, d.Message)
		}
	}
	s := NewSnapshot(nil, replicas, now)
	if why := s.ChangeResidency(&replicas[0], to); why != "MacNode m does not exist" {
		t.Errorf("without the Mac: %q", why)
	}
}
