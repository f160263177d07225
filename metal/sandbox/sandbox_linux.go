package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Prepare does nothing on Linux, where a process confines itself with Enter.
func Prepare(Rules) error { return nil }

// Enter confines this process to r, and returns the names of the mechanisms
// for a log line.
func Enter(r Rules) (string, error) {
	version, err := syscall.LandlockGetABIVersion()
	if err != nil || version < 1 {
		return "", fmt.Errorf("%w: this kernel has no Landlock (Linux 5.13 or later with \"landlock\" in CONFIG_LSM or lsm=)", ErrUnavailable)
	}
	rules, err := fileRules(r)
	if err != nil {
		return "", err
	}
	if err := landlock.V7.BestEffort().Restrict(rules...); err != nil {
		return "", fmt.Errorf("sandbox: restrict files with Landlock: %w", err)
	}
	if err := errors.Join(leaveThreads(), leaveDescriptors()); err != nil {
		return "", fmt.Errorf("sandbox: limit threads and files: %w", err)
	}
	if err := filterCalls(); err != nil {
		return "", fmt.Errorf("sandbox: filter system calls: %w", err)
	}
	return fmt.Sprintf("Landlock %d, seccomp", version), nil
}

// maxThreads are enough for all programs of a user. The machine has 32,768 process IDs or more, and
// a thread takes tens of KiB of the kernel's memory, which count at no process.
const maxThreads = 1 << 12

// leaveThreads leaves a quarter of the threads that this user may have to others: the agent is of
// the same user, and ends where it cannot make one.
func leaveThreads() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return err
	}
	limit.Cur = min(limit.Cur-limit.Cur/4, maxThreads)
	limit.Max = limit.Cur
	return unix.Setrlimit(unix.RLIMIT_NPROC, &limit)
}

// maxDescriptors are enough for an engine: of 1,024 files of weights, 16 adapters, and a few files
// of the cache and connections of the agent.
const maxDescriptors = 1024 + 256

// leaveDescriptors leaves watches of epoll to others: the kernel counts them for each user, and the
// agent can neither accept nor connect without. The filter leaves one epoll. Descriptors are also
// memory that counts at no process.
func leaveDescriptors() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Max = min(limit.Max, maxDescriptors)
	limit.Cur = limit.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
}

// own are the files that a Go program and a measurement of its own memory read.
var own = []string{"/proc/self", "/dev/null", "/dev/urandom"}

func fileRules(r Rules) ([]landlock.Rule, error) {
	var rules []landlock.Rule
	for _, path := range append(own, r.Read...) {
		resolved, err := filepath.EvalSymlinks(path)
		if err != nil {
			return nil, fmt.Errorf("sandbox: %w", err)
		}
		info, err := os.Stat(resolved)
		if err != nil {
			return nil, fmt.Errorf("sandbox: %w", err)
		}
		if info.IsDir() {
			rules = append(rules, landlock.RODirs(resolved))
		} else {
			rules = append(rules, landlock.ROFiles(resolved))
		}
	}
	for _, path := range r.Write {
		if info, err := os.Lstat(path); err != nil || !info.IsDir() {
			continue // a disk that is away ends no engine, and a link is not followed
		}
		rules = append(rules, landlock.RWDirs(path).WithRefer())
	}
	return rules, nil
}
