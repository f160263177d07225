package pool

import (
	"errors"
	"fmt"
	"time"
)

// What a request meets when it cannot have an engine.
var (
	// ErrNotHere: this Mac does not hold that replica in that epoch.
	ErrNotHere = errors.New("replica is not on this Mac")
	// ErrNotReady: it is here, but loading, draining or backing off.
	ErrNotReady = errors.New("replica is not ready")
	// ErrEngineLost: the engine ended while the request was at it.
	ErrEngineLost = errors.New("engine ended")
	// ErrReleased: the hold was given back before the call.
	ErrReleased = errors.New("hold was released")
)

// NotReadyError is an ErrNotReady with what is known about it.
type NotReadyError struct {
	State State
	// RetryAfter is a guess at when it is worth another try.
	RetryAfter time.Duration
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("%v: it is %s", ErrNotReady, e.State)
}

// Is makes errors.Is(err, ErrNotReady) true.
func (e *NotReadyError) Is(target error) bool { return target == ErrNotReady }

// DownloadError is how Weights says why files are not there.
type DownloadError struct {
	// Reason is one of the reason constants of api/v1alpha1.
	Reason  string
	Message string
	// Final says that trying again cannot help.
	Final bool
	// RetryAfter is the least time to wait; zero leaves it to the pool.
	RetryAfter time.Duration
}

func (e *DownloadError) Error() string { return e.Message }
