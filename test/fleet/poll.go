package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Poll calls ask until it returns nil, and returns its last error when the context
// ends. what completes "wait until ...".
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
			last = err // else it is only the end of ctx
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; last answer: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// KnowsKey lists a gateway's models with an API key: nil once the gateway accepts
// it.
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
