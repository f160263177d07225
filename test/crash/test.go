package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// test is one case on the Mac, which is empty before and after.
type test struct {
	*fleet.Fleet
	step
	model string
	said  string // what is worth printing beside the verdict
}

func (t *test) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 4*patience, errors.New("the case takes too long"))
	defer cancel()
	if err := t.CheckEmpty(ctx, mac); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	before, err := t.Mac(ctx, mac)
	if err != nil {
		return err
	}
	if t.loads() {
		err = t.load(ctx, before)
	} else {
		err = t.unload(ctx, before)
	}
	if err != nil {
		return err
	}
	return t.emptyAgain(ctx)
}

// load kills the agent while it loads and wants one engine that answers.
func (t *test) load(ctx context.Context, before *v1alpha1.MacNode) error {
	if err := t.restart(ctx, t.point); err != nil {
		return err
	}
	if err := t.create(ctx); err != nil {
		return err
	}
	asking, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	if t.onDemand() {
		if err := t.WaitDeployed(ctx, t.model); err != nil {
			return err
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = t.Rouse(asking, t.model, patience) // it is lost with the agent, or answered by the next one
		}()
		defer func() { stopAsking(); <-done }()
	}
	if err := t.diesAndReturns(ctx); err != nil {
		return err
	}
	r, err := t.Rouse(ctx, t.model, patience)
	if err != nil {
		return err
	}
	now, err := t.Mac(ctx, mac)
	if err != nil {
		return err
	}
	if err := errors.Join(t.CheckLedger(ctx, mac), checkOneEngine(t.MacEngines(mac))); err != nil {
		return err
	}
	if _, err := sum(before, now, string(r.Replica.UID)); err != nil {
		return err
	}
	t.said = fmt.Sprintf("; load %d serves as process %d", loadsOf(now, r.Report.ReplicaUID)+1, r.Engine.PID)
	return nil
}

// unload kills the agent while an engine goes and wants its bytes counted once.
func (t *test) unload(ctx context.Context, before *v1alpha1.MacNode) error {
	if err := t.create(ctx); err != nil {
		return err
	}
	if err := t.WaitDeployed(ctx, t.model); err != nil {
		return err
	}
	r, err := t.Rouse(ctx, t.model, patience)
	if err != nil {
		return err
	}
	own, err := fleet.Footprint(r.Engine.PID)
	if err != nil {
		return err
	}
	if err := t.restart(ctx, t.point); err != nil {
		return err
	}
	if t.way == evicted {
		err = t.SetCeiling(ctx, mac, own/2)
	} else {
		err = t.Client.Delete(ctx, fleet.Model{Name: t.model}.Deployment())
	}
	if err != nil {
		return err
	}
	if err := t.diesAndReturns(ctx); err != nil {
		return err
	}
	var freed int64
	err = t.WaitMac(ctx, mac, "the engine's bytes are counted once", patience, func(now *v1alpha1.MacNode) error {
		if freed, err = sum(before, now, string(r.Replica.UID)); err != nil {
			return err
		}
		return checkFreed(freed, own)
	})
	if err != nil {
		return err
	}
	if r.Engine.Alive() {
		return fmt.Errorf("process %d lives", r.Engine.PID)
	}
	t.said = fmt.Sprintf("; freed %.2f MB, /proc said %.2f", float64(freed)/1e6, float64(own)/1e6)
	if t.way == evicted {
		return t.deploymentCounts(ctx, freed)
	}
	return nil
}

// deploymentCounts wants the same figure on the deployment, raises the ceiling
// and wants the model to return.
func (t *test) deploymentCounts(ctx context.Context, freed int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	err := fleet.Poll(ctx, 50*time.Millisecond, "the deployment counts it once", func(ctx context.Context) error {
		md := &v1alpha1.ModelDeployment{}
		if err := t.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: t.model}, md); err != nil {
			return err
		}
		if md.Status.FreedBytesTotal != freed {
			return fmt.Errorf("it says %d, the Mac %d", md.Status.FreedBytesTotal, freed)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := errors.Join(t.SetCeiling(ctx, mac, 0), t.CheckLedger(ctx, mac)); err != nil {
		return err
	}
	_, err = t.Rouse(ctx, t.model, patience)
	return err
}

// create makes the model's deployment.
func (t *test) create(ctx context.Context) error {
	md := fleet.Model{Name: t.model, File: "model.gguf", OnDemand: t.onDemand(), DrainSeconds: 2}.Deployment()
	if err := t.Client.Create(ctx, md); err != nil {
		return fmt.Errorf("create %s: %w", t.model, err)
	}
	return nil
}

// restart starts the agent anew, to die at a point; none means never.
func (t *test) restart(ctx context.Context, point string) error {
	if err := t.StopAgent(ctx, mac); err != nil {
		return err
	}
	env := []string{"METALFLEET_TEST=1", "METALFLEET_TEST_CRASH_AT=" + point}
	if point == "" {
		env = nil
	}
	if err := t.SetAgentEnv(mac, env...); err != nil {
		return err
	}
	old, err := t.Mac(ctx, mac)
	if err != nil {
		return err
	}
	if err := t.StartAgent(mac); err != nil {
		return err
	}
	return t.WaitMac(ctx, mac, "the new agent reports", patience, func(now *v1alpha1.MacNode) error {
		if now.Status.BootID == old.Status.BootID || !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionAccepting) {
			return fmt.Errorf("boot %s, conditions %v", now.Status.BootID, now.Status.Conditions)
		}
		return nil
	})
}

// diesAndReturns waits until the agent has killed itself and starts another.
func (t *test) diesAndReturns(ctx context.Context) error {
	dying, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	err := fleet.Poll(dying, 10*time.Millisecond, "the agent kills itself", func(context.Context) error {
		pid, err := t.AgentPID(mac)
		if err == nil && pid != 0 {
			err = fmt.Errorf("process %d lives: it never came to the point", pid)
		}
		return err
	})
	if err != nil {
		return err
	}
	return t.restart(ctx, "")
}

// emptyAgain deletes the model, takes the ceiling back and wants nothing left.
func (t *test) emptyAgain(ctx context.Context) error {
	if err := errors.Join(t.Undeploy(ctx, t.model), t.SetCeiling(ctx, mac, 0)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return fleet.Poll(ctx, 20*time.Millisecond, "nothing is left", func(ctx context.Context) error { return t.CheckEmpty(ctx, mac) })
}
