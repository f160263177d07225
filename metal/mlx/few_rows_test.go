//go:build mlx

package mlx

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

//go:embed few_rows.h
var fewRowsHeader string

// No GPU is here, but the kernel's text can be run: what a warp's product does
// to registers is simulated, everything else is the kernel itself.
func TestFewRowsKernelOnTheProcessor(t *testing.T) {
	dir := t.TempDir()
	for file, name := range map[string]string{"numbers.inc": "few_rows_numbers", "kernel.inc": "few_rows_source"} {
		found := regexp.MustCompile(`(?s)` + name + ` = R"\((.*?)\)";`).FindStringSubmatch(fewRowsHeader)
		if found == nil {
			t.Fatalf("few_rows.h has no text %s", name)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(found[1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "few_rows")
	compiler := strings.Fields(os.Getenv("CXX"))
	if len(compiler) == 0 {
		compiler = []string{"g++"}
	}
	args := append(compiler[1:], "-std=c++20", "-O1", "-w", "-pthread", "-I", dir, "-o", program, filepath.Join("testdata", "few_rows.cpp"))
	if out, err := exec.CommandContext(t.Context(), compiler[0], args...).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if err != nil {
		t.Fatalf("run: %v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 15 {
		t.Errorf("%d cases were run, want 15:\n%s", len(lines), out)
	}
	for _, line := range lines {
		var tokens, in int
		var worst float64
		if _, err := fmt.Sscanf(line, "%d %d %f", &tokens, &in, &worst); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		// A result is rounded to 8 bits, and is a few times that root at most.
		if worst > 0.016 || worst == 0 {
			t.Errorf("%d tokens by %d columns: off by %v of the root of the sum of squares, want at most 0.016", tokens, in, worst)
		}
	}
}
