package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// completionPatience bounds how long a person waits for completion by the Tab
// key.
const completionPatience = 3 * time.Second

type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// complete offers names for the first argument. Where the API server cannot be
// asked there is nothing to offer.
func (a *app) complete(names func(context.Context, *cluster) ([]string, error)) completer {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
		defer cancel()
		c, err := a.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, err := names(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all = slices.DeleteFunc(all, func(n string) bool { return !strings.HasPrefix(n, begun) })
		slices.Sort(all)
		return slices.Compact(all), cobra.ShellCompDirectiveNoFileComp
	}
}

func macNames(ctx context.Context, c *cluster) ([]string, error) {
	var macs v1alpha1.MacNodeList
	err := c.List(ctx, &macs)
	var out []string
	for i := range macs.Items {
		out = append(out, macs.Items[i].Name)
	}
	return out, err
}

// modelNames are the names in the context's namespace, and all qualified ones.
func modelNames(ctx context.Context, c *cluster) ([]string, error) {
	var all v1alpha1.ModelDeploymentList
	err := c.List(ctx, &all)
	var out []string
	for i := range all.Items {
		d := &all.Items[i]
		out = append(out, d.Namespace+"/"+d.Name)
		if d.Namespace == c.namespace {
			out = append(out, d.Name)
		}
	}
	return out, err
}
