//go:build stories

package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	controllers "metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/test/fleet"
)

// heal ends a fault.
type heal func(context.Context) error

// inject makes a fault happen, and returns to whom. If there is none that it could
// happen to, heal is nil.
func (c *chaos) inject(ctx context.Context, f fault) (heal, string, error) {
	switch f.kind {
	case operatorKilled:
		before := c.leader(ctx)
		return c.killed("the operator", f.kind, c.Operator.Kill, func(ctx context.Context) error {
			return errors.Join(c.Operator.Start(ctx), c.await(ctx, "another operator leads", func(ctx context.Context) error {
				if now := c.leader(ctx); now == "" || now == before { // a killed one does not release its Lease
					return fmt.Errorf("%q leads", now)
				}
				return nil
			}))
		})
	case serverKilled:
		return c.killed("", f.kind, c.Env.KillAPIServer, func(ctx context.Context) error {
			if err := c.Env.StartAPIServer(ctx); err != nil {
				return err
			}
			return c.awaitLead(ctx, time.Now())
		})
	case gatewayKilled:
		who := c.choose([]string{c.gateways[0].Name, c.gateways[1].Name}, f.target)
		for _, g := range c.gateways {
			if g.Name == who {
				return c.killed(who, f.kind, g.Kill, g.Start)
			}
		}
		return nil, "", nil
	}
	serving, err := c.serving()
	mac := c.choose(serving, f.target)
	if err != nil || mac == "" {
		return nil, "", err
	}
	switch f.kind {
	case agentKilled:
		boot := c.bootOf(mac)
		return c.killed(mac, f.kind, func() error { return c.Agent(mac).Kill() }, func(ctx context.Context) error {
			return errors.Join(c.Agent(mac).Start(), c.awaitBoot(ctx, mac, boot))
		})
	case engineKilled:
		return c.killEngine(ctx, mac, f)
	case linkCut:
		return c.cut(ctx, mac, f)
	case diskFull:
		return c.fill(mac)
	default:
		return c.skew(mac, f)
	}
}

// killed is a program that is killed and started again.
func (c *chaos) killed(who string, k kind, kill func() error, start heal) (heal, string, error) {
	back := c.gone(k, who)
	if err := kill(); err != nil {
		return nil, who, err
	}
	return func(ctx context.Context) error {
		defer back()
		return start(ctx)
	}, who, nil
}

// serving are the Macs with an engine.
func (c *chaos) serving() (out []string, err error) {
	for _, m := range c.machines {
		engines, err := c.Agent(m.Name).Engines()
		if err != nil {
			return nil, err
		}
		if len(engines) > 0 && m != c.lost {
			out = append(out, m.Name)
		}
	}
	return out, nil
}

// killEngine kills one of a Mac; its agent restarts it.
func (c *chaos) killEngine(ctx context.Context, mac string, f fault) (heal, string, error) {
	engines, err := c.Agent(mac).Engines()
	if err != nil || len(engines) == 0 {
		return nil, mac, err
	}
	e := engines[f.target%len(engines)]
	node, err := c.Mac(ctx, mac)
	if err != nil {
		return nil, "", nil // the API server is away: whose engine it is cannot be known
	}
	i := slices.IndexFunc(node.Status.Assignments, func(a v1alpha1.AssignmentStatus) bool { return a.PID == int64(e.PID) })
	if i < 0 {
		return nil, mac, nil // it was started just now
	}
	before := node.Status.Assignments[i]
	c.mu.Lock()
	c.loads.see(node)
	c.loads.killed[before.ReplicaUID]++
	c.mu.Unlock()
	back := c.gone(f.kind, mac)
	return func(ctx context.Context) error {
		defer back()
		return c.WaitMac(ctx, mac, "another engine runs on "+mac, patience, func(node *v1alpha1.MacNode) error {
			for _, a := range node.Status.Assignments {
				if a.ReplicaUID == before.ReplicaUID && (a.PID == 0 || a.PID == before.PID) {
					return fmt.Errorf("its process is %d, was %d", a.PID, before.PID)
				}
			}
			return nil
		})
	}, mac, e.Kill()
}

// cut takes a Mac's link down, or has its packets vanish, and measures when the
// gateways stop to pick it.
func (c *chaos) cut(ctx context.Context, mac string, f fault) (heal, string, error) {
	m := c.machine(mac)
	how, mend, who := m.Cut, m.Mend, mac+" unplugged"
	if f.target%2 == 0 {
		how, mend, who = m.Vanish, m.Reappear, mac+" unheard"
	}
	picking := c.picking(ctx, mac)
	back := c.gone(f.kind, mac)
	at := time.Now()
	if err := how(ctx); err != nil {
		return nil, mac, err
	}
	measured := make(chan error, 1)
	go func() { measured <- c.awaitPicks(ctx, picking, mac, at) }()
	return func(ctx context.Context) error {
		defer back()
		return errors.Join(<-measured, mend(ctx))
	}, who, nil
}

