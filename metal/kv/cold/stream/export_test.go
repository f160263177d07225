package stream

import "metalfleet.dev/metalfleet/metal/kv/cold"

// Through sends a report to itself.
func Through(r cold.Report) (cold.Report, error) { return Sent(r, false) }

// Sent is Through of a report that may be the last.
func Sent(r cold.Report, last bool) (cold.Report, error) { return fromReport(toReport(r, 1, last)) }
