//go:build stories

package system

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/agent/pool/failpoint"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// What makes an engine start or end: a model is loaded because it is deployed or
// by a request, and ends because it is deleted or evicted.
const (
	deployed = "deployed"
	asked    = "asked"
	deleted  = "deleted"
	evicted  = "evicted"
)

// crash is one case: the agent dies at a point of agent/pool/failpoint.
type crash struct {
	*world
	mac, model, point, cause string
}

// crashCases are all points of agent/pool/failpoint, each with every cause that passes it.
func crashCases() (all []crash) {
	for _, point := range failpoint.All() {
		causes := []string{deleted, evicted}
		switch {
		case strings.HasPrefix(point, "load/"):
			causes = []string{deployed, asked}
		case point == failpoint.Released: // what is evicted stays assigned
			causes = []string{deleted}
		}
		for _, cause := range causes {
			all = append(all, crash{point: point, cause: cause})
		}
	}
	return all
}

// TestCrash kills the agent at each step of a load and of an unload, as a power
// failure would, and starts it again: the job is completed, no engine is lost and
// none is there twice, freed bytes are counted once, and the ledger is what the
// residents hold. Several Macs take the cases in turn.
func TestCrash(t *testing.T) {
	const macs = 3
	var all []fleet.Mac
	for n := range macs {
		all = append(all, fleet.Mac{Name: fmt.Sprintf("crash-%d", n), Chip: "M2Ultra", Memory: "64Gi"})
	}
	w := together(t, all...)
	cases := crashCases()
	for n, mac := range all {
		t.Run(mac.Name, func(t *testing.T) {
			t.Parallel()
			for i := n; i < len(cases); i += macs {
				c := cases[i]
				c.world, c.mac, c.model = w, mac.Name, fmt.Sprintf("crash-%02d", i)
				// The next case needs the Mac as this one leaves it.
				sequence(t, step{name: c.point + ", " + c.cause, do: c.run})
			}
		})
	}
}

func (c crash) run(t *testing.T) {
	must(t, c.CheckEmpty(t.Context(), c.mac))
	before := c.node(t, c.mac)
	if strings.HasPrefix(c.point, "load/") {
		c.load(t, before)
	} else {
		c.unload(t, before)
	}
	must(t, c.Undeploy(t.Context(), c.model))
	must(t, c.SetCeiling(t.Context(), c.mac, 0))
	c.waitEmpty(t, c.mac)
}

// load has the agent die while it loads and wants one engine that answers.
func (c crash) load(t *testing.T, before *v1alpha1.MacNode) {
	c.restart(t, "METALFLEET_TEST=1", "METALFLEET_TEST_CRASH_AT="+c.point)
	c.create(t)
	if c.cause == asked {
		must(t, c.WaitDeployed(t.Context(), c.model))
		asking, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = c.Rouse(asking, c.model, patience) // it is lost with the agent, or answered by the next one
		}()
		defer func() { stop(); <-done }()
	}
	c.dies(t)
	r := c.rouse(t, c.model)
	must(t, c.CheckLedger(t.Context(), c.mac))
	if pids := c.pids(t, c.mac); len(pids) != 1 {
		t.Errorf("engines %v live, want one", pids)
	}
	now := c.node(t, c.mac)
	if _, err := fleet.Reclaimed(before, now); err != nil {
		t.Error(err)
	}
	t.Logf("after %d reclaims process %d serves", len(now.Status.Reclaims)-len(before.Status.Reclaims), r.Engine.PID)
}

// unload has the agent die while an engine ends and wants its bytes counted once.
func (c crash) unload(t *testing.T, before *v1alpha1.MacNode) {
	c.create(t)
	must(t, c.WaitDeployed(t.Context(), c.model))
	r := c.rouse(t, c.model)
	held := footprint(t, r.Engine)
	c.restart(t, "METALFLEET_TEST=1", "METALFLEET_TEST_CRASH_AT="+c.point)
	if c.cause == evicted {
		must(t, c.SetCeiling(t.Context(), c.mac, held/2))
	} else {
		must(t, c.Client.Delete(t.Context(), fleet.Model{Name: c.model}.Deployment()))
	}
	c.dies(t)
	c.waitMac(t, c.mac, "the engine's bytes are counted once", func(now *v1alpha1.MacNode) error {
		return fleet.CheckReclaims(before, now, map[string]int64{string(r.Replica.UID): held})
	})
	if r.Engine.Alive() {
		t.Errorf("process %d lives", r.Engine.PID)
	}
	if c.cause != evicted {
		return
	}
	freed := c.node(t, c.mac).Status.Memory.FreedBytesTotal - before.Status.Memory.FreedBytesTotal
	eventually(t, "the deployment counts the bytes once", func(ctx context.Context) error {
		md, err := c.read(ctx, fleet.Model{Name: c.model}.Deployment())
		if err == nil && md.Status.FreedBytesTotal != freed {
			err = fmt.Errorf("it counts %d, the Mac %d", md.Status.FreedBytesTotal, freed)
		}
		return err
	})
	must(t, c.SetCeiling(t.Context(), c.mac, 0))
	must(t, c.CheckLedger(t.Context(), c.mac))
	c.rouse(t, c.model)
}

func (c crash) create(t *testing.T) {
	t.Helper()
	c.deploy(t, fleet.Model{Name: c.model, File: "heavy.gguf", Mac: c.mac, OnDemand: c.cause == asked || c.cause == evicted, DrainSeconds: 2})
}

// restart starts the agent again with these variables.
func (c crash) restart(t *testing.T, env ...string) {
	t.Helper()
	must(t, c.Agent(c.mac).Stop(t.Context()))
	must(t, c.Agent(c.mac).SetEnv(env...))
	old := c.node(t, c.mac)
	must(t, c.Agent(c.mac).Start())
	c.waitMac(t, c.mac, "the new agent reports", func(now *v1alpha1.MacNode) error {
		if now.Status.BootID == old.Status.BootID || !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionAccepting) {
			return fmt.Errorf("boot %s, conditions %s", now.Status.BootID, sentences(now.Status.Conditions))
		}
		return nil
	})
}

// dies waits until the agent has killed itself and starts another.
func (c crash) dies(t *testing.T) {
	t.Helper()
	eventually(t, "the agent kills itself", func(context.Context) error {
		pid, err := c.Agent(c.mac).PID()
		if err == nil && pid != 0 {
			err = fmt.Errorf("process %d lives: it did not reach the point", pid)
		}
		return err
	})
	c.restart(t)
}
