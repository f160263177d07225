package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/test/sandbox"
)

// folders are written to by kubelet, containerd or the network plugins at fixed
// paths; inside they are empty and end with the namespace.
var folders = []string{"/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/var/log/pods", "/opt/containerd", "/usr/libexec/kubernetes"}

// Sandbox runs this program again, with its arguments, inside a sandbox for a
// cluster. dir holds the state and stays visible inside. Anything that the inventory
// finds on the machine afterwards and did not find before is an error.
func Sandbox(ctx context.Context, dir string, out io.Writer) error {
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
	err = errors.Join(sandbox.Rerun(ctx, os.Args[1:], out, folders...), before.restore())
	has, unread := takeInventory(dir)
	return errors.Join(err, unread, had.left(has))
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
			return nil, errors.Join(err, fmt.Errorf("%s exists: another kubelet runs on this machine, or left it; end it, or remove the empty folder with rmdir", strings.Join(found, ", ")))
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
	for _, dir := range append(slices.Clone(folders), "/run") {
		for ; dir != "/"; dir = filepath.Dir(dir) {
			if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
				h.folders = append(h.folders, dir)
			}
		}
	}
	return h, nil
}

// restore undoes what outlives the namespaces.
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