// picking are the gateways that pick a Mac now: through each it answers a request
// of now. One that suspects it still does not pick it anyway.
func (c *chaos) picking(ctx context.Context, mac string) (out []*fleet.Gateway) {
	now := time.Now()
	for _, g := range c.gateways {
		if !c.isDown(g.Name) && c.awaitAnswer(ctx, mac, g.Name, now) == nil {
			out = append(out, g)
		}
	}
	return out
}

// awaitPicks notes how long each of the gateways took to stop picking a Mac.
func (c *chaos) awaitPicks(ctx context.Context, gateways []*fleet.Gateway, mac string, cut time.Time) error {
	for _, g := range gateways {
		err := c.await(ctx, fmt.Sprintf("%s does not pick %s", g.Name, mac), func(context.Context) error {
			log, err := g.Log()
			if err != nil {
				return err
			}
			at, found := leftPicks(log, mac, cut)
			if !found && !c.isDown(g.Name) {
				return errNotYet
			}
			if found {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.picks = append(c.picks, at.Sub(cut))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fill takes all that is left of a Mac's disk.
func (c *chaos) fill(mac string) (heal, string, error) {
	back := c.gone(diskFull, mac)
	file, err := os.Create(filepath.Join(c.Dir(), mac, "ballast"))
	if err != nil {
		return nil, mac, err
	}
	block := make([]byte, 1<<16)
	for size := len(block); size > 0; {
		if _, err := file.Write(block[:size]); err != nil {
			size /= 2 // until not one byte more fits
		}
	}
	return func(context.Context) error {
		defer back()
		return errors.Join(file.Close(), os.Remove(file.Name()))
	}, mac, nil
}

// skew restarts a Mac's agent with a clock that is wrong, and once it has answered
// so, with the right one.
func (c *chaos) skew(mac string, f fault) (heal, string, error) {
	back, boot := c.gone(clockOff, mac), c.bootOf(mac)
	who := mac + []string{" +10m", " -10m"}[f.target%2]
	if err := c.exchange(mac, c.skewed[f.target%2]); err != nil {
		return nil, who, err
	}
	began := time.Now()
	return func(ctx context.Context) error {
		defer back()
		if err := errors.Join(c.awaitAnswer(ctx, mac, "", began), c.awaitBoot(ctx, mac, boot)); err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
		wrong := c.bootOf(mac)
		return errors.Join(c.exchange(mac, ""), c.awaitBoot(ctx, mac, wrong))
	}, who, nil
}

func (c *chaos) exchange(mac, program string) error {
	if err := c.Agent(mac).Kill(); err != nil {
		return err
	}
	return errors.Join(c.Agent(mac).SetProgram(program), c.Agent(mac).Start())
}

// await waits until ask returns nil.
func (c *chaos) await(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return fleet.Poll(ctx, 100*time.Millisecond, what, ask)
}

// awaitAnswer waits until a request that began after a moment was answered by a
// Mac, through a gateway or, with an empty name, any.
func (c *chaos) awaitAnswer(ctx context.Context, mac, gateway string, after time.Time) error {
	return c.await(ctx, fmt.Sprintf("%s answers through %s", mac, gateway), func(context.Context) error {
		if !c.load.Answered(mac, gateway, after) {
			return errNotYet
		}
		return nil
	})
}

// awaitBoot waits until a Mac's agent reports as another start of it.
func (c *chaos) awaitBoot(ctx context.Context, mac, before string) error {
	return c.WaitMac(ctx, mac, "the agent of "+mac+" reports", patience, func(node *v1alpha1.MacNode) error {
		if node.Status.BootID == before || !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionAccepting) {
			return fmt.Errorf("boot %s, conditions %s", node.Status.BootID, sentences(node.Status.Conditions))
		}
		return nil
	})
}

// lease reads the operator's Lease.
func (c *chaos) lease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	return lease, c.Client.Get(ctx, client.ObjectKey{Namespace: fleet.Namespace, Name: "metalfleet-operator"}, lease)
}

// leader is the operator that holds the Lease; empty if that cannot be read.
func (c *chaos) leader(ctx context.Context) string {
	lease, err := c.lease(ctx)
	if err != nil {
		return ""
	}
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// awaitLead waits until an operator has renewed its Lease since a moment: one that
// could not while the API server was away has restarted, and waits for its own
// Lease. Until then no Mac is judged, and the silence of one begins then.
func (c *chaos) awaitLead(ctx context.Context, since time.Time) error {
	return c.await(ctx, "an operator leads", func(ctx context.Context) error {
		lease, err := c.lease(ctx)
		if err != nil {
			return err
		}
		return leads(lease, since)
	})
}

// leads wants a Lease to have a holder that renewed it since a moment.
func leads(lease *coordinationv1.Lease, since time.Time) error {
	if holder, renewed := ptr.Deref(lease.Spec.HolderIdentity, ""), lease.Spec.RenewTime; holder == "" || renewed == nil || !renewed.After(since) {
		return fmt.Errorf("%q renewed it at %v, want it after %v", holder, renewed, since)
	}
	return nil
}

// watch notes the engines and boots that Macs report, until ctx ends.
func (c *chaos) watch(ctx context.Context) {
	for ctx.Err() == nil {
		var macs v1alpha1.MacNodeList
		if err := c.Client.List(ctx, &macs); err == nil { // else the API server is away
			c.mu.Lock()
			for i := range macs.Items {
				c.loads.see(&macs.Items[i])
				c.boots[macs.Items[i].Name] = macs.Items[i].Status.BootID
			}
			c.mu.Unlock()
		}
		lasts(ctx, 200*time.Millisecond)
	}
}

func (c *chaos) bootOf(mac string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boots[mac]
}

// awaitWhole waits until nothing is missing and nothing is too much, except what a
// lost Mac holds.
func (c *chaos) awaitWhole(ctx context.Context) error {
	return c.await(ctx, "the fleet is whole", c.whole)
}

func (c *chaos) whole(ctx context.Context) error {
	if err := c.Failed(); err != nil {
		return err
	}
	var replicas v1alpha1.ModelReplicaList
	if err := c.Client.List(ctx, &replicas, client.InNamespace("default")); err != nil {
		return err
	}
	if c.lost == nil {
		if err := c.deploymentsWhole(ctx, len(replicas.Items)); err != nil {
			return err
		}
	}
	var errs []error
	for _, m := range c.machines {
		if m != c.lost {
			errs = append(errs, c.macWhole(ctx, m.Name, replicas.Items))
		}
	}
	return errors.Join(errs...)
}

// deploymentsWhole wants as many replicas as were asked for, each ready.
func (c *chaos) deploymentsWhole(ctx context.Context, living int) error {
	wanted := 0
	for _, d := range c.deployments {
		md, err := c.read(ctx, d)
		if err != nil {
			return err
		}
		n := ptr.Deref(md.Spec.Replicas, 1)
		wanted += int(n)
		if md.Status.ReadyReplicas != n || !meta.IsStatusConditionTrue(md.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("%s has %d of %d replicas ready; %s", md.Name, md.Status.ReadyReplicas, n, sentences(md.Status.Conditions))
		}
	}
	if living != wanted {
		return fmt.Errorf("there are %d replicas, want %d", living, wanted)
	}
	return nil
}

// macWhole wants a Mac's ledger to hold what was promised there, an engine for each
// promise, no other engine, and each replica there to serve.
func (c *chaos) macWhole(ctx context.Context, name string, replicas []v1alpha1.ModelReplica) error {
	node, err := c.Mac(ctx, name)
	if err != nil {
		return err
	}
	if !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionReady) || !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionAccepting) {
		return fmt.Errorf("%s: conditions %s", name, sentences(node.Status.Conditions))
	}
	var promised int64
	for i := range replicas {
		r := &replicas[i]
		if r.Spec.NodeName != name || controllers.Released(r) {
			continue
		}
		promised += r.Spec.ReservedBytes
		if !controllers.ReplicaReady(r) {
			return fmt.Errorf("%s on %s is not ready: %s", r.Name, name, sentences(r.Status.Conditions))
		}
	}
	if in := node.Status.Memory.ReservedBytes; in != promised {
		return fmt.Errorf("%d bytes are promised on %s, its ledger has %d", promised, name, in)
	}
	return c.CheckLedger(ctx, name)
}

// TestAnOperatorLeadsOnlyWhileItRenews: an expired Lease still names its holder.
func TestAnOperatorLeadsOnlyWhileItRenews(t *testing.T) {
	since := time.Now()
	lease := func(holder string, at time.Time) *coordinationv1.Lease {
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: at}}}
	}
	for name, c := range map[string]struct {
		lease *coordinationv1.Lease
		leads bool
	}{
		"renewed since":     {lease: lease("one", since.Add(time.Millisecond)), leads: true},
		"renewed before":    {lease: lease("one", since.Add(-time.Second))},
		"released":          {lease: lease("", since.Add(time.Second))},
		"never held":        {lease: &coordinationv1.Lease{}},
		"renewed just then": {lease: lease("one", since)},
	} {
		if err := leads(c.lease, since); (err == nil) != c.leads {
			t.Errorf("%s: %v", name, err)
		}
	}
}
