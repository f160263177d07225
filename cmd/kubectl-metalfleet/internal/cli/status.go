package cli

import (
	"github.com/spf13/cobra"

	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/onemac"
)

const statusLong = `Shows the most recently reported state of a Mac: its hardware and memory pressure,
the loaded models with their size and their running and waiting requests, its
cache on disk, and the settings that its agent uses.`

func (a *app) status() *cobra.Command {
	c := &cobra.Command{
		Use: "status MAC", Short: "Show the state of a Mac", Long: statusLong, Args: exactly(1, "one MAC"),
		Example:           "  kubectl metalfleet status mac-mini-2\n  kubectl metalfleet status mac-mini-2 -o json",
		ValidArgsFunction: a.complete(macNames),
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		mac, err := a.mac(cmd.Context(), cl, args[0])
		if err != nil {
			return err
		}
		s := onemac.Of(mac)
		if a.json() {
			return a.printJSON(s)
		}
		return s.Write(a.Out)
	}
	a.outputFlag(c)
	return c
}
