// Command demomemory shows the loop of memory on the quickstart's cluster as a
// user sees it with kubectl: a model that is loaded on demand is asked, its
// Mac's ceiling is lowered, the model is evicted and what it freed is told in
// an Event and on the Mac, the ceiling is raised, and a request brings the
// model back.
//
// It owns the order of the loop and its assertions: whatever it prints it also
// checks, and it fails at the first thing that is not as told. Processes belong
// to package fleet; building and fetching to run.sh, which starts this program
// last.
//
// Start reading at demo.loop.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/testenv"
)

const (
	name     = "smollm2"
	source   = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
	question = "What is the capital of France?"
	expected = "Paris"
	// patience bounds each wait; three times what a busy two-core machine took.
	patience = 2 * time.Minute
	// tolerance of freed bytes beside an own reading of /proc.
	tolerance = 0.05
)

// macs are those of the quickstart.
func macs() []fleet.Mac {
	return []fleet.Mac{
		{Name: "studio", Chip: "M2Ultra", Memory: "192Gi"},
		{Name: "macbook", Chip: "M4Max", Memory: "64Gi"},
		{Name: "mini", Chip: "M4", Memory: "24Gi"},
	}
}

func main() {
	root := flag.String("root", ".", "folder whose bin holds the programs")
	models := flag.String("model-root", filepath.Join(".cache", "models"), "folder that the Macs take models from")
	file := flag.String("file", source, "model below it; another than the default talks nonsense")
	keep := flag.String("logs", filepath.Join(".run", "demo-memory-failed"), "folder for the logs of a run that failed")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: demomemory [-root DIR] [-model-root DIR] [-file PATH]; make demo-memory")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root, *models, *file, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "demo-memory:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root, models, file, keep string) error {
	models, err := filepath.Abs(models)
	if err != nil {
		return fmt.Errorf("model root: %w", err)
	}
	assets, err := testenv.AssetsDir()
	if err != nil {
		return err
	}
	fmt.Println("== the quickstart's cluster: operator, gateway and three Macs")
	options := fleet.Options{Root: root, ModelRoot: models, Macs: macs(), Say: func(step string) { fmt.Println("  ", step) }}
	return fleet.With(ctx, options, keep, func(ctx context.Context, f *fleet.Fleet) error {
		d := &demo{Fleet: f, kubectlPath: filepath.Join(assets, "kubectl"), file: file}
		return d.loop(ctx)
	})
}

// demo is one run.
type demo struct {
	*fleet.Fleet
	kubectlPath, file string
}

// kubectl runs it as the user would, prints what it prints, and wants some
// words in it.
func (d *demo) kubectl(ctx context.Context, want []string, args ...string) error {
	fmt.Printf("   $ kubectl %s\n", shown(args))
	out, err := d.run(ctx, nil, args...)
	for line := range strings.Lines(out) {
		fmt.Print("   ", line)
	}
	if err != nil {
		return err
	}
	return wantWords(out, want...)
}

// run runs kubectl without a word.
func (d *demo) run(ctx context.Context, stdin []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.kubectlPath, args...)
	// A cache of its own: kubectl's is in the home folder, for ever.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+d.Kubeconfig(), "KUBECACHEDIR="+filepath.Join(d.Dir(), "kubectl-cache"))
	cmd.Stdin = strings.NewReader(string(stdin))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// shown is a command line to copy.
func shown(args []string) string {
	var out []string
	for _, a := range args {
		if strings.ContainsAny(a, `{}"' >*`) {
			a = "'" + a + "'"
		}
		out = append(out, a)
	}
	return strings.Join(out, " ")
}

func wantWords(out string, words ...string) error {
	var errs []error
	for _, w := range words {
		if !strings.Contains(out, w) {
			errs = append(errs, fmt.Errorf("kubectl does not show %q", w))
		}
	}
	return errors.Join(errs...)
}
