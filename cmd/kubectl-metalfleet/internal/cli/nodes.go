package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/inventory"
)

const nodesLong = `Lists the Macs of the fleet.

CEILING is the maximum memory that all engines may use together, RESERVED the
memory reserved for models (an estimate), USED the measured footprint of all
engines, and FREED the memory measured as freed so far. MODELS is the number of
replicas whose model is in memory, and of all replicas on the Mac. "-" means that
the Mac has not reported the value.`

func (a *app) nodes() *cobra.Command {
	c := &cobra.Command{
		Use: "nodes", Aliases: []string{"macs"}, Short: "List the Macs with their memory and models", Long: nodesLong, Args: none(),
		Example:           "  kubectl metalfleet nodes\n  kubectl metalfleet nodes -o json",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		macs, replicas, err := a.fleetObjects(cmd.Context(), cl)
		if err != nil {
			return err
		}
		list := inventory.Of(macs, replicas)
		if a.json() {
			return a.printJSON(map[string]any{"macs": list})
		}
		if len(list) == 0 {
			_, err := fmt.Fprintln(a.Err, "The fleet has no Macs; join one.")
			return err
		}
		return inventory.Table(a.Out, list, a.Now())
	}
	a.outputFlag(c)
	return c
}
