package pool

import (
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
)

// Errors of requests that cannot have an engine.
var (
	// ErrNotHere: this Mac does not hold that replica in that epoch.
	ErrNotHere = errors.New("replica is not on this Mac")
	// ErrNotReady: it is here, but loading, draining or backing off.
	ErrNotReady = errors.New("replica is not ready")
	// errNoRoom: it is here, loaded on demand, and this Mac has no memory for it.
	errNoRoom = errors.New("no memory to load the replica")
	// errLoadFailed: the load that the request waited for failed.
	errLoadFailed = errors.New("replica failed to load")
	// ErrEngineLost: the engine ended while it served the request.
	ErrEngineLost = errors.New("engine ended")
	// errReleased: the hold was given back before the call.
	errReleased = errors.New("hold was released")
)

// NotReadyError is an ErrNotReady with the entry's state.
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

// RoomError is an errNoRoom with the figures of the refusal.
type RoomError struct {
	// Cause has the bytes that are needed, reserved and left.
	Cause *memory.NoRoomError
	// RetryAfter is a guess at when it is worth another try; 0 where waiting
	// does not help, because the model does not fit in addition to what
	// is always resident.
	RetryAfter time.Duration
}

func (e *RoomError) Error() string { return fmt.Sprintf("%v: %v", errNoRoom, e.Cause) }

// Is makes errors.Is(err, errNoRoom) true.
func (e *RoomError) Is(target error) bool { return target == errNoRoom }

// Unwrap finds the *memory.NoRoomError.
func (e *RoomError) Unwrap() error { return e.Cause }

// LoadError is an errLoadFailed with its reason.
type LoadError struct {
	// Reason is one of the reason constants of api/v1alpha1, or an engine's own.
	Reason, Message string
	// RetryAfter is when the load may be tried again; 0 where it will not be.
	RetryAfter time.Duration
}

func (e *LoadError) Error() string {
	return fmt.Sprintf("%v: %s: %s", errLoadFailed, e.Reason, e.Message)
}

// Is makes errors.Is(err, errLoadFailed) true.
func (e *LoadError) Is(target error) bool { return target == errLoadFailed }

// DownloadError is the error of Weights with the reason why files are missing.
type DownloadError struct {
	// Reason is one of the reason constants of api/v1alpha1.
	Reason  string
	Message string
	// Final: trying again soon cannot help.
	Final bool
	// RetryAfter is the least time to wait; zero leaves it to the pool.
	RetryAfter time.Duration
}

func (e *DownloadError) Error() string { return e.Message }
