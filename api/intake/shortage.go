package intake

import (
	"errors"
	"syscall"
)

// shortage is an error of Accept that passes: the system has no room for a connection now. A
// server pauses and accepts again after an error that is temporary, and ends after others. Of these
// errors the standard library calls only EMFILE and ENFILE temporary.
type shortage struct{ error }

// Timeout implements net.Error.
func (shortage) Timeout() bool { return false }

// Temporary implements net.Error.
func (shortage) Temporary() bool { return true }

func (s shortage) Unwrap() error { return s.error }

// ofAccept marks an error of Accept that passes. ENOSPC means that the user has no more watches of
// epoll: another process of the user may have taken them all.
func ofAccept(err error) error {
	for _, passing := range []error{syscall.ENOSPC, syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, passing) {
			return shortage{err}
		}
	}
	return err
}
