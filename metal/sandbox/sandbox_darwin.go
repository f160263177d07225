package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const (
	launcher = "/usr/bin/sandbox-exec"
	// entered marks the environment of a process that runs under the profile.
	entered = "METALFLEET_SANDBOXED"
)

// Prepare replaces this process with itself under the profile of r, with the
// same process ID, arguments and environment. It returns in the process that
// is confined already, and where that is not possible.
func Prepare(r Rules) error {
	if os.Getenv(entered) != "" {
		return nil
	}
	if _, err := os.Stat(launcher); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("sandbox: find this program: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return fmt.Errorf("sandbox: find this program: %w", err)
	}
	if r, err = resolved(r); err != nil {
		return err
	}
	args := append([]string{launcher, "-p", profile(r, self), self}, os.Args[1:]...)
	if err := syscall.Exec(launcher, args, append(os.Environ(), entered+"=1")); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	panic("sandbox: unreachable after exec")
}

// Enter names what Prepare did.
func Enter(Rules) (string, error) {
	if os.Getenv(entered) == "" {
		return "", ErrUnavailable
	}
	return "sandbox-exec", nil
}
