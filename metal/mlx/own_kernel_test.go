//go:build mlx

package mlx

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Calls of a kernel share an operation unless its text or its start differs. The flags
// are those that hack/mlx/go.sh builds the bridge with.
func TestCallsOfAKernelShareItsOperation(t *testing.T) {
	program := filepath.Join(t.TempDir(), "own_kernel")
	args := slices.Concat([]string{"-std=c++20", "-w", "-I", "."}, strings.Fields(os.Getenv("CGO_CXXFLAGS")), []string{"-O0", "-o", program, filepath.Join("testdata", "own_kernel.cpp")},
		strings.Fields(os.Getenv("CGO_LDFLAGS")), []string{"-lmlx"})
	compiler := strings.Fields(os.Getenv("CXX"))
	if len(compiler) == 0 {
		compiler = []string{"g++"}
	}
	if out, err := exec.CommandContext(t.Context(), compiler[0], slices.Concat(compiler[1:], args)...).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if err != nil {
		t.Fatalf("run: %v\n%s", err, out)
	}
	want := "others 1 1, grid 2, block 3, constant 4, flag 5, result 6, operand 7, scalar 8, again 8, forgotten 109, text int a;|#pragma unroll|b();|c|"
	if got := strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", ", "); got != want {
		t.Errorf("operations that were made:\n%s, want\n%s", got, want)
	}
}
