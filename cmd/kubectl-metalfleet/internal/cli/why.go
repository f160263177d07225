package cli

import (
	"github.com/spf13/cobra"

	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/explain"
)

const whyLong = `Shows the stage that a model is in, what blocks it and since when, the next step,
and why each Mac was or was not chosen. The reasons come from the operator's
placement code, applied to the current fleet.

MODEL is the name of a ModelDeployment, NAMESPACE/NAME, or a name that clients use.`

func (a *app) why() *cobra.Command {
	c := &cobra.Command{
		Use: "why MODEL", Short: "Explain why a model is not ready, and what to do", Long: whyLong, Args: exactly(1, "one MODEL"),
		Example:           "  kubectl metalfleet why qwen3-8b\n  kubectl metalfleet why team-a/qwen3-8b -o json",
		ValidArgsFunction: a.complete(modelNames),
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		d, err := a.deployment(cmd.Context(), cl, args[0])
		if err != nil {
			return err
		}
		macs, replicas, err := a.fleetObjects(cmd.Context(), cl)
		if err != nil {
			return err
		}
		now := a.Now()
		story := explain.Deployment(d, explain.World{Now: now, Macs: macs, Replicas: replicas})
		if a.json() {
			return a.printJSON(story)
		}
		return story.Draw(a.Out, now, a.ink())
	}
	a.outputFlag(c)
	return c
}
