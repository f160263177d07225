package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"metalfleet.dev/metalfleet/controllers/identity/jointoken"
)

const joinTokenLong = `Creates the MacNode NAME, if it does not exist, and prints the one-time token with
which that Mac joins. The token is a secret: until the Mac has used it, any machine
with the token can join as that Mac. Only the token is written to standard output,
so redirect it to a file that only you can read, or to a pipe. A new token revokes
the previous one.`

// joinToken is the command that lets a Mac in.
func (a *app) joinToken() *cobra.Command {
	var o jointoken.Options
	var server string
	c := &cobra.Command{
		Use: "join-token NAME", Short: "Create the token with which a Mac joins", Long: joinTokenLong, Args: exactly(1, "the NAME of a Mac"),
		Example: "  umask 077; kubectl metalfleet join-token studio > studio.token\n" +
			"  kubectl metalfleet join-token studio | ssh studio agent join --token-file - --state /var/lib/metalfleet",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&server, "api-server", "", "URL at which the Mac reaches the API server; default: that of the kubeconfig")
	c.Flags().DurationVar(&o.Life, "life", jointoken.DefaultLife, "validity of the token, 10m to 24h")
	c.Flags().BoolVar(&o.Again, "again", false, "create a token even if the Mac is joined and alive")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		o.Mac, o.Namespace = args[0], a.flags.system
		if o.Server, o.CA, err = jointoken.Endpoint(cl.config); err != nil {
			return err
		}
		if server != "" {
			o.Server = server
		}
		token, expires, err := jointoken.Mint(cmd.Context(), cl, o)
		if errors.Is(err, jointoken.ErrAlive) {
			return fmt.Errorf("%w; use --again to create one anyway", err)
		}
		if err != nil {
			return a.apiError("create a join token", err)
		}
		return a.printJoinToken(token, expires, o.Server)
	}
	a.outputFlag(c)
	return c
}

// printJoinToken puts the token, and nothing else, where a file or a pipe takes it.
func (a *app) printJoinToken(token string, expires time.Time, server string) error {
	if a.json() {
		return a.printJSON(map[string]string{"token": token, "expires": expires.UTC().Format(time.RFC3339), "server": server})
	}
	fmt.Fprintf(a.Err, "On the Mac, once, before %s:\n  agent join --token-file FILE --state DIR      then: agent --state DIR ...\n"+
		"The Mac reaches the API server at %s.\n", expires.Local().Format(time.RFC1123), server)
	_, err := fmt.Fprintln(a.Out, token)
	return err
}
