package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/onemac"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

const settingsLong = `Shows the settings of a Mac that take effect without a restart, or changes the given
ones. NAME=null removes a setting, so that the agent's own flag applies, or its
class; other settings stay unchanged. Lists and objects are JSON, and replace the
previous value as a whole.

-o json prints all settings as one object, and --from FILE ("-" for standard
input) applies such an object. "status MAC" shows the settings that the agent
uses.`

func (a macCommand) settings() *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "settings MAC [NAME=VALUE...]", Short: "Show or change the settings of a Mac", Long: settingsLong,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s takes one MAC, and NAME=VALUE for each setting to change", c.CommandPath())
			}
			return nil
		},
		Example: "  kubectl metalfleet settings mac-mini-2\n  kubectl metalfleet settings mac-mini-2 settings.logLevel=Debug memory.ceiling=96Gi\n" +
			"  kubectl metalfleet settings mac-mini-2 settings.logLevel=null class=studio\n  kubectl metalfleet settings mac-mini-2 'settings.diskMarks={\"highPercent\":80,\"lowPercent\":70}'\n  kubectl metalfleet settings mac-mini-1 -o json | kubectl metalfleet settings mac-mini-2 --from -",
		ValidArgsFunction: a.complete(macNames),
	}
	c.Flags().StringVar(&from, "from", "", "`file` with the settings as one JSON object; - for standard input")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		wanted, err := a.wanted(args[1:], from)
		if err != nil {
			return err
		}
		cl, err := a.connect()
		if err != nil {
			return err
		}
		mac, err := a.mac(cmd.Context(), cl, args[0])
		if err != nil {
			return err
		}
		if len(wanted) > 0 {
			patch, err := wanted.Patch()
			if err != nil {
				return err
			}
			if err := cl.Patch(cmd.Context(), mac, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager)); err != nil {
				return a.apiError("change the settings of Mac "+args[0], err)
			}
		}
		return a.showSettings(mac)
	}
	a.outputFlag(c)
	return c
}

// wanted are the settings on the command line or in a file.
func (a macCommand) wanted(words []string, from string) (onemac.Settings, error) {
	if from == "" {
		s, err := onemac.Parse(words)
		if err != nil {
			return nil, usageError{err}
		}
		return s, nil
	}
	if len(words) > 0 {
		return nil, usagef("use either --from or %s, not both", strings.Join(words, " "))
	}
	in := a.In
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return nil, fmt.Errorf("--from: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("--from %s: %w", from, err)
	}
	s, err := onemac.Decode(b)
	if err != nil {
		return nil, usagef("--from %s: %w", from, err)
	}
	return s, nil
}

func (a macCommand) showSettings(mac *v1alpha1.MacNode) error {
	all := onemac.Read(mac)
	if a.json() {
		return a.printJSON(all)
	}
	var t picture.Table
	t.Row("SETTING", "VALUE")
	for _, name := range onemac.Names() {
		value := "default"
		if all[name] != nil {
			value = *all[name]
		}
		t.Row(name, value)
	}
	return t.Write(a.Out)
}
