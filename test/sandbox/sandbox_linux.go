package sandbox

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Variables of the program that is started again: which stage it is in, and the
// folders that are empty inside.
const (
	stageVariable   = "METALFLEET_SANDBOX_STAGE"
	foldersVariable = "METALFLEET_SANDBOX_FOLDERS"
	stageInit       = "init"
	stageInside     = "inside"
)

// Address is where machines reach this one (RFC 5737).
const Address = "192.0.2.10"

// Inside reports whether this program runs in a sandbox.
func Inside() bool { return os.Getenv(stageVariable) == stageInside }

// Init is the first call of a TestMain. In the first process of a sandbox it
// starts the program once more and does not return.
func Init() {
	if os.Getenv(stageVariable) != stageInit {
		return
	}
	status, err := initialise()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		status = 1
	}
	os.Exit(status)
}

// goParallel is a line by which a test inside makes the one outside parallel.
const goParallel = "sandbox: go parallel"

// Parallel, called inside, lets parallel tests run from now on outside.
func Parallel() { fmt.Println(goParallel) }

// Enter runs the calling test again inside a sandbox. It returns true there, and
// false outside when the test has ended inside.
func Enter(t *testing.T) bool {
	t.Helper()
	if Inside() {
		if err := Run(t.Context(), "ip", "addr", "add", Address+"/32", "dev", "lo"); err != nil {
			t.Fatal(err)
		}
		return true
	}
	args := []string{"-test.v", "-test.run=^" + t.Name() + "$"}
	if end, limited := t.Deadline(); limited {
		args = append(args, "-test.timeout="+(time.Until(end)-5*time.Second).String())
	}
	flag.Visit(func(f *flag.Flag) { // those of the test itself
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	lines := &indented{out: os.Stdout, parallel: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- Rerun(t.Context(), args, lines) }()
	for parallel := lines.parallel; ; {
		select {
		case <-parallel:
			t.Parallel()
			parallel = nil
		case err := <-ended:
			if err != nil {
				t.Fatalf("inside its sandbox: %v", err)
			}
			return false
		}
	}
}

// indented writes whole lines with an indentation, and looks for goParallel.
type indented struct {
	out      io.Writer
	parallel chan struct{}
	rest     []byte
	found    bool
}

func (w *indented) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, whole := bytes.Cut(w.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		w.rest = rest
		if string(line) == goParallel {
			if !w.found {
				close(w.parallel)
			}
			w.found = true
			continue
		}
		if _, err := fmt.Fprintf(w.out, "    %s\n", line); err != nil {
			return 0, err
		}
	}
}

// Rerun starts this program again with other arguments, as the first process of
// new namespaces, and waits for its end. Folders are empty inside. When ctx ends,
// the program gets SIGTERM; when this one ends, the kernel kills all inside.
func Rerun(ctx context.Context, args []string, out io.Writer, folders ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("namespaces of its own need root")
	}
	// The PATH of some users lacks the folders where Debian keeps ip and nft.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return err
	}
	if err := equipped(); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), stageVariable+"="+stageInit, foldersVariable+"="+strings.Join(append(folders, "/run"), ":"))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setpgid:    true, Pdeathsig: syscall.SIGKILL,
	}
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Pdeathsig is the death of this thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("new namespaces: %w", err)
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return errors.Join(context.Cause(ctx), <-ended)
	}
}

// initialise is process 1 inside: it starts the program once more and waits for
// every process that loses its parent. When it ends, the kernel kills the rest.
func initialise() (status int, err error) {
	if err := isolate(strings.Split(os.Getenv(foldersVariable), ":")); err != nil {
		return 1, err
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, stageVariable+"=") })
	child, err := os.StartProcess(self, os.Args, &os.ProcAttr{
		Env: append(env, stageVariable+"="+stageInside), Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, fmt.Errorf("start inside: %w", err)
	}
	go func() {
		for s := range signals {
			_ = syscall.Kill(child.Pid, s.(syscall.Signal))
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, fmt.Errorf("wait inside: %w", err)
		case pid == child.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == child.Pid:
			return status.ExitStatus(), nil
		}
	}
}

// isolate gives the namespaces their own /proc, empty folders and a loopback.
func isolate(folders []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range append(folders, namespaces) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("folder of the sandbox: %w", err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	// A shared mount from the start: else ip makes it one with the first machine, on
	// top of the namespaces of Pods, which can then not be removed.
	if err := unix.Mount("", namespaces, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("mount %s: %w", namespaces, err)
	}
	if err := Run(context.Background(), "ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	return unix.Sethostname([]byte("node-1"))
}

// Run runs a program to its end; its error has what the program printed.
func Run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}
