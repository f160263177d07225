package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"metalfleet.dev/metalfleet/controllers/identity/jointoken"
)

const joinTokenLong = `Makes the MacNode NAME, if there is none, and prints the one-time token with
which that Mac joins. The token is a secret: whoever has it before the Mac used
it becomes that Mac. It goes to standard output alone, so write it into a file
that only you may read, or into a pipe. Making another one ends it.`

// joinToken is the command that lets a Mac in.
func (a *app) joinToken() *cobra.Command {
	var o jointoken.Options
	var server string
	c := &cobra.Command{
		Use: "join-token NAME", Short: "Make the token with which a Mac joins", Long: joinTokenLong, Args: exactly(1, "the NAME of a Mac"),
		Example: "  umask 077; kubectl metalfleet join-token studio > studio.token\n" +
			"  kubectl metalfleet join-token studio | ssh studio agent join --token-file - --state /var/lib/metalfleet",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&server, "api-server", "", "URL by which the Mac reaches the API server; default: the kubeconfig's")
	c.Flags().DurationVar(&o.Life, "life", jointoken.DefaultLife, "how long the token may be used, 10m to 24h")
	c.Flags().BoolVar(&o.Again, "again", false, "make one although the Mac is joined and alive")
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
			return fmt.Errorf("%w; --again makes one all the same", err)
		}
		if err != nil {
			return a.apiError("make a join token", err)
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
		"It reaches the API server as %s.\n", expires.Local().Format(time.RFC1123), server)
	_, err := fmt.Fprintln(a.Out, token)
	return err
}
