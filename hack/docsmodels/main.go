// Command docsmodels writes the tables of docs/reference/models.md: which model
// families run, in which formats, and which reference each was compared with.
//
// It owns the generated part of that page alone. Families are those of
// metal/family, formats those of metal/weights and metal/quant; references are the
// records of the goldens in metal, tolerances are constants of the tests next to
// them. It refuses to guess: what no record contains is not on the page. A test
// fails when the page is out of date.
//
//	go run ./hack/docsmodels
//
// Start reading at tables.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	output = "docs/reference/models.md"
	begin  = "<!-- tables: written by `go run ./hack/docsmodels` -->\n"
	end    = "<!-- end of tables -->\n"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "docsmodels:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	path := filepath.Join(root, filepath.FromSlash(output))
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := page(root, string(old))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// page is the old page with new tables between its marks.
func page(root, old string) (string, error) {
	head, rest, found := strings.Cut(old, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", fmt.Errorf("%s lacks the marks %q and %q", output, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	t, err := tables(root)
	if err != nil {
		return "", err
	}
	return head + begin + t + end + tail, nil
}
