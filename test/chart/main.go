// Command chart is the test behind make test-chart: Helm's own linter, wrong
// values that the schema must refuse, every rendered variant against a real API
// server, and a sentence for every field of the kinds.
//
// It owns the variants of values and what each must hold. Everything but the
// rendering is judged by programs that are not ours: helm, kube-apiserver and
// its Pod security admission. Nothing of a chart is only looked at.
//
//	bash hack/helm.sh && go run ./test/chart        (make test-chart)
//
// Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// limit of everything.
const limit = 10 * time.Minute

func main() {
	root := flag.String("root", ".", "folder of the module, with programs in bin")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: chart [-root DIR]; make test-chart")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := run(ctx, *root); err != nil {
		fmt.Fprintln(os.Stderr, "test-chart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	h := helm{program: filepath.Join(root, "bin", "kube", "helm"), chart: filepath.Join(root, "charts", "metalfleet"), root: root}
	if _, err := os.Stat(h.program); err != nil {
		return fmt.Errorf("helm is not built, run hack/helm.sh: %w", err)
	}
	return errors.Join(
		step("sentences", func() (string, error) { return sentences(filepath.Join(root, "config", "crd")) }),
		step("copies", func() (string, error) { return copies(root) }),
		step("values", func() (string, error) { return h.refusals(ctx) }),
		step("kustomize", func() (string, error) { return h.kustomize(ctx) }),
		h.variants(ctx),
	)
}

// step says what a part found, or that it failed.
func step(name string, do func() (string, error)) error {
	said, err := do()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Printf("%-16s %s\n", name, said)
	return nil
}
