//go:build !race

package served

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/patience"
)

func TestAnEngineThatEndsIsAnErrorWithItsLog(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in for an engine is a shell script, and Windows has no shell")
	}
	t.Setenv("TMPDIR", t.TempDir())
	program := filepath.Join(t.TempDir(), "engine")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho there is no such model >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ program, want string }{
		"log of the program": {program: program, want: "there is no such model"},
		"missing program":    {program: program + "x", want: "no such file"},
		"name of the model":  {program: program, want: "some.gguf"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
		_, err := Start(ctx, Options{Program: c.program, Model: "some.gguf", ContextTokens: 8, Sequences: 1})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, c.want)
		}
		if ctx.Err() != nil {
			t.Errorf("%s: the end of the process was not noticed", name)
		}
		cancel()
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("files were left: %v, %v", left, err)
	}
}
