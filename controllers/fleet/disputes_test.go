//go:build !race

package fleet

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// TestASourceThatDiffersEachTimeIsAskedForByFewMacs: its server returns another model to each Mac, also
// after some could not reach it. Each Mac would inspect it, and again after each edit of the deployment.
func TestASourceThatDiffersEachTimeIsAskedForByFewMacs(t *testing.T) {
	const most = mostDisputing + keptUnable + askedInTurns
	for name, unreachable := range map[string]int{"all reach it": 0, "the first ones do not": keptUnable} {
		t.Run(name, func(t *testing.T) {
			d, macs := deployment("d", "hf://evil/model", time.Hour), readyFleet(60)
			d.UID = "d"
			now := time.Unix(1_800_000_000, 0)
			s := &Inspectors{Now: func() time.Time { return now }}
			reports, failures := 0, 0
			for range 20 {
				for changed := true; changed; {
					changed = false
					for _, mac := range s.Asked(&d, macs) {
						if inspectionOf(mac, InspectionID(&d)) != nil {
							continue
						}
						report := resolvedAs(&d, fleettest.Model(d.Spec.Model.Source, mac.Name, 1<<30))
						if failures < unreachable {
							report = failedWith(&d, v1alpha1.ReasonSourceUnreachable)
							failures++
						}
						mac.Status.Inspections = []v1alpha1.InspectionStatus{report}
						written(mac)
						reports, changed = reports+1, true
					}
				}
				now = now.Add(roundTime)
			}
			if reports > most {
				t.Errorf("%d of 60 Macs inspected it, want at most %d", reports, most)
			}
			f := s.Inspect(&d, macs, nil)
			if f.Refusal == nil || f.Refusal.Reason != v1alpha1.ReasonSourceDisputed {
				t.Errorf("%+v, want %s", f, v1alpha1.ReasonSourceDisputed)
			}
		})
	}
}
