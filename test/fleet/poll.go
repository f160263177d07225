package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Poll asks again and again until the answer is nil, and returns the last
// answer when the context ends. what completes "wait until ...".
func Poll(ctx context.Context, every time.Duration, what string, ask func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // else it only says that the time was up
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; last answer: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// KnowsKey asks a gateway for its models with a client's key: nil once the gateway
// takes it.
func KnowsKey(ctx context.Context, url, key string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/models", nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}
