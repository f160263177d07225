package cli

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
	"metalfleet.dev/metalfleet/controllers/agentupgrade/turn"
)

const upgradeLong = `Requests an agent version for the Macs of a class, and shows the progress of the
upgrade. It is the same as writing spec.release of the MacClass, which also has
waves.

The Macs are upgraded one at a time: new requests go to other Macs, running ones
finish, the agent is replaced while its engines keep running, and the next Mac
follows once this one has been healthy for 30 s. An agent that is not ready within
60 s is rolled back, and the upgrade halts. Run the command again, with the same
or another version, to retry.

--url is the https address of the .tar.gz archive with the programs agent and
engine, and --version is the version that this agent prints with --version.
Without flags, or with --status, the command changes nothing.`

// versionFlags are the flags of upgrade-agents.
type versionFlags struct {
	desired               v1alpha1.AgentRelease
	class                 string
	drain                 int32
	pause, resume, status bool
	downgrade             bool
}

// upgradeCommand sets and shows the agents' version.
type upgradeCommand struct{ *app }

func (a upgradeCommand) upgradeAgents() *cobra.Command {
	var f versionFlags
	c := &cobra.Command{
		Use: "upgrade-agents", Short: "Upgrade the agents of the Macs, one at a time", Long: upgradeLong, Args: none(),
		Example: "  kubectl metalfleet upgrade-agents --version v0.4.0 --url https://releases.example.com/agent-v0.4.0.tar.gz --sha256 DIGEST\n" +
			"  kubectl metalfleet upgrade-agents --status\n  kubectl metalfleet upgrade-agents --pause",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := c.Flags()
	flags.StringVar(&f.desired.Version, "version", "", "`version` that the Macs should run")
	flags.StringVar(&f.desired.Source, "url", "", "https `address` of the archive")
	flags.StringVar(&f.desired.SHA256, "sha256", "", "`digest` of the archive")
	flags.StringVar(&f.class, "class", v1alpha1.DefaultMacClass, "`MacClass` whose Macs to upgrade; it is created if it does not exist")
	flags.StringVar(&f.desired.Mac, "mac", "", "upgrade only this `Mac`")
	flags.Int32Var(&f.drain, "drain-seconds", 600, "how long running requests may continue, in seconds")
	flags.BoolVar(&f.pause, "pause", false, "pause: start no further upgrades")
	flags.BoolVar(&f.resume, "resume", false, "resume after a pause")
	flags.BoolVar(&f.status, "status", false, "only show the progress")
	flags.BoolVar(&f.downgrade, "allow-downgrade", false, "install the version also where it is older than the one that runs")
	_ = c.RegisterFlagCompletionFunc("mac", a.complete(macNames))
	_ = c.RegisterFlagCompletionFunc("class", cobra.NoFileCompletions)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(flags.Changed("drain-seconds")); err != nil {
			return err
		}
		f.desired.DrainSeconds = &f.drain
		cl, err := a.connect()
		if err != nil {
			return err
		}
		class, err := a.changeDesired(cmd.Context(), cl, &f)
		if err != nil {
			return err
		}
		return a.showUpgrade(cmd.Context(), cl, class)
	}
	a.outputFlag(c)
	return c
}

// check refuses flags that do not go together.
func (f *versionFlags) check(drain bool) error {
	named := f.desired.Version != ""
	verbs := 0
	for _, given := range []bool{named, f.pause, f.resume, f.status} {
		if given {
			verbs++
		}
	}
	switch {
	case named && (f.desired.Source == "" || f.desired.SHA256 == ""), !named && (f.desired.Source != "" || f.desired.SHA256 != ""):
		return usagef("--version, --url and --sha256 must be used together")
	case !named && (f.desired.Mac != "" || drain || f.downgrade):
		return usagef("--mac, --drain-seconds and --allow-downgrade require --version, --url and --sha256")
	case verbs > 1:
		return usagef("--version, --pause, --resume and --status are mutually exclusive")
	}
	return nil
}

// changeDesired writes what the flags say, if they say something, and returns the
// class as it is now; without a release if there is none.
func (a upgradeCommand) changeDesired(ctx context.Context, c client.Client, f *versionFlags) (*v1alpha1.MacClass, error) {
	class := &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: f.class}}
	err := c.Get(ctx, client.ObjectKeyFromObject(class), class)
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, a.apiError("read MacClass "+f.class, err)
	}
	next, err := f.apply(class.Spec.Release)
	if err != nil || next == class.Spec.Release {
		return class, err
	}
	class.Spec.Release = next
	if exists {
		err = c.Update(ctx, class, client.FieldOwner(fieldManager))
	} else {
		err = c.Create(ctx, class, client.FieldOwner(fieldManager))
	}
	if err != nil {
		return nil, a.apiError("write MacClass "+f.class, err)
	}
	return class, nil
}

// apply is what is wanted after the flags. A version that is named is a change of
// its own, also where it is the same as before: that one is tried again.
func (f *versionFlags) apply(before *v1alpha1.AgentRelease) (*v1alpha1.AgentRelease, error) {
	switch {
	case f.desired.Version != "":
		next := f.desired
		next.RetryGeneration = 1
		if f.downgrade {
			next.Downgrade = v1alpha1.DowngradeAllow
		}
		if before != nil {
			next.RetryGeneration, next.Waves = before.Order().Attempt+1, before.Waves
		}
		return &next, nil
	case f.pause || f.resume:
		if before == nil {
			return nil, fmt.Errorf("class %s requests no agent version; request one with --version, --url and --sha256", f.class)
		}
		next := *before
		if next.State = v1alpha1.ReleaseActive; f.pause {
			next.State = v1alpha1.ReleasePaused
		}
		return &next, nil
	}
	return before, nil
}

// showUpgrade prints how far it is, as the operator decides it.
func (a upgradeCommand) showUpgrade(ctx context.Context, c client.Reader, class *v1alpha1.MacClass) error {
	var macs v1alpha1.MacNodeList
	if err := c.List(ctx, &macs); err != nil {
		return a.apiError("list Macs", err)
	}
	var assigned v1alpha1.MacAssignmentList
	if err := c.List(ctx, &assigned); err != nil {
		return a.apiError("list MacAssignments", err)
	}
	var all v1alpha1.MacClassList
	if err := c.List(ctx, &all); err != nil {
		return a.apiError("list MacClasses", err)
	}
	w, groups := class.Spec.Release, turn.Classes(all.Items, turn.Join(macs.Items, assigned.Items))
	t := turn.Next(nil, "", nil, a.Now())
	for i, now := range turn.All(groups, "", a.Now()) {
		if groups[i].Class != nil && groups[i].Class.Name == class.Name {
			t = now
		}
	}
	if a.json() {
		return a.printJSON(map[string]any{"wish": w, "upgrade": t})
	}
	if w != nil {
		fmt.Fprintf(a.Out, "Requested version: %s (attempt %d)\n", picture.Plain(w.Version), w.Order().Attempt)
	}
	fmt.Fprintf(a.Out, "%s: %s\n", t.State, picture.Plain(t.Message))
	if len(t.Macs) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MAC\tAGENT\tSTATE\tMESSAGE")
	for _, s := range slices.Clone(t.Macs) {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", picture.Plain(s.Mac), picture.Plain(s.Version), s.Place, picture.Plain(s.Message))
	}
	return table.Flush()
}
