// Package programs shows that third-party programs, pinned and as they are on a
// package index, work with a gateway and directly with an agent of a real system
// with tiny models.
//
// programs.go lists the programs and how each is run; run has a script for each, and
// said the known output of each. A missing step, a program that fails, a gateway
// and an agent that answer differently, and new output all fail the test. The model's
// words are those of tinymodel.Caller.
//
// The test carries the build tag oracle (make test-programs). Start reading at play,
// then judge.
package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/oracle/clients/tinyfleet"
)

// options are what the test's flags select.
type options struct {
	root, installed, only string
	write                 bool
}

// openAIsEmbedder is the name that a program knows for a model that makes
// vectors, and that a deployment here has.
const openAIsEmbedder = "text-embedding-3-small"

func run(ctx context.Context, o options) error {
	chosen := slices.DeleteFunc(Programs(), func(p Program) bool { return !strings.Contains(p.Name, o.only) })
	if len(chosen) == 0 {
		return fmt.Errorf("no program's name holds %q", o.only)
	}
	began, said := time.Now(), map[string]string{}
	err := tinyfleet.With(ctx, o.root, filepath.Join(".run", "programs-failed"), func(ctx context.Context, w *tinyfleet.World) error {
		if err := w.Deploy(ctx, fleet.Model{Name: openAIsEmbedder, File: tinyfleet.Embedder, MaxTokens: 40}); err != nil {
			return err
		}
		var errs []error
		for _, p := range chosen {
			errs = append(errs, playDoors(ctx, o, p, w.Doors(), said))
		}
		return errors.Join(errs...)
	})
	fmt.Printf("   %d programs, %.0f s\n", len(chosen), time.Since(began).Seconds())
	return errors.Join(err, judge(o, chosen, said))
}

// judge compares what the programs said with what they are known to say, or
// writes it.
func judge(o options, programs []Program, said map[string]string) error {
	var errs []error
	for _, p := range programs {
		path := saidPath(o.root, p)
		if o.write {
			errs = append(errs, os.WriteFile(path, []byte(said[p.Name]), 0o644))
			continue
		}
		known, err := os.ReadFile(path)
		if err == nil && string(known) != said[p.Name] {
			err = fmt.Errorf("%s said something else than %s; look at it and, if it is right, run test/oracle/programs with -write:\n%s", p.Name, path, said[p.Name])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// playDoors runs a program at each door, and keeps what it said.
func playDoors(ctx context.Context, o options, p Program, doors []tinyfleet.Door, said map[string]string) error {
	var errs []error
	for _, d := range doors {
		began := time.Now()
		got, err := play(ctx, o, p, d.URL+"/v1")
		if err == nil {
			err = checkTranscript(p, got, said)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, %s: %w", p.Name, d.Name, err))
		}
		fmt.Printf("   %-24s %-20s %d steps, %.1f s\n", p.Name, d.Name, len(steps(got)), time.Since(began).Seconds())
	}
	return errors.Join(errs...)
}

// checkTranscript requires every step, and the same output at each door.
func checkTranscript(p Program, got string, said map[string]string) error {
	if !slices.Equal(steps(got), p.Steps) || len(p.Steps) == 0 {
		return fmt.Errorf("its steps were %q, want %q", steps(got), p.Steps)
	}
	if first, ok := said[p.Name]; ok && first != got {
		return fmt.Errorf("it said\n%s\nand before\n%s", got, first)
	}
	said[p.Name] = got
	return nil
}

// stepMark begins the line that a script writes before each step.
const stepMark = "== "

// steps are those that something follows.
func steps(transcript string) (out []string) {
	for _, part := range strings.Split("\n"+transcript, "\n"+stepMark)[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		if strings.TrimSpace(rest) != "" {
			out = append(out, name)
		}
	}
	return out
}

// patience bounds one run of one program.
const patience = 4 * time.Minute

// play runs a program's script, and gives what it wrote.
func play(ctx context.Context, o options, p Program, base string) (string, error) {
	bin, err := filepath.Abs(filepath.Join(o.installed, p.Pins, "bin"))
	if err != nil {
		return "", err
	}
	line := []string{filepath.Join(bin, "python"), filepath.Join(o.root, "test", "oracle", "programs", "run", p.Script)}
	if _, err := os.Stat(line[0]); err != nil {
		return "", fmt.Errorf("it is not installed: %w; make test-programs installs it", err)
	}
	if strings.HasSuffix(p.Script, ".sh") {
		line[0] = "bash"
	}
	home, err := os.MkdirTemp("", "mf-program-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(home)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it took more than %s", patience))
	defer cancel()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = []string{"BASE_URL=" + base, "HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH"), "TMPDIR=" + home,
		"LANG=C.UTF-8", "PYTHONWARNINGS=ignore", "PYTHONDONTWRITEBYTECODE=1", "LITELLM_LOCAL_MODEL_COST_MAP=True"}
	var out, side bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &side
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), errors.Join(err, context.Cause(ctx), fmt.Errorf("it wrote\n%s%s", out.String(), lastOf(side.String())))
	}
	return out.String(), nil
}

// lastOf is the end of what a program complained of.
func lastOf(s string) string {
	const most = 2000
	return s[max(0, len(s)-most):]
}
