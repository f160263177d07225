package server

import "context"

// Attached waits until an agent gave the cache leave to write.
func (c *Cache) Attached(ctx context.Context) error {
	select {
	case <-c.opened:
		return c.tier.Await(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}
