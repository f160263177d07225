package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stage tells the re-executed program where it is.
const (
	stageVariable = "METALFLEET_CLUSTER_STAGE"
	stageInit     = "init"
	stageInside   = "inside"
)

// privateFolders are written to by kubelet, containerd or the network plugins
// at fixed paths; inside they are empty and end with the namespace.
var privateFolders = []string{"/run", "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/var/log/pods", "/opt/containerd", "/usr/libexec/kubernetes"}

// Sandbox runs story inside namespaces of its own and returns how it ended. The
// program calls it first of all: Sandbox starts the program again, inside, and
// there it calls story with a context that ends with SIGINT or SIGTERM. When it
// returns outside, every process of it has ended.
//
// dir holds the state and stays visible inside. What is on the machine
// afterwards and was not before, of all that inventory knows, is an error.
func Sandbox(ctx context.Context, dir string, story func(context.Context) error) error {
	switch os.Getenv(stageVariable) {
	case stageInside:
		return inside(story)
	case stageInit:
		return initialise()
	}
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root: namespaces, mounts and control groups of its own")
	}
	before, err := rememberHost()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("folder of the cluster: %w", err)
	}
	had, err := takeInventory(dir)
	if err != nil {
		return err
	}
	err = errors.Join(outside(ctx), before.restore())
	has, unread := takeInventory(dir)
	return errors.Join(err, unread, had.left(has))
}

// outside starts this program again as the first process of new namespaces.
func outside(ctx context.Context) error {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), stageVariable+"="+stageInit)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setpgid:    true, Pdeathsig: syscall.SIGKILL,
	}
	ended := make(chan error, 1)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig means the death of this thread
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
		_ = cmd.Process.Signal(syscall.SIGTERM) // it takes everything down and ends
		return errors.Join(context.Cause(ctx), <-ended)
	}
}

// initialise is process 1 inside: it makes what is private, starts the program
// a third time and waits for every process that loses its parent. When it ends,
// the kernel kills what is left.
func initialise() error {
	if err := isolate(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	child, err := os.StartProcess(self, os.Args, &os.ProcAttr{
		Env:   append(without(os.Environ(), stageVariable), stageVariable+"="+stageInside),
		Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("start inside: %w", err)
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
			return fmt.Errorf("wait inside: %w", err)
		case pid == child.Pid && status.Signaled():
			os.Exit(128 + int(status.Signal()))
		case pid == child.Pid:
			os.Exit(status.ExitStatus())
		}
	}
}

// isolate gives the namespaces their own /proc, empty folders and a loopback.
func isolate() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range privateFolders {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("folder of a kubelet: %w", err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	if err := os.Mkdir(namespaces, 0o755); err != nil {
		return fmt.Errorf("folder of named namespaces: %w", err)
	}
	for _, m := range []struct {
		kind  string
		flags uintptr
	}{{"tmpfs", 0}, {"", unix.MS_SHARED}} {
		if err := unix.Mount(m.kind, namespaces, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", namespaces, err)
		}
	}
	return unix.Sethostname([]byte(nodeName))
}

// inside runs the story.
func inside(story func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return story(ctx)
}

func without(env []string, name string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, name+"=") {
			out = append(out, e)
		}
	}
	return out
}

// host is what a cluster changes on the machine, as it was before.
type host struct {
	settings map[string]string
	folders  []string // that were not there
}

// settings of the kernel that a kubelet writes and no namespace holds.
var settings = []string{"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/panic_on_oom", "/proc/sys/kernel/panic", "/proc/sys/kernel/panic_on_oops"}

// groups are where the control groups of pods lie, by version.
var groups = []string{"/sys/fs/cgroup/*/kubepods", "/sys/fs/cgroup/kubepods"}

func rememberHost() (*host, error) {
	for _, pattern := range groups {
		if found, err := filepath.Glob(pattern); err != nil || len(found) > 0 {
			return nil, errors.Join(err, fmt.Errorf("%s is there: another kubelet runs on this machine, or one left it; end it, or remove the empty folder with rmdir", strings.Join(found, ", ")))
		}
	}
	h := &host{settings: map[string]string{}}
	for _, path := range settings {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("kernel setting: %w", err)
		}
		h.settings[path] = strings.TrimSpace(string(b))
	}
	for _, dir := range privateFolders {
		for ; dir != "/"; dir = filepath.Dir(dir) {
			if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
				h.folders = append(h.folders, dir)
			}
		}
	}
	return h, nil
}

// restore takes back what outlives the namespaces.
func (h *host) restore() error {
	var errs []error
	for path, was := range h.settings {
		b, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(b)) != was {
			err = os.WriteFile(path, []byte(was), 0o644)
		}
		errs = append(errs, err)
	}
	for _, pattern := range groups {
		found, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, dir := range found {
			errs = append(errs, removeGroup(dir))
		}
	}
	for _, dir := range h.folders { // the deepest first; others may have filled them meanwhile
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeGroup removes a control group and those inside; a folder that holds
// processes stays, and that is an error.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeGroup(filepath.Join(dir, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := unix.Rmdir(dir); err != nil {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return fmt.Errorf("control group %s: %w; its processes: %s", dir, err, strconv.Quote(string(b)))
	}
	return nil
}

// Inside says whether this program runs inside a sandbox already.
func Inside() bool { return os.Getenv(stageVariable) != "" }
