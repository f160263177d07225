package agent

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/agent/power"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// TestAMacSaysThatItGoesAndThatItIsBack before the sleep begins, at once, and
// with the last word where the agent is ended in the course of a shutdown.
func TestAMacSaysThatItGoesAndThatItIsBack(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	m.giveIdentity()
	notices := make(chan power.Notice)
	m.power = func(ctx context.Context, notify func(power.Notice)) error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case n := <-notices:
				notify(n)
			}
		}
	}
	m.boot()
	said := func(want string) {
		t.Helper()
		poll(t, func() error {
			m.reports.mu.Lock()
			defer m.reports.mu.Unlock()
			if m.reports.said == nil {
				return fmt.Errorf("nothing was written at once")
			}
			c := meta.FindStatusCondition(m.reports.said.Conditions, v1alpha1.ConditionAccepting)
			if c == nil || c.Reason != want || (c.Status == "True") != (want == v1alpha1.ReasonAccepted) {
				return fmt.Errorf("%+v, want %s", c, want)
			}
			return nil
		})
	}
	notices <- power.Wakes // it never went
	notices <- power.Sleeps
	said(v1alpha1.ReasonMacSleeps)
	if a := m.agent.accepting.get(); a.yes {
		t.Error("it takes requests while it falls asleep")
	}
	notices <- power.Wakes
	said(v1alpha1.ReasonAccepted)
	notices <- power.ShutsDown
	said(v1alpha1.ReasonMacShutsDown)
	m.halt()
	said(v1alpha1.ReasonMacShutsDown)
}
