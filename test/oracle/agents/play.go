package agents

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
)

// patience bounds each run of a program.
const patience = 5 * time.Minute

// What a program is asked, in this order.
const (
	askEndless = "Talk about prices until I stop you."
	askFix     = "In the repository %s the command `sh test.sh` fails. Find out why, fix price.sh and run the test again."
	askChange  = "What did you change?"
)

// changed is part of the answer to askChange of an agent that remembers its edit.
const changed = "it multiplies now"

// play has a program fix the test of a new repository, and returns what its
// requests contained.
func play(ctx context.Context, o options, g *fleet.Gateway, r *recorder, p Program) (traffic, error) {
	s, err := newStage(o, r, p)
	if err != nil {
		return traffic{}, err
	}
	defer os.RemoveAll(s.dir)
	for _, act := range []func(context.Context, *fleet.Gateway) error{s.interrupt, s.fix, s.recall} {
		if err := act(ctx, g); err != nil {
			seen, refused := inspect(r.exchanges(0))
			return seen, errors.Join(err, refused)
		}
	}
	seen, err := inspect(r.exchanges(0))
	if err != nil {
		return seen, err
	}
	return seen, p.judge(seen)
}

// judge compares what was seen with what is expected of the program.
func (p Program) judge(seen traffic) error {
	var errs []error
	if seen.Requests[p.Path] == 0 {
		errs = append(errs, fmt.Errorf("it sent no request to %s", p.Path))
	}
	if !slices.Equal(seen.Calls, p.Calls) {
		errs = append(errs, fmt.Errorf("it called %q, want %q", seen.Calls, p.Calls))
	}
	if !slices.Equal(seen.Ignored, p.Ignored) {
		errs = append(errs, fmt.Errorf("ignored were the fields %q, want %q", seen.Ignored, p.Ignored))
	}
	if seen.Input == 0 || seen.Output == 0 || seen.Cached == 0 {
		errs = append(errs, fmt.Errorf("usage was %d tokens of input, %d of them cached, and %d of output; want some of each", seen.Input, seen.Cached, seen.Output))
	}
	return errors.Join(errs...)
}

// stage is where one program plays.
type stage struct {
	program  Program
	recorder *recorder
	// dir has the home folder, one for temporary files and the repository.
	dir, home, temporary, repository string
	// line is the start of its command line, bin the folder of its programs.
	line []string
	bin  string
}

func newStage(o options, r *recorder, p Program) (*stage, error) {
	s := &stage{program: p, recorder: r}
	script := filepath.Join(o.root, "test", "oracle", "agents", "run", p.Script)
	s.bin = filepath.Join(o.installed, p.Env, "bin")
	switch filepath.Ext(p.Script) {
	case ".sh":
		s.line = []string{"/bin/sh", script}
	case ".py":
		s.line = []string{filepath.Join(s.bin, "python"), script}
	case ".mjs": // where it finds its libraries
		s.line = []string{filepath.Join(s.bin, "node"), filepath.Join(o.installed, p.Env, p.Script)}
	}
	if _, err := os.Stat(s.bin); err != nil {
		return nil, fmt.Errorf("it is not installed: %w; make test-agents installs it", err)
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "mf-agent-"); err != nil {
		return nil, err
	}
	s.home, s.temporary, s.repository = filepath.Join(s.dir, "home"), filepath.Join(s.dir, "tmp"), filepath.Join(s.dir, "shop")
	if err := errors.Join(os.Mkdir(s.home, 0o700), os.Mkdir(s.temporary, 0o700), writeRepository(s.repository)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// The repository's files. The test is green once the program multiplies.
const (
	priceProgram = `#!/bin/sh
# usage: price.sh COUNT PRICE
echo $(($1 + $2))
`
	priceTest = `#!/bin/sh
got=$(sh price.sh 3 4)
if [ "$got" != 12 ]; then
  echo "FAIL: 3 at 4 each cost $got, want 12"
  exit 1
fi
echo "price: ok"
`
)

func writeRepository(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "price.sh"), []byte(priceProgram), 0o644),
		os.WriteFile(filepath.Join(dir, "test.sh"), []byte(priceTest), 0o644))
}

