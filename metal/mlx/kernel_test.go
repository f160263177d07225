//go:build mlx

package mlx

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	//go:embed few_rows.h
	fewRowsHeader string
	//go:embed ragged.h
	raggedHeader string
	//go:embed experts.h
	expertsHeader string
	//go:embed attend_step.h
	attendStepHeader string
	//go:embed row_kernels.h
	rowKernelsHeader string
	//go:embed add_norm.h
	addNormHeader string
	//go:embed recur_step.h
	recurStepHeader string
)

// runKernel runs a program of testdata around a kernel's texts, numbers.inc, kernel.inc
// and others that are named as FILE=TEXT, and returns the lines it prints. No GPU is here, but the text can
// be run: what a warp does together is simulated (testdata/cuda.h), everything
// else is the kernel itself.
func runKernel(t *testing.T, name, header, numbers, source string, more ...string) []string {
	t.Helper()
	dir := t.TempDir()
	texts := map[string]string{"numbers.inc": numbers, "kernel.inc": source}
	for _, m := range more {
		file, text, _ := strings.Cut(m, "=")
		texts[file] = text
	}
	for file, name := range texts {
		found := regexp.MustCompile(`(?s)` + name + ` = R"\((.*?)\)";`).FindStringSubmatch(header)
		if found == nil {
			t.Fatalf("the header has no text %s", name)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(found[1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, name)
	compiler := strings.Fields(os.Getenv("CXX"))
	if len(compiler) == 0 {
		compiler = []string{"g++"}
	}
	args := append(compiler[1:], "-std=c++20", "-O1", "-w", "-I", dir, "-I", ".", "-o", program, filepath.Join("testdata", name+".cpp"))
	if out, err := exec.CommandContext(t.Context(), compiler[0], args...).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if err != nil {
		t.Fatalf("run: %v\n%s", err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
