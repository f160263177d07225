// Package sandbox takes from a running engine what it has no use for: the
// network, other programs, and every file but the weights it reads and the
// cache it writes.
//
// An engine parses files that strangers publish and text that strangers send,
// so it is the first program of a Mac that an attacker would take over. It
// confines itself before it reads either, and no later call can widen what is
// left. On Linux that is Landlock for files and a seccomp filter for system
// calls, both for all threads. On macOS the program replaces itself, under the
// same process ID, with itself under sandbox-exec.
//
// It owns the rules of both systems and nothing about engines.
//
// Start reading at Enter.
package sandbox

import "errors"

// Rules list what a confined process may still access. Paths are absolute.
type Rules struct {
	// Read are files and folders that may be read, with all below.
	Read []string
	// Write are folders in which files may be created, read, changed and
	// removed, but not they themselves. One that does not exist is no error; on Linux it stays out of
	// reach. A link in place of one is not followed. Folders next to them are those of others, and
	// stay out of reach everywhere.
	Write []string
	// State is the agent's folder, with its identity, if Socket does not lie in its folder
	// "run". On Linux all that is not listed is out of reach.
	State string
	// Socket is the Unix socket that the process listens on. Linux takes it
	// bound: no new one can be made afterwards.
	Socket string
}

// ErrUnavailable is returned, wrapped with the reason, on a system that cannot
// confine a process. Nothing was changed then.
var ErrUnavailable = errors.New("no sandbox on this system")