// testRepository runs the repository's test, as it was at first.
func testRepository(ctx context.Context, dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "test.sh"), []byte(priceTest), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "test.sh")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the repository's test fails: %w: %s", err, out)
	}
	return nil
}

// streamed is how many pieces of an answer a program was sent before it is
// interrupted.
const streamed = 30

// interrupt asks for an answer without end and interrupts the program, as Ctrl-C
// does, while it is streamed. The request must end at the gateway as well.
func (s *stage) interrupt(ctx context.Context, g *fleet.Gateway) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	first := len(s.recorder.exchanges(0))
	cmd, out := s.command(ctx, "start", askEndless)
	if err := cmd.Start(); err != nil {
		return err
	}
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its status differs from program to program
		stop(fmt.Errorf("the program ended with %v", cmd.ProcessState))
	}()
	if err := s.recorder.waitPieces(waiting, first, s.program.Path, streamed); err != nil {
		cancel()
		<-ended
		return fmt.Errorf("%w; it printed\n%s", err, lastOf(out.String()))
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		return err
	}
	<-ended
	if ctx.Err() != nil {
		return fmt.Errorf("it went on after SIGINT: %w; it printed\n%s", context.Cause(ctx), lastOf(out.String()))
	}
	if err := s.recorder.waitIdle(ctx); err != nil {
		return err
	}
	for _, e := range s.recorder.exchanges(first) {
		if e.Path == s.program.Path && !e.Ended {
			return g.WaitInFlight(ctx, 0)
		}
	}
	return errors.New("no response was cut short by SIGINT")
}

// fix has the program fix the test.
func (s *stage) fix(ctx context.Context, _ *fleet.Gateway) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	cmd, out := s.command(ctx, "resume", fmt.Sprintf(askFix, s.repository))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fix the test: %w", errors.Join(err, context.Cause(ctx), errors.New("it printed\n"+lastOf(out.String()))))
	}
	if err := testRepository(ctx, s.repository); err != nil {
		return fmt.Errorf("%w; it printed\n%s", err, lastOf(out.String()))
	}
	return nil
}

// recall asks what was changed, which only the session's history has.
func (s *stage) recall(ctx context.Context, _ *fleet.Gateway) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	cmd, out := s.command(ctx, "resume", askChange)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("resume: %w", errors.Join(err, context.Cause(ctx), errors.New("it printed\n"+lastOf(out.String()))))
	}
	if !strings.Contains(out.String(), changed) {
		return fmt.Errorf("it does not remember its change; it printed\n%s", lastOf(out.String()))
	}
	return nil
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, patience, fmt.Errorf("it took more than %s", patience))
}

// command is a run of the program in a process group of its own, which ends with
// ctx; the buffer gets what it prints.
func (s *stage) command(ctx context.Context, how, prompt string) (*exec.Cmd, *bytes.Buffer) {
	args := append(slices.Clone(s.line[1:]), how, prompt)
	cmd := exec.CommandContext(ctx, s.line[0], args...)
	cmd.Dir = s.repository
	cmd.Env = append([]string{
		"HOME=" + s.home, "TMPDIR=" + s.temporary, "PATH=" + s.bin + ":/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "TERM=dumb",
		"BASE_URL=" + s.recorder.URL, "MODEL=" + s.program.Model, "PYTHONWARNINGS=ignore", "PYTHONPYCACHEPREFIX=" + filepath.Join(filepath.Dir(s.bin), "compiled"),
	}, s.program.Variables...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// lastOf is the end of what a program printed.
func lastOf(s string) string {
	const most = 4000
	return s[max(0, len(s)-most):]
}
