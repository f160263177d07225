package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	world "metalfleet.dev/metalfleet/test/fleet"
)

// leaderElection is the operator's Lease.
const leaderElection = "metalfleet-operator"

// deploy makes both models and waits until they are whole.
func (c *chaos) deploy(ctx context.Context) error {
	for name, n := range map[string]int32{several: replicas, single: 1} {
		md := world.Model{Name: name, File: "story.gguf", Tokens: modelContext, Sequences: sequences, CacheTokens: modelContext * sequences, SSD: "64Mi"}.Deployment()
		md.Spec.Replicas = ptr.To(n)
		if err := c.Client.Create(ctx, md); err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
	}
	return c.awaitWhole(ctx)
}

// awaitWhole waits until nothing is missing, and nothing is too much, beside
// what a lost Mac holds.
func (c *chaos) awaitWhole(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wholeMost, fmt.Errorf("not within %s", wholeMost))
	defer cancel()
	return world.Poll(ctx, 100*time.Millisecond, "the fleet is whole", c.whole)
}

func (c *chaos) whole(ctx context.Context) error {
	if err := c.Failed(); err != nil {
		return err
	}
	var replicas v1alpha1.ModelReplicaList
	if err := c.Client.List(ctx, &replicas, client.InNamespace("default")); err != nil {
		return err
	}
	if c.lost == "" {
		if err := c.deploymentsWhole(ctx, len(replicas.Items)); err != nil {
			return err
		}
	}
	var errs []error
	for _, name := range c.macs {
		if name == c.lost {
			continue
		}
		errs = append(errs, c.macWhole(ctx, name, replicas.Items))
	}
	return errors.Join(errs...)
}

// deploymentsWhole wants as many replicas as were asked for, each ready.
func (c *chaos) deploymentsWhole(ctx context.Context, living int) error {
	wanted := 0
	for _, name := range []string{several, single} {
		md := &v1alpha1.ModelDeployment{}
		if err := c.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, md); err != nil {
			return err
		}
		n := ptr.Deref(md.Spec.Replicas, 1)
		wanted += int(n)
		if md.Status.ReadyReplicas != n || !meta.IsStatusConditionTrue(md.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("%s has %d of %d replicas ready; conditions %v", name, md.Status.ReadyReplicas, n, md.Status.Conditions)
		}
	}
	if living != wanted {
		return fmt.Errorf("%d replicas are there, want %d", living, wanted)
	}
	return nil
}

// macWhole wants a Mac's ledger to hold what was promised there, an engine for
// each promise, no other engine, and each replica there serving.
func (c *chaos) macWhole(ctx context.Context, name string, replicas []v1alpha1.ModelReplica) error {
	node, err := c.Mac(ctx, name)
	if err != nil {
		return err
	}
	if !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionReady) || !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionAccepting) {
		return fmt.Errorf("%s: conditions %v", name, node.Status.Conditions)
	}
	var promised int64
	for i := range replicas {
		r := &replicas[i]
		if r.Spec.NodeName != name || fleet.Released(r) {
			continue
		}
		promised += r.Spec.ReservedBytes
		if !fleet.ReplicaReady(r) {
			return fmt.Errorf("%s on %s is not ready: %v", r.Name, name, r.Status.Conditions)
		}
	}
	if in := node.Status.Memory.ReservedBytes; in != promised {
		return fmt.Errorf("%s was promised %d bytes for, its ledger says %d", name, promised, in)
	}
	return c.CheckLedger(ctx, name)
}

// watchLoads notes the engines that Macs report, until ctx ends.
func (c *chaos) watchLoads(ctx context.Context) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var macs v1alpha1.MacNodeList
			if err := c.Client.List(ctx, &macs); err == nil { // else the API server is away
				for i := range macs.Items {
					c.loads.look(&macs.Items[i])
					c.booted(&macs.Items[i])
				}
			}
			pause(ctx, 200*time.Millisecond)
		}
	}()
	return done
}

// awaitAnswer waits until a request that was begun after a moment was answered
// whole by a Mac, through a gateway; an empty name is any gateway.
func (c *chaos) awaitAnswer(ctx context.Context, mac, gateway string, after time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerMost, fmt.Errorf("not within %s", answerMost))
	defer cancel()
	return world.Poll(ctx, 50*time.Millisecond, fmt.Sprintf("%s answers through %s", mac, gateway), func(context.Context) error {
		if !c.traffic.answered(mac, gateway, after) {
			return errors.New("it has not")
		}
		return nil
	})
}

// leader is which operator leads, as it last said; empty where nobody says.
func (c *chaos) leader(ctx context.Context) string {
	lease := &coordinationv1.Lease{}
	if err := c.Client.Get(ctx, client.ObjectKey{Namespace: world.Namespace, Name: leaderElection}, lease); err != nil {
		return ""
	}
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// awaitLeader waits until another operator leads than before: a killed one does
// not give its Lease back, and until that is over nobody judges any Mac.
func (c *chaos) awaitLeader(ctx context.Context, before string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wholeMost, fmt.Errorf("not within %s", wholeMost))
	defer cancel()
	return world.Poll(ctx, 100*time.Millisecond, "another operator leads", func(ctx context.Context) error {
		if now := c.leader(ctx); now == "" || now == before {
			return fmt.Errorf("%q does", now)
		}
		return nil
	})
}

// awaitLead waits until an operator has said since a moment that it leads: one that
// could not while the API server was away has begun anew, and waits for its own
// Lease. Until then nobody judges any Mac, and the silence of one begins then.
func (c *chaos) awaitLead(ctx context.Context, since time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wholeMost, fmt.Errorf("not within %s", wholeMost))
	defer cancel()
	return world.Poll(ctx, 100*time.Millisecond, "an operator leads", func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		if err := c.Client.Get(ctx, client.ObjectKey{Namespace: world.Namespace, Name: leaderElection}, lease); err != nil {
			return err
		}
		return leads(lease, since)
	})
}

// leads wants a Lease to be held by somebody who said so since a moment.
func leads(lease *coordinationv1.Lease, since time.Time) error {
	if holder, renewed := ptr.Deref(lease.Spec.HolderIdentity, ""), lease.Spec.RenewTime; holder == "" || renewed == nil || !renewed.After(since) {
		return fmt.Errorf("%q said so at %v, want it after %v", holder, renewed, since)
	}
	return nil
}

// awaitEngine waits until a replica has another engine than it had, or is gone.
func (c *chaos) awaitEngine(ctx context.Context, mac string, before v1alpha1.AssignmentStatus) error {
	return c.WaitMac(ctx, mac, "another engine runs on "+mac, wholeMost, func(node *v1alpha1.MacNode) error {
		for _, a := range node.Status.Assignments {
			if a.ReplicaUID == before.ReplicaUID && (a.PID == 0 || a.PID == before.PID) {
				return fmt.Errorf("its process is %d, was %d", a.PID, before.PID)
			}
		}
		return nil
	})
}

// awaitBoot waits until a Mac's agent reports as another start of it.
func (c *chaos) awaitBoot(ctx context.Context, mac, before string) error {
	return c.WaitMac(ctx, mac, "the agent of "+mac+" reports", wholeMost, func(node *v1alpha1.MacNode) error {
		if node.Status.BootID == before || !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionAccepting) {
			return fmt.Errorf("boot %s, conditions %v", node.Status.BootID, node.Status.Conditions)
		}
		return nil
	})
}
