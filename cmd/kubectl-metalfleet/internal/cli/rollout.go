package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/history"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

const rolloutLong = `Shows how far a change of a model has reached its replicas, stops it, lets it go
on, and goes back to an earlier revision. MODEL is the name of a ModelDeployment,
NAMESPACE/NAME, or a name that clients use.`

func (a *app) rollout() *cobra.Command {
	c := &cobra.Command{Use: "rollout", Short: "Show, pause, resume and undo the rollout of a model", Long: rolloutLong,
		Example: "  kubectl metalfleet rollout status qwen3-8b\n  kubectl metalfleet rollout undo qwen3-8b",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		}, Args: cobra.ArbitraryArgs}
	c.AddCommand(a.rolloutStatus(), a.rolloutHistory(),
		a.rolloutChange("pause", "Replace nothing until it is resumed", func(d *v1alpha1.ModelDeployment) string {
			if d.Spec.Rollout.Paused {
				return "is paused already"
			}
			d.Spec.Rollout.Paused = true
			return "is paused"
		}),
		a.rolloutChange("resume", "Let a paused rollout go on, or try a halted one again", resume), a.rolloutUndo())
	return c
}

// resume ends a pause, and tries again what was halted.
func resume(d *v1alpha1.ModelDeployment) string {
	halt := d.Status.Rollout.Halt
	switch {
	case d.Spec.Rollout.Paused:
		d.Spec.Rollout.Paused = false
		return "goes on"
	case halt != nil && halt.Revision == d.Status.UpdateRevision && halt.Attempt == d.Spec.Rollout.Attempt:
		d.Spec.Rollout.Attempt++
		return fmt.Sprintf("is tried again (attempt %d)", d.Spec.Rollout.Attempt)
	}
	return "is neither paused nor halted"
}

// onModel reads the deployment that a command line names.
func (a *app) onModel(do func(context.Context, *cluster, *v1alpha1.ModelDeployment) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		d, err := a.deployment(cmd.Context(), cl, args[0])
		if err != nil {
			return err
		}
		return do(cmd.Context(), cl, d)
	}
}

func (a *app) rolloutChange(verb, short string, change func(*v1alpha1.ModelDeployment) string) *cobra.Command {
	c := &cobra.Command{Use: verb + " MODEL", Short: short, Args: exactly(1, "one MODEL"), Example: "  kubectl metalfleet rollout " + verb + " qwen3-8b",
		ValidArgsFunction: a.complete(modelNames)}
	c.RunE = a.onModel(func(ctx context.Context, cl *cluster, d *v1alpha1.ModelDeployment) error {
		before := d.DeepCopy()
		said := change(d)
		if err := a.writeSpec(ctx, cl, before, d); err != nil {
			return err
		}
		fmt.Fprintf(a.Out, "the rollout of %s/%s %s\n", d.Namespace, d.Name, said)
		return nil
	})
	return c
}

// writeSpec writes what changed, unless the spec has changed since it was read. A
// status that the operator writes meanwhile is no conflict.
func (a *app) writeSpec(ctx context.Context, cl *cluster, before, after *v1alpha1.ModelDeployment) error {
	base := before.DeepCopy()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
		err := cl.Patch(ctx, after.DeepCopy(), patch, client.FieldOwner(fieldManager))
		if !apierrors.IsConflict(err) {
			return err
		}
		var now v1alpha1.ModelDeployment
		if readErr := cl.Get(ctx, client.ObjectKeyFromObject(before), &now); readErr != nil {
			return readErr
		}
		if now.Generation != before.Generation {
			return fmt.Errorf("its spec was changed meanwhile; look at it and try again: %s", err.Error()) // no conflict to retry
		}
		base.ResourceVersion = now.ResourceVersion
		return err
	})
	if err != nil {
		return a.apiError("change ModelDeployment "+before.Namespace+"/"+before.Name, err)
	}
	return nil
}

func (a *app) history(ctx context.Context, cl *cluster, d *v1alpha1.ModelDeployment) (history.History, error) {
	var all appsv1.ControllerRevisionList
	if err := cl.List(ctx, &all, client.InNamespace(d.Namespace), client.MatchingLabels{v1alpha1.LabelDeployment: d.Name}); err != nil {
		return nil, a.apiError("list revisions", err)
	}
	var replicas v1alpha1.ModelReplicaList
	if err := cl.List(ctx, &replicas, client.InNamespace(d.Namespace)); err != nil {
		return nil, a.apiError("list replicas", err)
	}
	return history.Of(d, all.Items, replicas.Items), nil
}

