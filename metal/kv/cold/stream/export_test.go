package stream

import (
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/wire"
)

const (
	MaxReport = maxReport
	MaxKeys   = maxKeys
)

// Message is a report as it is sent.
func Message(r cold.Report) *wire.CacheReport { return toReport(r, 1, false) }

// Taken is a report as it is received.
func Taken(m *wire.CacheReport) (cold.Report, error) { return fromReport(m) }

// Through sends a report to itself.
func Through(r cold.Report) (cold.Report, error) { return Sent(r, false) }

// Sent is Through of a report that may be the last.
func Sent(r cold.Report, last bool) (cold.Report, error) { return fromReport(toReport(r, 1, last)) }
