package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/stream"
	"metalfleet.dev/metalfleet/metal/wire"
)

// lastWrites bounds how long a stopped engine writes what is queued for the disk.
const lastWrites = 5 * time.Second

// Cache connects an engine's disk tier with the agent. The agent's stream may
// connect before the tier exists, and reconnect.
type Cache struct {
	fs         disk.FS
	queueBytes int64
	log        *slog.Logger
	// opened is closed once there is a tier.
	opened chan struct{}
	tier   *cold.Tier
	origin kv.Origin

	mu sync.Mutex
	// hush ends the stream that is open, whose handler closes hushed; guarded by mu.
	hush   context.CancelFunc
	hushed chan struct{}
}

// NewCache returns a cache whose disk tier queues at most queueBytes.
func NewCache(fs disk.FS, queueBytes int64, log *slog.Logger) *Cache {
	return &Cache{fs: fs, queueBytes: queueBytes, log: log, opened: make(chan struct{})}
}

// Below opens the tier; engine.Options.Below calls it once, when the model is
// loaded.
func (c *Cache) Below(o kv.Origin) kv.Tier {
	c.tier, c.origin = cold.Open(cold.Options{FS: c.fs, Origin: o, QueueBytes: c.queueBytes, Log: c.log}), o
	close(c.opened)
	return c.tier
}

// close writes what is queued, within its bound, while the agent still grants.
func (c *Cache) close() {
	select {
	case <-c.opened:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastWrites)
	defer cancel()
	if err := c.tier.Close(ctx); err != nil {
		c.log.Warn("the disk was too slow for the queued blocks; dropping them", "counters", c.tier.Counters())
	}
}

// serve speaks of the tier over one stream, after it ended the one before.
func (c *Cache) serve(s grpc.BidiStreamingServer[wire.CacheLease, wire.CacheReport], over <-chan struct{}) error {
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	c.mu.Lock()
	hush, before, mine := c.hush, c.hushed, make(chan struct{})
	c.hush, c.hushed = cancel, mine
	c.mu.Unlock()
	defer close(mine)
	if hush != nil {
		hush()
		<-before
	}
	select {
	case <-c.opened:
	case <-over:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	return stream.Serve(ctx, s, c.tier, c.origin, over)
}

// Cache speaks of the tier on disk with the agent.
func (s *service) Cache(out wire.Engine_CacheServer) error {
	if s.cache == nil {
		return status.Error(codes.FailedPrecondition, "this engine was started without a disk cache")
	}
	return s.cache.serve(out, s.over)
}
