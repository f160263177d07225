package agent

import (
	"testing"

	"metalfleet.dev/metalfleet/agent/power"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// A Mac that wakes up takes requests only if its agent does.
func TestAWakeUpDoesNotOverruleTheAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		yes, replaced bool
		asleep        func(*availability) // what the agent decides while the Mac sleeps
		want          string
	}{
		"it serves":                     {yes: true, want: v1alpha1.ReasonAccepted},
		"it is on trial":                {replaced: true, want: v1alpha1.ReasonAgentUpgrading},
		"it stops":                      {want: v1alpha1.ReasonShuttingDown},
		"it begins to stop meanwhile":   {yes: true, asleep: func(v *availability) { v.set(false, false) }, want: v1alpha1.ReasonShuttingDown},
		"its trial succeeds meanwhile":  {replaced: true, asleep: func(v *availability) { v.set(true, false) }, want: v1alpha1.ReasonAccepted},
		"it is announced a second time": {yes: true, asleep: func(v *availability) { v.follow(power.ShutsDown) }, want: v1alpha1.ReasonAccepted},
	} {
		var v availability
		v.set(tc.yes, tc.replaced)
		v.follow(power.Sleeps)
		if tc.asleep != nil {
			tc.asleep(&v)
		}
		if a := v.get(); a.yes || a.leaves == "" {
			t.Errorf("%s: while it sleeps: %+v", name, a)
		}
		v.follow(power.Wakes)
		if a := v.get(); a.condition().Reason != tc.want || a.yes != (tc.want == v1alpha1.ReasonAccepted) {
			t.Errorf("%s: awake again: %+v, want %s", name, a, tc.want)
		}
	}
}
