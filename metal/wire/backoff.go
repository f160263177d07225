package wire

import (
	"time"

	"google.golang.org/grpc/backoff"
)

// quickBackoff fits a socket on the same machine: an engine binds it within
// milliseconds of its start, or never.
var quickBackoff = backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond}
