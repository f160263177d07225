package cli

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/history"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

const rolloutLong = `Shows, pauses and resumes the rollout of a model, replaces its replicas, and rolls back
to an earlier revision. MODEL is the name of a ModelDeployment, NAMESPACE/NAME, or a name that
clients use.`

// rolloutCommand shows and changes rollouts.
type rolloutCommand struct{ *app }

func (a rolloutCommand) rollout() *cobra.Command {
	c := &cobra.Command{Use: "rollout", Short: "Show, pause, resume, restart and undo the rollout of a model", Long: rolloutLong,
		Example: "  kubectl metalfleet rollout status qwen3-8b\n  kubectl metalfleet rollout undo qwen3-8b",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		}, Args: cobra.ArbitraryArgs}
	c.AddCommand(a.rolloutStatus(), a.rolloutHistory(),
		a.rolloutChange("pause", "Pause a rollout until it is resumed", func(d *v1alpha1.ModelDeployment) string {
			if d.Spec.Rollout.Paused {
				return "is already paused"
			}
			d.Spec.Rollout.Paused = true
			return "is paused"
		}),
		a.rolloutChange("resume", "Resume a paused rollout, or retry a halted one", resume), a.rolloutRestart(), a.rolloutUndo())
	return c
}

// resume ends a pause, and tries again what was halted.
func resume(d *v1alpha1.ModelDeployment) string {
	halt := d.Status.Rollout.Halt
	switch {
	case d.Spec.Rollout.Paused:
		d.Spec.Rollout.Paused = false
		return "is resumed"
	case halt != nil && halt.Revision == d.Status.UpdateRevision && halt.RetryGeneration == d.Spec.Rollout.RetryGeneration:
		d.Spec.Rollout.RetryGeneration++
		return fmt.Sprintf("is retried (attempt %d)", d.Spec.Rollout.RetryGeneration)
	}
	return "is neither paused nor halted"
}

