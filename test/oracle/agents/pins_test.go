package agents

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryPackageIsPinned: each line is a package at a version.
func TestEveryPackageIsPinned(t *testing.T) {
	files, err := filepath.Glob("pins/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`^(#.*|[a-z0-9-]+==\d[0-9a-z.]*|    "[@a-z0-9/-]+": "\d+(\.\d+)+",?)$`)
	for _, path := range append(files, "js/package.json") {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		if _, dependencies, ok := strings.Cut(text, "\"dependencies\": {\n"); ok {
			text, _, _ = strings.Cut(dependencies, "\n  }")
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
			if !pinned.MatchString(line) {
				t.Errorf("%s: %q", path, line)
			}
		}
	}
}
