package main

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
)

// reading is what /proc said of a process, and when the reading was done.
type reading struct {
	at    time.Time
	bytes int64
}

// readEvery is the pause between two readings. One of a process of this size
// takes the kernel milliseconds, and a loop without a pause would take the
// processor from the stream that is measured.
const readEvery = 20 * time.Millisecond

// follow reads a process until it is gone, and then gives all readings.
func follow(ctx context.Context, pid int) <-chan []reading {
	out := make(chan []reading, 1)
	go func() { // ends with the process or with ctx; its channel has room
		var all []reading
		tick := time.NewTicker(readEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			bytes, err := fleet.Footprint(pid)
			if err != nil {
				break // it has ended: it has no memory any more
			}
			all = append(all, reading{time.Now(), bytes})
			<-tick.C
		}
		out <- all
	}()
	return out
}

// lastBefore is the last reading that was done before a moment; the first one
// where all came later, and 0 where there is none.
func lastBefore(all []reading, moment time.Time) int64 {
	if len(all) == 0 {
		return 0
	}
	last := all[0].bytes
	for _, r := range all {
		if !r.at.After(moment) {
			last = r.bytes
		}
	}
	return last
}