func (a *app) rolloutHistory() *cobra.Command {
	c := &cobra.Command{Use: "history MODEL", Short: "List the revisions of a model", Args: exactly(1, "one MODEL"),
		Example: "  kubectl metalfleet rollout history qwen3-8b", ValidArgsFunction: a.complete(modelNames)}
	c.RunE = a.onModel(func(ctx context.Context, cl *cluster, d *v1alpha1.ModelDeployment) error {
		h, err := a.history(ctx, cl, d)
		if err != nil {
			return err
		}
		if a.json() {
			return a.printJSON(h)
		}
		table := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "REVISION\tSTATE\tREPLICAS\tSOURCE\tCONTEXT\tAGE")
		for _, r := range h {
			state := r.State
			if state == "" {
				state = "-"
			}
			fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s\t%s\n", r.Number, state, r.Replicas, picture.Plain(r.Source), r.Context, duration.HumanDuration(a.Now().Sub(r.Created)))
		}
		return table.Flush()
	})
	a.outputFlag(c)
	return c
}

func (a *app) rolloutUndo() *cobra.Command {
	var number int64
	c := &cobra.Command{Use: "undo MODEL", Short: "Go back to an earlier revision", Args: exactly(1, "one MODEL"),
		Long: "Writes spec.model, context, memory and cache as they were for an earlier revision: the one that\n" +
			"serves while another is rolled out, else the one before it, or --to-revision. It is rolled out as\nany change is; the rest of the spec stays.",
		Example:           "  kubectl metalfleet rollout undo qwen3-8b\n  kubectl metalfleet rollout undo qwen3-8b --to-revision 2",
		ValidArgsFunction: a.complete(modelNames)}
	c.Flags().Int64Var(&number, "to-revision", 0, "`number` of the revision as `rollout history` lists it; 0: the one before")
	run := a.onModel(func(ctx context.Context, cl *cluster, d *v1alpha1.ModelDeployment) error {
		h, err := a.history(ctx, cl, d)
		if err != nil {
			return err
		}
		before := d.DeepCopy()
		to, err := h.Undo(d, number)
		if err != nil {
			return err
		}
		if err := a.writeSpec(ctx, cl, before, d); err != nil {
			return err
		}
		fmt.Fprintf(a.Out, "%s/%s goes back to revision %d (%s)\n", d.Namespace, d.Name, to.Number, picture.Plain(to.Source))
		return nil
	})
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if number < 0 {
			return usagef("--to-revision is %d, want a number that `rollout history` lists", number)
		}
		return run(cmd, args)
	}
	return c
}

func (a *app) rolloutStatus() *cobra.Command {
	watch, timeout := true, time.Duration(0)
	c := &cobra.Command{Use: "status MODEL", Short: "Show a rollout until it is done", Args: exactly(1, "one MODEL"),
		Long:              "Prints what the rollout does each time that changes, until it is complete (exit code 0), or halted,\npaused or overdue (1). With --watch=false it prints it once.",
		Example:           "  kubectl metalfleet rollout status qwen3-8b\n  kubectl metalfleet rollout status qwen3-8b --watch=false",
		ValidArgsFunction: a.complete(modelNames)}
	c.Flags().BoolVarP(&watch, "watch", "w", true, "go on until it ends")
	c.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time; 0: never")
	c.RunE = a.onModel(func(ctx context.Context, cl *cluster, d *v1alpha1.ModelDeployment) error {
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		tick := time.NewTicker(askEvery)
		defer tick.Stop()
		for last := ""; ; {
			said, ends := sayRollout(d)
			if said != last {
				fmt.Fprintln(a.Out, picture.Plain(said))
				last = said
			}
			if ends != nil || !watch || done(d) {
				return ends
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("gave up waiting (--timeout): %s", said)
			case <-tick.C:
			}
			if err := cl.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil && ctx.Err() == nil {
				return a.apiError("read ModelDeployment "+d.Namespace+"/"+d.Name, err)
			}
		}
	})
	return c
}

func done(d *v1alpha1.ModelDeployment) bool {
	return d.Status.ObservedGeneration == d.Generation && d.Status.Rollout.State == v1alpha1.RolloutComplete
}

// sayRollout is the rollout in a sentence, and why it will not end by itself.
func sayRollout(d *v1alpha1.ModelDeployment) (said string, ends error) {
	if d.Status.ObservedGeneration != d.Generation || d.Status.Rollout.State == "" {
		return "the operator has not seen this spec yet", nil
	}
	state := d.Status.Rollout.State
	if done(d) {
		return fmt.Sprintf("Complete: %d of %d replicas are available and of the revision %s", d.Status.UpdatedAvailableReplicas, d.Status.Replicas, d.Status.UpdateRevision), nil
	}
	said = string(state)
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionAccepted); c != nil && state == v1alpha1.RolloutPending {
		said += ": " + c.Message
		if c.Status == metav1.ConditionFalse {
			return said, answer(ExitFailed)
		}
		return said, nil
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
		said += ": " + c.Message
		if c.Reason == v1alpha1.ReasonProgressDeadline {
			return said, answer(ExitFailed)
		}
	}
	if state == v1alpha1.RolloutHalted || state == v1alpha1.RolloutPaused {
		return said, answer(ExitFailed)
	}
	return said, nil
}
