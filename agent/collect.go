package agent

import (
	"context"
	"time"
)

// collectEvery is how often disk usage is compared with the watermarks.
const collectEvery = 30 * time.Second

// collect evicts unused weights while disk usage is above the high watermark,
// until ctx ends.
func (a *Agent) collect(ctx context.Context) error {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		if err := a.store.Collect(); err != nil {
			a.Log.Error(err, "Failed to remove unused weights")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
