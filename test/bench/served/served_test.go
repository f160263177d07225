package served

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

func TestAnEngineThatEndsSaysWhatItLogged(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in for an engine is a shell script, and Windows has no shell")
	}
	t.Setenv("TMPDIR", t.TempDir())
	program := filepath.Join(t.TempDir(), "engine")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho there is no such model >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for says, c := range map[string]struct{ program, want string }{
		"a program that ends":     {program, "there is no such model"},
		"a program that is not":   {program + "x", "no such file"},
		"the model is named, too": {program, "some.gguf"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
		_, err := Start(ctx, Options{Program: c.program, Model: "some.gguf", ContextTokens: 8, Sequences: 1})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", says, err)
		}
		if ctx.Err() != nil {
			t.Errorf("%s: the end was not noticed", says)
		}
		cancel()
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestFootprintAndPeakOfThisProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the benchmarks read /proc, which only Linux has")
	}
	e := &Engine{PID: os.Getpid()}
	held, err := e.Footprint()
	if err != nil {
		t.Fatal(err)
	}
	peak, err := e.Peak()
	if err != nil {
		t.Fatal(err)
	}
	if held < 1<<20 || peak < held {
		t.Errorf("this process holds %d bytes and held at most %d", held, peak)
	}
	if d, err := e.Processor(); err != nil || d < 0 || d > time.Hour {
		t.Errorf("this process took %v, %v", d, err)
	}
	e.PID = -1
	if _, err := e.Processor(); err == nil {
		t.Error("a process that is not there took time")
	}
	if _, err := e.Footprint(); err == nil {
		t.Error("a process that is not there has a footprint")
	}
}

func TestEveryFigureMustBeThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	if err := os.WriteFile(path, []byte("Name:\tengine\nVmHWM:\t 3 kB\nPss_Anon: 5 kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := sum(path, "VmHWM", "Pss_Anon"); err != nil || n != 8<<10 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := sum(path, "VmHWM", "SwapPss"); err == nil || !strings.Contains(err.Error(), "SwapPss") {
		t.Errorf("a figure is missing: %v", err)
	}
}

func TestTheProgramsNameDoesNotMoveTheFields(t *testing.T) {
	if d, err := processor("12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 11 12\n"); err != nil || d != 3*time.Second {
		t.Errorf("%v, %v", d, err)
	}
	if _, err := processor("12 (a) S 1 2"); err == nil {
		t.Error("a line that is too short is taken")
	}
}
