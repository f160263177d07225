package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/drain"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

// macCommand changes one Mac: what it accepts, its settings and its caches.
type macCommand struct{ *app }

func (a macCommand) cordon() *cobra.Command {
	return a.schedulable("cordon MAC", "Keep new replicas away from a Mac", "Sets spec.unschedulable of the MacNode: placement assigns no new replicas to the Mac. Its current\nreplicas stay.",
		"  kubectl metalfleet cordon mac-mini-2", true)
}

func (a macCommand) uncordon() *cobra.Command {
	return a.schedulable("uncordon MAC", "Allow new replicas on a Mac again", "Clears spec.unschedulable of the MacNode. Replicas that have moved to other Macs stay there.",
		"  kubectl metalfleet uncordon mac-mini-2", false)
}

func (a macCommand) schedulable(use, short, long, example string, cordoned bool) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: exactly(1, "one MAC"), ValidArgsFunction: a.complete(macNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			return a.setCordoned(cmd.Context(), c, args[0], cordoned)
		}}
}

// setCordoned writes spec.unschedulable and prints the result.
func (a macCommand) setCordoned(ctx context.Context, c *cluster, name string, cordoned bool) error {
	mac, err := a.mac(ctx, c, name)
	if err != nil {
		return err
	}
	word := map[bool]string{true: "cordoned", false: "uncordoned"}[cordoned]
	if mac.Spec.Unschedulable == cordoned {
		fmt.Fprintf(a.Out, "Mac %s is already %s\n", name, word)
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": cordoned}})
	if err != nil {
		return err
	}
	if err := c.Patch(ctx, mac, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager)); err != nil {
		return a.apiError("set spec.unschedulable of Mac "+name, err)
	}
	if !cordoned {
		if err := a.keepReplicas(ctx, c, name); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.Out, "Mac %s is %s\n", name, word)
	return nil
}

// keepReplicas ends the evictions that an unfinished drain began.
func (a macCommand) keepReplicas(ctx context.Context, c *cluster, mac string) error {
	var replicas v1alpha1.ModelReplicaList
	if err := c.List(ctx, &replicas); err != nil {
		return a.apiError("list replicas", err)
	}
	for i := range replicas.Items {
		x := &replicas.Items[i]
		if x.Spec.NodeName != mac || x.Annotations[v1alpha1.AnnotationEvict] == "" {
			continue
		}
		if err := a.mark(ctx, c, x, false); err != nil {
			return err
		}
	}
	return nil
}

// mark begins or ends the eviction of a replica.
func (a *app) mark(ctx context.Context, c *cluster, x *v1alpha1.ModelReplica, evict bool) error {
	value := any(nil)
	if evict {
		value = "true"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": x.UID, "annotations": map[string]any{v1alpha1.AnnotationEvict: value}}})
	if err != nil {
		return err
	}
	err = c.Patch(ctx, x.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager))
	if client.IgnoreNotFound(err) != nil {
		return a.apiError("evict replica "+x.Namespace+"/"+x.Name, err)
	}
	return nil
}

const drainLong = `Empties a Mac: cordons it, has a successor of each replica start on another Mac,
and waits until these serve and all engines on the Mac have ended. A replica serves
until its successor does, unless rollout.maxUnavailable of its deployment allows
otherwise. Running requests may continue for rollout.drainSeconds.

A replica stays if no other Mac can hold its successor.
The command lists such replicas with the next step and exits with code 1. The Mac
stays cordoned in any case; run the command again to continue.`

// drainPatience is the default of --timeout: drainSeconds is 600 by default,
// and a large model takes minutes to load elsewhere.
const drainPatience = 30 * time.Minute

// askEvery is how often the fleet is looked at while it is waited for.
const askEvery = time.Second

func (a macCommand) drain() *cobra.Command {
	var allow bool
	var timeout time.Duration
	c := &cobra.Command{
		Use: "drain MAC", Short: "Move all replicas from a Mac to other Macs", Long: drainLong, Args: exactly(1, "one MAC"),
		Example:           "  kubectl metalfleet drain mac-mini-2\n  kubectl metalfleet drain mac-mini-2 --timeout 5m --allow-unserved",
		ValidArgsFunction: a.complete(macNames),
	}
	c.Flags().BoolVar(&allow, "allow-unserved", false, "also remove replicas before their successors serve, and replicas that no other Mac can hold")
	c.Flags().DurationVar(&timeout, "timeout", drainPatience, "maximum time to wait; 0 waits forever")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout < 0 {
			return usagef("--timeout is %s, want a duration such as 10m, or 0", timeout)
		}
		cl, err := a.connect()
		if err != nil {
			return err
		}
		if err := a.setCordoned(cmd.Context(), cl, args[0], true); err != nil {
			return err
		}
		ctx := cmd.Context()
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		run := &draining{app: a.app, c: cl, d: drain.Drain{Mac: args[0], AllowUnserved: allow}, here: map[string]string{}, said: map[string]bool{}}
		return run.toTheEnd(ctx)
	}
	return c
}

