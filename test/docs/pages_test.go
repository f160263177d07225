//go:build !race

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	pages "metalfleet.dev/metalfleet/docs"
)

// root of the repository.
const root = "../.."

// document is one page.
type document struct {
	path, text string
	blocks     []pages.Block
}

// documents are all Markdown files, in the order in which a user reads them: what
// one page creates, later ones may use.
func documents(t *testing.T) []document {
	t.Helper()
	order := []string{"README.md", "docs/tutorial.md", "docs/how-to/install.md", "docs/how-to/macs.md", "docs/how-to/serve.md", "docs/how-to/troubleshoot.md"}
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	first := map[string]bool{}
	for _, path := range order {
		first[path] = true
	}
	for _, path := range strings.Fields(string(out)) {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil && !first[path] && path != "SECURITY.md" && !strings.Contains(path, "testdata/") {
			order = append(order, path)
		}
	}
	order = append(order, "SECURITY.md") // it replaces the authority, so it comes last
	var all []document
	for _, path := range order {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, document{path: path, text: string(b), blocks: pages.Blocks(string(b))})
	}
	return all
}
