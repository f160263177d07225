package cli

import (
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
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
		var assigned v1alpha1.MacAssignment // it names the replicas; without it they have their UIDs
		if err := cl.Get(cmd.Context(), client.ObjectKey{Name: mac.Name}, &assigned); client.IgnoreNotFound(err) != nil && !apierrors.IsForbidden(err) {
			return a.apiError("read MacAssignment "+mac.Name, err)
		}
		s := onemac.Of(mac, &assigned)
		if a.json() {
			return a.printJSON(s)
		}
		return s.Write(a.Out)
	}
	a.outputFlag(c)
	return c
}