// onModel reads the deployment that a command line names.
func (a rolloutCommand) onModel(do func(context.Context, *cluster, *v1alpha1.ModelDeployment) error) func(*cobra.Command, []string) error {
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

func (a rolloutCommand) rolloutChange(verb, short string, change func(*v1alpha1.ModelDeployment) string) *cobra.Command {
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

// busy is how often a change is tried while the operator writes the status.
var busy = wait.Backoff{Steps: 20, Duration: 10 * time.Millisecond, Factor: 1.2, Jitter: 0.5}

// writeSpec writes what changed, unless the spec has changed since it was read. A
// status that the operator writes meanwhile is no conflict.
func (a rolloutCommand) writeSpec(ctx context.Context, cl *cluster, before, after *v1alpha1.ModelDeployment) error {
	base, first := before.DeepCopy(), true
	err := retry.RetryOnConflict(busy, func() error {
		if !first { // read just before writing: during a rollout the status changes many times a second
			var now v1alpha1.ModelDeployment
			if err := cl.Get(ctx, client.ObjectKeyFromObject(before), &now); err != nil {
				return err
			}
			if now.Generation != before.Generation {
				return errors.New("its spec has changed in the meantime; check it and try again")
			}
			base.ResourceVersion = now.ResourceVersion
		}
		first = false
		patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
		return cl.Patch(ctx, after.DeepCopy(), patch, client.FieldOwner(fieldManager))
	})
	if err != nil {
		return a.apiError("change ModelDeployment "+before.Namespace+"/"+before.Name, err)
	}
	return nil
}

func (a rolloutCommand) history(ctx context.Context, cl *cluster, d *v1alpha1.ModelDeployment) (history.History, error) {
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

func (a rolloutCommand) rolloutHistory() *cobra.Command {
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

func (a rolloutCommand) rolloutRestart() *cobra.Command {
	c := &cobra.Command{Use: "restart MODEL", Short: "Replace all replicas of a model", Args: exactly(1, "one MODEL"),
		Long:    "Sets spec.rollout.restartedAt to the current time. All replicas are replaced like in any other rollout,\nwithin maxSurge and maxUnavailable; weights that are on a Mac are not downloaded again.",
		Example: "  kubectl metalfleet rollout restart qwen3-8b", ValidArgsFunction: a.complete(modelNames)}
	c.RunE = a.onModel(func(ctx context.Context, cl *cluster, d *v1alpha1.ModelDeployment) error {
		if d.Spec.Rollout.Paused {
			return fmt.Errorf("the rollout of %s is paused; resume it first with `kubectl metalfleet rollout resume %s`", d.Name, d.Name)
		}
		before, now := d.DeepCopy(), metav1.NewTime(a.Now().Truncate(time.Second))
		if last := d.Spec.Rollout.RestartedAt; last != nil && !now.After(last.Time) {
			now = metav1.NewTime(last.Add(time.Second)) // the API has whole seconds, and clocks differ
		}
		d.Spec.Rollout.RestartedAt = &now
		if err := a.writeSpec(ctx, cl, before, d); err != nil {
			return err
		}
		fmt.Fprintf(a.Out, "%s/%s is restarted; `kubectl metalfleet rollout status %s -n %s` shows the progress\n", d.Namespace, d.Name, d.Name, d.Namespace)
		return nil
	})
	return c
}

func (a rolloutCommand) rolloutUndo() *cobra.Command {
	var number int64
	c := &cobra.Command{Use: "undo MODEL", Short: "Roll back to an earlier revision", Args: exactly(1, "one MODEL"),
		Long: "Restores spec.model, profileName, context, memory and cache from an earlier revision: during a rollout\n" +
			"the one that serves, otherwise the previous one, or the one in --to-revision. The change is rolled out\nlike any other; the rest of the spec stays unchanged.",
		Example:           "  kubectl metalfleet rollout undo qwen3-8b\n  kubectl metalfleet rollout undo qwen3-8b --to-revision 2",
		ValidArgsFunction: a.complete(modelNames)}
	c.Flags().Int64Var(&number, "to-revision", 0, "`number` of the revision in `rollout history`; 0 selects the previous one")
	run := a.onModel(func(ctx context.Context, cl *cluster, d *v1alpha1.ModelDeployment) error {
		h, err := a.history(ctx, cl, d)
		if err != nil {
			return err
		}
		before := d.DeepCopy()
		var profiles v1alpha1.ModelProfileList
		if err := cl.List(ctx, &profiles); err != nil && !apierrors.IsForbidden(err) {
			return a.apiError("list profiles", err)
		}
		to, pinned, err := h.Undo(d, number, profiles.Items)
		if err != nil {
			return err
		}
		if err := a.writeSpec(ctx, cl, before, d); err != nil {
			return err
		}
		fmt.Fprintf(a.Out, "%s/%s is rolled back to revision %d (%s)\n", d.Namespace, d.Name, to.Number, picture.Plain(to.Source))
		if pinned {
			fmt.Fprintln(a.Out, "its ModelProfile has changed since, so the settings that it had are now in the spec, and spec.profileName is removed")
		}
		return nil
	})
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if number < 0 {
			return usagef("--to-revision is %d, want a number from `rollout history`", number)
		}
		return run(cmd, args)
	}
	return c
}

func (a rolloutCommand) rolloutStatus() *cobra.Command {
	watch, timeout := true, time.Duration(0)
	c := &cobra.Command{Use: "status MODEL", Short: "Show the progress of a rollout", Args: exactly(1, "one MODEL"),
		Long:              "Prints the state of the rollout whenever it changes, until it is complete (exit code 0), or halted,\npaused or past its deadline (exit code 1). With --watch=false, it prints the state once.",
		Example:           "  kubectl metalfleet rollout status qwen3-8b\n  kubectl metalfleet rollout status qwen3-8b --watch=false",
		ValidArgsFunction: a.complete(modelNames)}
	c.Flags().BoolVarP(&watch, "watch", "w", true, "watch until the rollout ends")
	c.Flags().DurationVar(&timeout, "timeout", 0, "maximum time to wait; 0 waits forever")
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
		return "the operator has not observed this spec yet", nil
	}
	state := d.Status.Rollout.State
	if done(d) {
		return fmt.Sprintf("Complete: %d of %d replicas of revision %s are available", d.Status.UpdatedAvailableReplicas, d.Status.Replicas, d.Status.UpdateRevision), nil
	}
	said = string(state)
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionAccepted); c != nil && state == v1alpha1.RolloutPending {
		said += ": " + c.Message
		if c.Status == metav1.ConditionFalse {
			return said, answer(exitFailed)
		}
		return said, nil
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
		said += ": " + c.Message
		if c.Reason == v1alpha1.ReasonProgressDeadline {
			return said, answer(exitFailed)
		}
	}
	if state == v1alpha1.RolloutHalted || state == v1alpha1.RolloutPaused || meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionStalled) {
		return said, answer(exitFailed)
	}
	return said, nil
}
