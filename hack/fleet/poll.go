package fleet

import (
	"context"
	"fmt"
	"time"
)

// Poll asks again and again until the answer is nil, and returns the last
// answer when the context ends. what completes "wait until ...".
func Poll(ctx context.Context, every time.Duration, what string, ask func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; last answer: %w", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
