package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	world "metalfleet.dev/metalfleet/test/fleet"
)

// lose cuts the link of the Mac with the only replica of a model, for good. What
// else the schedule has goes on meanwhile.
func (c *chaos) lose(ctx context.Context, f fault) error {
	replica, err := c.Replica(ctx, single)
	if err != nil {
		return err
	}
	mac := replica.Spec.NodeName
	picking := c.picking(ctx, mac)
	c.lost, c.served = mac, make(chan error, 1)
	at := time.Now()
	c.back = c.gone(f.kind, mac)
	if err := vanish(ctx, c.links[mac]); err != nil {
		return err
	}
	fmt.Printf("   %6.1f s  %-34s %-14s the only one with %s\n", at.Sub(c.began).Seconds(), f, mac, single)
	go func() {
		c.served <- errors.Join(c.leavesPicks(ctx, picking, mac, at), c.awaitElsewhere(ctx, mac, at))
	}()
	pause(ctx, quiet)
	return nil
}

// awaitElsewhere waits until every replica is ready on other Macs, and notes how
// long that took.
func (c *chaos) awaitElsewhere(ctx context.Context, mac string, at time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Duration(elsewhereMost)*time.Second, errors.New("it took more than twice what is stated"))
	defer cancel()
	return world.Poll(ctx, 100*time.Millisecond, "what "+mac+" served is served elsewhere", func(ctx context.Context) error {
		var list v1alpha1.ModelReplicaList
		if err := c.Client.List(ctx, &list, client.InNamespace("default"), client.MatchingLabels{v1alpha1.LabelDeployment: single}); err != nil {
			return err
		}
		for i := range list.Items {
			if r := &list.Items[i]; fleet.ReplicaReady(r) && r.Spec.NodeName != mac {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.elsewhere = append(c.elsewhere, time.Since(at).Seconds())
				return nil
			}
		}
		return fmt.Errorf("%d replicas, none is ready elsewhere", len(list.Items))
	})
}

// returnLost waits until the lost Mac's models are elsewhere, gives it its link
// back, and wants it to hold nothing any more that is held elsewhere.
func (c *chaos) returnLost(ctx context.Context) error {
	if c.lost == "" {
		return nil
	}
	if err := <-c.served; err != nil {
		return err
	}
	mac := c.lost
	if err := reappear(ctx, c.links[mac]); err != nil {
		return err
	}
	healed := time.Now()
	c.back()
	c.lost = ""
	if err := c.awaitWhole(ctx); err != nil {
		return fmt.Errorf("after %s came back: %w", mac, err)
	}
	took := time.Since(healed)
	c.took[macLost] = append(c.took[macLost], took.Seconds())
	fmt.Printf("   %6.1f s  %-34s %-14s whole again %4.1f s after its return; %s was elsewhere after %.1f s\n",
		healed.Sub(c.began).Seconds(), macLost, mac, took.Seconds(), single, c.elsewhere[len(c.elsewhere)-1])
	pause(ctx, quiet)
	return ctx.Err()
}