// draining is one run of drain: what it has seen and said.
type draining struct {
	*app
	c *cluster
	d drain.Drain
	// here are the replicas that were on the Mac, by UID, until they are gone.
	here map[string]string
	said map[string]bool
	// left is what the last look waited for.
	left         []string
	moved        int
	freed        int64
	freedUnknown int
}

// toTheEnd checks and acts until the Mac is empty, no replica makes progress, or
// the time is over.
func (r *draining) toTheEnd(ctx context.Context) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		done, err := r.step(ctx)
		if ctx.Err() != nil {
			return r.remains("timed out (--timeout)")
		}
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return r.remains("timed out (--timeout)")
		case <-tick.C:
		}
	}
}

// remains reports that the Mac is not empty, and why.
func (r *draining) remains(why string) error {
	what := ""
	if len(r.left) > 0 {
		what = "\n  " + strings.Join(r.left, "\n  ")
	}
	return fmt.Errorf("drain Mac %s: %s; the Mac stays cordoned, undo it with `kubectl metalfleet uncordon %s`%s", r.d.Mac, why, r.d.Mac, what)
}

func (r *draining) step(ctx context.Context) (done bool, err error) {
	w := drain.World{Now: r.Now()}
	if w.Macs, w.Replicas, err = r.fleetObjects(ctx, r.c); err != nil {
		return false, err
	}
	var deployments v1alpha1.ModelDeploymentList
	if err := r.c.List(ctx, &deployments); err != nil {
		return false, r.apiError("list deployments", err)
	}
	w.Deployments = deployments.Items
	r.notice(w)
	move := r.d.Next(w)
	r.left = move.Waits
	for _, wait := range move.Waits {
		r.once("waiting: " + wait)
	}
	for _, x := range move.Delete {
		if err := r.c.Delete(ctx, x, client.Preconditions{UID: &x.UID}); client.IgnoreNotFound(err) != nil {
			return false, r.apiError("delete replica "+x.Namespace+"/"+x.Name, err)
		}
		r.once(fmt.Sprintf("Draining %s/%s (measured footprint %s)", x.Namespace, x.Name, v1alpha1.FormatBytes(x.Status.Memory.FootprintBytes)))
	}
	for _, x := range move.Evict {
		if err := r.mark(ctx, r.c, x, true); err != nil {
			return false, err
		}
		r.once(fmt.Sprintf("Replacing %s/%s (measured footprint %s)", x.Namespace, x.Name, v1alpha1.FormatBytes(x.Status.Memory.FootprintBytes)))
	}
	switch {
	case move.Done:
		r.summary()
		return true, nil
	case move.Stuck:
		return false, r.remains("some replicas cannot be moved")
	}
	return false, nil
}

// notice prints the replicas that are gone, and what they freed.
func (r *draining) notice(w drain.World) {
	still := map[string]bool{}
	for i := range w.Replicas {
		x := &w.Replicas[i]
		still[string(x.UID)] = true
		if x.Spec.NodeName == r.d.Mac {
			r.here[string(x.UID)] = x.Namespace + "/" + x.Name
		}
	}
	for uid, name := range r.here {
		if still[uid] {
			continue
		}
		delete(r.here, uid)
		r.moved++
		freed, check, known := reclaimed(w.Macs, r.d.Mac, uid)
		if !known {
			r.freedUnknown++
			r.once(name + " is removed; the memory that it freed is unknown")
			continue
		}
		r.freed += freed
		r.once(fmt.Sprintf("%s is removed and freed %s (host check: %s)", name, v1alpha1.FormatBytes(freed), check))
	}
}

// reclaimed finds what a Mac measured when the engine of a replica went, the
// last time.
func reclaimed(macs []v1alpha1.MacNode, mac, uid string) (freed int64, check v1alpha1.HostCheck, known bool) {
	for i := range macs {
		if macs[i].Name != mac {
			continue
		}
		for _, r := range macs[i].Status.Reclaims { // newest first
			if r.ReplicaUID == uid && r.FreedBytes != nil {
				return *r.FreedBytes, r.HostCheck, true
			}
		}
	}
	return 0, "", false
}

func (r *draining) summary() {
	freed := v1alpha1.FormatBytes(r.freed) + " freed"
	if r.freedUnknown > 0 {
		freed += fmt.Sprintf("; the memory that %d of them freed is unknown", r.freedUnknown)
	}
	noun := "replicas"
	if r.moved == 1 {
		noun = "replica"
	}
	fmt.Fprintf(r.Out, "Mac %s is drained: %d %s moved, %s\n", r.d.Mac, r.moved, noun, freed)
}

// once prints a line that was not printed before.
func (r *draining) once(line string) {
	if !r.said[line] {
		r.said[line] = true
		fmt.Fprintln(r.Out, picture.Plain(line))
	}
}
