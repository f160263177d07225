package stream

import "metalfleet.dev/metalfleet/metal/kv/cold"

// Through sends a report to itself.
func Through(r cold.Report) (cold.Report, error) { return fromReport(toReport(r, 1, false)) }
